"""A transaction that only reads, and an etcd that is full and refuses it as a whole: its reads are asked for one by one."""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.plan import RANGE, TXN, Cause, Fault, Kind, persist

FULL = Fault(Kind.FIX, cause=Cause.NO_SPACE, text="database space exceeded", operation="Txn")


def answered(request: Any, *answers: Any) -> tuple[Any, list[Any]]:
    """What `persist` of a transaction comes to, each call answered in turn, and the calls."""
    plan = persist(TXN, request, now=lambda: 0.0, until=10.0)
    calls: list[Any] = []
    left = list(answers)
    try:
        call = next(plan)
        while True:
            calls.append(call)
            answer = left.pop(0)
            call = plan.throw(answer) if isinstance(answer, BaseException) else plan.send(answer)
    except StopIteration as done:
        return done.value, calls


def found(key: bytes, revision: int) -> pb.RangeResponse:
    """An answer to a read."""
    return pb.RangeResponse(header=pb.ResponseHeader(revision=revision), kvs=[pb.KeyValue(key=key)], count=1)


def test_reads_of_a_full_etcd_are_of_one_revision() -> None:
    """The first says of which; the others are asked for at that one, whatever was written meanwhile."""
    request = m.read_only((m.get(b"a"), m.get(b"b"), m.get(b"c")))
    reply, calls = answered(request, FULL, found(b"a", 7), found(b"b", 8), found(b"c", 9))
    assert [call.method for call in calls] == [TXN, RANGE, RANGE, RANGE]
    assert [call.request.revision for call in calls[1:]] == [0, 7, 7]
    assert (reply.succeeded, reply.header.revision) == (True, 7)
    assert [m.range_kvs(reply, index)[0].key for index in range(3)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "request_",
    [
        pb.TxnRequest(success=(m.get(b"a"), m.put(b"b", b""))),
        pb.TxnRequest(compare=(m.absent(b"a"),), success=(m.get(b"a"),)),
    ],
    ids=["writes", "compares"],
)
def test_what_is_more_than_reads_is_refused(request_: pb.TxnRequest) -> None:
    """A transaction that writes or compares is not taken apart."""
    with pytest.raises(Fault, match="space exceeded"):
        answered(request_, FULL)
