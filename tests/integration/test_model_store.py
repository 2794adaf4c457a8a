"""The model of etcd that the simulator and the tests of plans run on answers as a real etcd does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.keys import prefix_end
from leasekeeper.protocol.plan import (
    ALARM,
    GRANT,
    KEEP_ALIVE,
    RANGE,
    REVOKE,
    TIME_TO_LIVE,
    TXN,
    WATCH_PATH,
    Cause,
    Fault,
    Method,
)
from leasekeeper.testing import EtcdServer
from leasekeeper.testing.sim.store import Store
from leasekeeper.wire.status import fault_of
from tests.model.requests import LEASES, NAMES, Requests
from tests.support import until

COMPACT = Method("/etcdserverpb.KV/Compact", pb.CompactionResponse)
METHODS: dict[type[Message], Method] = {
    pb.RangeRequest: RANGE,
    pb.TxnRequest: TXN,
    pb.CompactionRequest: COMPACT,
    pb.LeaseGrantRequest: GRANT,
    pb.LeaseRevokeRequest: REVOKE,
    pb.LeaseKeepAliveRequest: KEEP_ALIVE,
    pb.LeaseTimeToLiveRequest: TIME_TO_LIVE,
    pb.AlarmRequest: ALARM,
}
Answer = Callable[[Message], Message]
# What a watch tells of a key: revisions, and whether it was deleted then; None where the history is gone.
History = list[tuple[int, bool]] | None


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

    def history(self, key: bytes, start: int, end: int) -> History:
        """What a watch of a key from ``start`` tells, up to ``end``, at which the key was written last."""
        asked: SimpleQueue[pb.WatchRequest | None] = SimpleQueue()
        asked.put(pb.WatchRequest(create_request=pb.WatchCreateRequest(key=key, start_revision=start)))
        open_stream: Any = self._channel.stream_stream(
            WATCH_PATH,
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.WatchResponse.FromString,
        )
        call = open_stream(iter(asked.get, None), timeout=20.0)
        told: list[tuple[int, bool]] = []
        try:
            for response in call:
                if response.canceled:
                    assert response.compact_revision > 0, response
                    return None
                told += [(event.kv.mod_revision, event.type == pb.Event.DELETE) for event in response.events]
                if told and told[-1][0] >= end:
                    return told
        finally:
            asked.put(None)
            call.cancel()
        raise AssertionError(f"the watch ended after {told}")


@pytest.fixture(scope="module")
def real() -> Iterator[RealStore]:
    """The real one, for these tests alone: another's write or expired lease would move its revision."""
    with EtcdServer(fsync=False) as server, grpc.insecure_channel(server.endpoint) as channel:
        yield RealStore(channel)


class Pair:
    """The same key space in both, told apart by a prefix, from the same revision on."""

    def __init__(self, real: RealStore, prefix: bytes) -> None:
        self.model, self.real, self.prefix = Store(lambda: 0.0), real, prefix

    def begin(self) -> None:
        """Empty the prefix and the leases in the real one, forget its history, and take its revision as the model's."""
        for lease in LEASES:
            try:
                self.real.answer(pb.LeaseRevokeRequest(ID=lease))
            except Fault:
                pass
        everything = pb.DeleteRangeRequest(key=self.prefix, range_end=prefix_end(self.prefix))
        emptied = [pb.RequestOp(request_delete_range=everything), m.put(b"somewhere else", b"")]
        reply: Any = self.real.answer(pb.TxnRequest(success=emptied))
        self.model.revision = self.model.compacted = reply.header.revision
        self.real.answer(pb.CompactionRequest(revision=reply.header.revision))

    def check(self, request: Message) -> None:
        """Both give the same answer."""
        assert self._of(self.model.answer, request) == self._of(self.real.answer, request)

    def check_history(self, key: bytes, start: int) -> None:
        """Both tell the same of a key from a revision on; it is written once more, so that there is an end to it."""
        request = pb.TxnRequest(success=[m.put(key, b"end")])
        self.check(request)
        end = self.model.revision
        start = min(start, end)
        told = None if start < self.model.compacted else self.model.since(key, start)
        expected = None if told is None else [(event.revision, event.deleted) for event in told]
        if expected and expected[0] == (self.model.compacted, True):
            del expected[0]  # releases differ in whether they still know of a deletion at the very revision
            found = self.real.history(key, start, end)
            assert found is not None
            assert [each for each in found if each[0] > self.model.compacted] == expected
            return
        assert self.real.history(key, start, end) == expected

    def _of(self, answer: Answer, request: Message) -> object:
        try:
            reply: Any = answer(request)
        except Fault as fault:
            return fault.kind, fault.cause
        revision = reply.header.revision
        _forget_headers(reply)
        _forget_what_differs(reply, bare=b"keys_only" in str(request).encode())
        return type(request).__name__, revision, reply.SerializeToString(deterministic=True)


