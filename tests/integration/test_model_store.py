"""The model of etcd that tests of plans run on answers as a real etcd does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.keys import prefix_end
from leasekeeper.protocol.plan import GRANT, KEEP_ALIVE, RANGE, REVOKE, TIME_TO_LIVE, TXN, Fault, Method
from leasekeeper.testing import EtcdServer
from leasekeeper.testing.sim.store import Store
from leasekeeper.wire.status import fault_of

METHODS: dict[type[Message], Method] = {
    pb.RangeRequest: RANGE,
    pb.TxnRequest: TXN,
    pb.LeaseGrantRequest: GRANT,
    pb.LeaseRevokeRequest: REVOKE,
    pb.LeaseKeepAliveRequest: KEEP_ALIVE,
    pb.LeaseTimeToLiveRequest: TIME_TO_LIVE,
}
LEASES = (0x7001, 0x7002)
Answer = Callable[[Message], Message]


class RealStore:
    """A real etcd, asked as the model is."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def answer(self, request: Message) -> Message:
        """Perform one request: the reply, or a Fault."""
        method = METHODS[type(request)]
        call: Any = self._channel.unary_unary(
            method.path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=method.reply.FromString,
        )
        try:
            reply: Message = call(request, timeout=10.0)
        except grpc.RpcError as error:
            raise fault_of(error, method.operation, "") from None
        return reply


@pytest.fixture(scope="module")
def real() -> Iterator[RealStore]:
    """The real one, for these tests alone: another's write or expired lease would move its revision."""
    with EtcdServer(fsync=False) as server, grpc.insecure_channel(server.endpoint) as channel:
        yield RealStore(channel)


class Pair:
    """The same key space in both, told apart by a prefix; revisions are compared by their distance from the start."""

    def __init__(self, real: RealStore, prefix: bytes) -> None:
        self.model, self.real, self.prefix = Store(lambda: 0.0), real, prefix
        self.behind = 0

    def begin(self) -> None:
        """Empty the prefix and the leases in the real one, and take its revision as the model's."""
        for lease in LEASES:
            try:
                self.real.answer(pb.LeaseRevokeRequest(ID=lease))
            except Fault:
                pass
        everything = pb.DeleteRangeRequest(key=self.prefix, range_end=prefix_end(self.prefix))
        reply: Any = self.real.answer(pb.TxnRequest(success=[pb.RequestOp(request_delete_range=everything)]))
        self.model.revision = reply.header.revision

    def check(self, request: Message) -> None:
        """Both give the same answer."""
        assert self._of(self.model.answer, request) == self._of(self.real.answer, request)

    def _of(self, answer: Answer, request: Message) -> object:
        try:
            reply: Any = answer(request)
        except Fault as fault:
            return fault.kind, fault.cause
        revision = reply.header.revision
        _forget_headers(reply)
        return type(request).__name__, revision, reply.SerializeToString(deterministic=True)


def _forget_headers(reply: Any) -> None:
    """Only the outermost revision matters to us; member and term are a server's own."""
    reply.ClearField("header")
    if isinstance(reply, pb.TxnResponse):
        for response in reply.responses:
            which = response.WhichOneof("response")
            assert which is not None
            getattr(response, which).ClearField("header")


names = st.sampled_from([b"a", b"b", b"a/1", b"a/2", b"a/3", b"b/1"])
small = st.integers(0, 6)
values = st.sampled_from([b"", b"x", b"y"])


def requests(prefix: bytes, start: int) -> st.SearchStrategy[Message]:
    """Requests of the kinds that leasekeeper sends, over few keys so that they meet."""
    keys = names.map(lambda name: prefix + name)
    spans = keys.map(lambda key: (key, prefix_end(key))) | keys.map(lambda key: (key, b""))
    order, target = pb.RangeRequest.SortOrder, pb.RangeRequest.SortTarget
    ranges = st.builds(
        lambda span, limit, by, field, most, bare: pb.RangeRequest(
            key=span[0],
            range_end=span[1],
            limit=limit,
            sort_order=by,
            sort_target=field,
            max_create_revision=most and start + most,
            keys_only=bare,
        ),
        spans,
        st.integers(0, 2),
        st.sampled_from([order.NONE, order.ASCEND, order.DESCEND]),
        # Equal values have no order of their own in etcd, so only fields that tell keys apart are sorted by.
        st.sampled_from([target.KEY, target.CREATE, target.MOD]),
        small,
        st.booleans(),
    )
    compare, results = pb.Compare, [pb.Compare.EQUAL, pb.Compare.NOT_EQUAL, pb.Compare.GREATER, pb.Compare.LESS]
    numbers = small.map(lambda number: number and start + number)
    compares = (
        st.builds(
            lambda span, result, number: compare(
                target=compare.CREATE, key=span[0], range_end=span[1], result=result, create_revision=number
            ),
            spans,
            st.sampled_from(results),
            numbers,
        )
        | st.builds(
            lambda key, result, value: compare(target=compare.VALUE, key=key, result=result, value=value),
            keys,
            st.sampled_from(results),
            values,
        )
        | st.builds(
            lambda key, lease: compare(target=compare.LEASE, key=key, result=compare.EQUAL, lease=lease),
            keys,
            st.sampled_from([0, *LEASES]),
        )
        | st.builds(
            lambda key, result, version: compare(target=compare.VERSION, key=key, result=result, version=version),
            keys,
            st.sampled_from(results),
            small,
        )
    )
    puts = st.builds(m.put, keys, values, st.sampled_from([0, *LEASES]))
    deletions = st.builds(
        lambda span: pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=span[0], range_end=span[1])), spans
    )
    reads = ranges.map(lambda request: pb.RequestOp(request_range=request))
    # etcd refuses a transaction that writes one key twice: one write in each branch, as ours have.
    branches = st.builds(
        lambda before, write, after: [*before, *write, *after],
        st.lists(reads, max_size=2),
        st.lists(puts | deletions, max_size=1),
        st.lists(reads, max_size=2),
    )
    txns = st.builds(
        lambda compares, success, failure: pb.TxnRequest(compare=compares, success=success, failure=failure),
        st.lists(compares, max_size=2),
        branches,
        branches,
    )
    leases = st.sampled_from(LEASES)
    return st.one_of(
        txns,
        puts.map(lambda put: pb.TxnRequest(success=[put])),
        ranges,
        leases.map(lambda lease: pb.LeaseGrantRequest(ID=lease, TTL=600)),
        leases.map(lambda lease: pb.LeaseRevokeRequest(ID=lease)),
        leases.map(lambda lease: pb.LeaseKeepAliveRequest(ID=lease)),
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_the_model_answers_as_etcd_does(real: RealStore, namespace: str, data: st.DataObject) -> None:
    """Any row of requests gets the same replies, revisions and refusals from both."""
    pair = Pair(real, f"model/{namespace}/".encode())
    pair.begin()
    drawn = requests(pair.prefix, pair.model.revision)
    for request in data.draw(st.lists(drawn, min_size=4, max_size=20)):
        pair.check(request)


def test_a_lease_that_is_gone_is_told_alike(real: RealStore) -> None:
    """Both answer a beat for a dead lease with TTL 0 and a question for its time with -1; a put under it is refused."""
    pair = Pair(real, b"model/dead/")
    pair.begin()
    for request in (
        pb.LeaseKeepAliveRequest(ID=LEASES[0]),
        pb.LeaseTimeToLiveRequest(ID=LEASES[0]),
        pb.LeaseRevokeRequest(ID=LEASES[0]),
        pb.TxnRequest(success=[m.put(b"model/dead/key", b"value", LEASES[0])]),
    ):
        pair.check(request)