def _forget_headers(reply: Any) -> None:
    """Only the outermost revision matters to us; member and term are a server's own."""
    reply.ClearField("header")
    if isinstance(reply, pb.TxnResponse):
        for response in reply.responses:
            which = response.WhichOneof("response")
            assert which is not None
            _forget_headers(getattr(response, which))


def _forget_what_differs(reply: Any, *, bare: bool) -> None:
    """What no two servers, or moments, have in common."""
    if isinstance(reply, pb.LeaseTimeToLiveResponse):
        reply.TTL = min(reply.TTL, 0)  # the real one's time goes on
        keys = sorted(reply.keys)
        del reply.keys[:]
        reply.keys.extend(keys)
    if isinstance(reply, pb.RangeResponse) and bare:
        for kv in reply.kvs:
            kv.ClearField("lease")  # etcd 3.7 leaves it out, too
    if isinstance(reply, pb.TxnResponse):
        for response in reply.responses:
            _forget_what_differs(getattr(response, str(response.WhichOneof("response"))), bare=bare)


checked = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.timeout(300)
@checked
@given(st.data())
def test_the_model_answers_as_etcd_does(real: RealStore, namespace: str, data: st.DataObject) -> None:
    """Any row of requests gets the same replies, revisions and refusals from both: nested, over ranges, of the past."""
    pair = Pair(real, f"model/{namespace}/".encode())
    pair.begin()
    drawn = Requests(pair.prefix, pair.model.revision)
    for request in data.draw(st.lists(drawn.any(), min_size=4, max_size=20)):
        pair.check(request)


@settings(checked, max_examples=40)
@given(st.data())
def test_watches_tell_the_same(real: RealStore, namespace: str, data: st.DataObject) -> None:
    """A watch from any revision tells the same of a key in both, or that its history is gone."""
    pair = Pair(real, f"model/{namespace}/".encode())
    pair.begin()
    start = pair.model.revision
    drawn = Requests(pair.prefix, start)
    writes = drawn.txns(0) | st.sampled_from(LEASES).map(lambda lease: pb.LeaseGrantRequest(ID=lease, TTL=600))
    for request in data.draw(st.lists(writes | drawn.any(), min_size=4, max_size=16)):
        pair.check(request)
    name = data.draw(st.sampled_from(NAMES))
    pair.check_history(pair.prefix + name, start + data.draw(st.integers(1, 12)))


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


def test_the_end_of_a_lease_is_one_revision_for_all_its_keys(real: RealStore) -> None:
    """Both delete all keys of a revoked lease at one new revision, and tell of it on every watch."""
    pair = Pair(real, b"model/end/")
    pair.begin()
    start = pair.model.revision
    pair.check(pb.LeaseGrantRequest(ID=LEASES[0], TTL=600))
    for name in NAMES:
        pair.check(pb.TxnRequest(success=[m.put(pair.prefix + name, b"", LEASES[0])]))
    pair.check(pb.LeaseRevokeRequest(ID=LEASES[0]))
    pair.check(pb.RangeRequest(key=pair.prefix, range_end=prefix_end(pair.prefix), min_mod_revision=start + 1))
    for name in NAMES:
        pair.check_history(pair.prefix + name, start + 1)


def test_a_key_put_twice_is_refused_alike(real: RealStore) -> None:
    """Both refuse a transaction that puts one key twice, also where that branch is not taken, and write nothing of it."""
    pair = Pair(real, b"model/twice/")
    pair.begin()
    twice = [m.put(b"model/twice/a", b"x"), m.put(b"model/twice/b", b""), m.put(b"model/twice/a", b"y")]
    pair.check(pb.TxnRequest(success=twice))
    pair.check(pb.TxnRequest(success=[m.put(b"model/twice/a", b"x")], failure=twice))
    pair.check(pb.RangeRequest(key=pair.prefix, range_end=prefix_end(pair.prefix)))


# No other test leaves it behind.
OWN_LEASE = 0x1A7E1A7E


def test_leases_expire_late_and_never_early(real: RealStore) -> None:
    """The granted TTL may be longer than what was asked for, and the key outlives it, in both."""
    asked = pb.LeaseGrantRequest(ID=OWN_LEASE, TTL=1)
    began_s = time.monotonic()
    granted: Any = real.answer(asked)
    assert granted.TTL > 1, "etcd raises what is below one and a half election timeouts"
    key = b"model/late/key"
    real.answer(pb.TxnRequest(success=[m.put(key, b"", OWN_LEASE)]))
    until(lambda: not real.answer(pb.RangeRequest(key=key)).kvs, timeout_s=30.0)  # type: ignore[attr-defined]
    assert time.monotonic() - began_s >= granted.TTL
    now = [0.0]
    model = Store(lambda: now[0], minimum_ttl=granted.TTL)
    assert model.perform(asked).TTL == granted.TTL  # type: ignore[attr-defined]
    model.put(key, b"", OWN_LEASE)
    now[0] = granted.TTL - 0.01
    assert model.expire() == []
    now[0] = granted.TTL + 0.4
    assert model.overdue(OWN_LEASE)
    assert key in model.keys
    assert model.expire() == [OWN_LEASE]
    assert key not in model.keys


def test_a_full_etcd_refuses_alike(real: RealStore) -> None:
    """NOSPACE: both refuse grants, puts, and transactions with a put in any branch; they read, renew and revoke all the same."""
    pair = Pair(real, b"model/full/")
    pair.begin()
    key = pair.prefix + b"key"
    pair.check(pb.LeaseGrantRequest(ID=LEASES[0], TTL=600))
    pair.check(pb.TxnRequest(success=[m.put(key, b"before", LEASES[0])]))
    alarm = {"alarm": pb.ALARM_NOSPACE, "memberID": 1}
    real.answer(pb.AlarmRequest(action=pb.AlarmRequest.ACTIVATE, **alarm))  # type: ignore[arg-type]
    pair.model.full = True
    try:
        untaken = pb.TxnRequest(compare=[m.absent(key)], success=[m.put(key, b"")], failure=[m.get(key)])
        for request in (pb.LeaseGrantRequest(ID=LEASES[1], TTL=600), untaken):
            with pytest.raises(Fault) as caught:
                pair.model.answer(request)
            assert caught.value.cause is Cause.NO_SPACE
            pair.check(request)
        allowed: tuple[Message, ...] = (
            pb.RangeRequest(key=key),
            pb.LeaseKeepAliveRequest(ID=LEASES[0]),
            pb.LeaseTimeToLiveRequest(ID=LEASES[0], keys=True),
            pb.LeaseRevokeRequest(ID=LEASES[0]),
            pb.RangeRequest(key=key),
        )
        for each in allowed:
            pair.check(each)
    finally:
        real.answer(pb.AlarmRequest(action=pb.AlarmRequest.DEACTIVATE, **alarm))  # type: ignore[arg-type]


def test_a_restored_etcd_is_alike(tmp_path: Path) -> None:
    """A30: in both a restore takes the revision back, and revoked leases live again, with their keys and full TTL."""
    with EtcdServer(fsync=False) as server:
        with grpc.insecure_channel(server.endpoint) as channel:
            pair = Pair(RealStore(channel), b"model/restored/")
            pair.begin()
            key = pair.prefix + b"key"
            pair.check(pb.LeaseGrantRequest(ID=LEASES[0], TTL=600))
            pair.check(pb.TxnRequest(success=[m.put(key, b"then", LEASES[0])]))
            path, backup = server.snapshot(tmp_path / "backup.db"), pair.model.snapshot()
            pair.check(pb.LeaseRevokeRequest(ID=LEASES[0]))
            for _ in range(3):
                pair.check(pb.TxnRequest(success=[m.put(key, b"later")]))
            before = pair.model.revision
        server.restore(path)
        pair.model.restore(backup)
        assert pair.model.revision < before
        with grpc.insecure_channel(server.endpoint) as channel:
            pair.real = RealStore(channel)
            pair.check(pb.RangeRequest(key=key))
            pair.check(pb.LeaseTimeToLiveRequest(ID=LEASES[0], keys=True))
            pair.check(pb.LeaseGrantRequest(ID=LEASES[0], TTL=600))
            pair.check(pb.LeaseRevokeRequest(ID=LEASES[0]))
            pair.check(pb.RangeRequest(key=key))
