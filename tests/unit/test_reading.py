"""One read-back: what it asks for, and what it makes of answers of which some are refusals."""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.keys import Epoch, write_epoch
from leasekeeper.protocol.plan import RANGE, TXN, Call, Cause, Fault, Kind
from leasekeeper.runtime.announce import Announcer
from leasekeeper.runtime.heart import Heart
from leasekeeper.runtime.reading import OPS_MAX, Reading
from leasekeeper.timing import Timing
from tests.model.claims import KEYS, make_session, own, stored

BUSY = Fault(Kind.RETRY, Cause.BUSY)
FULL = Fault(Kind.RETRY, Cause.NO_SPACE)
EPOCH = pb.KeyValue(key=KEYS.epoch, value=write_epoch(7, at=0.0, by="operator"))


def keys(number: int) -> tuple[bytes, ...]:
    """So many keys."""
    return tuple(b"key %d" % each for each in range(number))


def answer(call: Call, revision: int) -> Any:
    """Nothing stands at any key."""
    header = pb.ResponseHeader(revision=revision)
    if call.method is RANGE:
        return pb.RangeResponse(header=header)
    assert isinstance(call.request, pb.TxnRequest)
    ranges = [pb.ResponseOp(response_range=pb.RangeResponse()) for _ in call.request.success]
    return pb.TxnResponse(header=header, responses=ranges)


@pytest.mark.parametrize("number", [1, OPS_MAX - 1, OPS_MAX, OPS_MAX + 1, 1000])
@pytest.mark.parametrize("singly", [False, True])
def test_every_key_is_asked_for_once_within_etcds_bound(number: int, singly: bool) -> None:
    """C42: No transaction has more than 128 operations, and a full etcd of old releases is asked for each key alone."""
    asked: list[bytes] = []
    reading = Reading(keys(number), singly=singly)
    for chunk in reading.chunks:
        call = reading.call(chunk, 1.0)
        assert call.method is (RANGE if singly else TXN)
        assert len(chunk) <= (1 if singly else OPS_MAX)
        asked += chunk
    assert tuple(asked) == keys(number)


def test_what_was_read_is_kept_and_what_was_refused_is_left_out() -> None:
    """C42: A refusal of one transaction takes nothing from what the others have shown, at the lowest revision of theirs."""
    reading = Reading(keys(3 * OPS_MAX))
    first, second, third = reading.chunks
    ended = [
        reading.take(first, answer(reading.call(first, 1.0), 30)),
        reading.take(second, BUSY),
        reading.take(third, answer(reading.call(third, 1.0), 20)),
    ]
    assert ended == [False, False, True]
    assert set(reading.found) == {*first, *third}
    assert (reading.revision, reading.refused, reading.full) == (20, False, False)


class Engine:
    """Answers what the heart asks for: the epoch and one claim, or a fault."""

    beats = None

    def __init__(self, claim: pb.KeyValue, faults: list[Fault]) -> None:
        self.stored = {claim.key: claim, KEYS.epoch: EPOCH}
        self.faults = faults
        self.asked: list[Call] = []

    def exchange(self, call: Call, _route: object) -> Any:
        """One call; it takes no step to answer it."""
        yield from ()
        self.asked.append(call)
        if self.faults and call.method is TXN:
            return self.faults.pop(0)
        header = pb.ResponseHeader(revision=50)
        if isinstance(call.request, pb.RangeRequest):
            return pb.RangeResponse(header=header, kvs=[self.stored[call.request.key]])
        assert isinstance(call.request, pb.TxnRequest)
        found = [self.stored[op.request_range.key] for op in call.request.success]
        ranges = [pb.ResponseOp(response_range=pb.RangeResponse(kvs=[kv])) for kv in found]
        return pb.TxnResponse(header=header, responses=ranges)

    def tidy(self) -> None:
        """Nothing is open."""


class Hub:
    """Watches nothing."""

    def watch(self, *_: object, **__: object) -> None:
        """Watch a key."""

    def tick(self, _: float) -> None:
        """Look after the stream."""


@pytest.mark.parametrize("faults", [[], [FULL]], ids=["together", "singly"])
def test_the_epoch_is_read_along_with_held_keys(faults: list[Fault]) -> None:
    """G2: A keeper that only holds hears of the epoch with each look at its keys, also at a full etcd of old releases."""
    session = make_session(Timing(ttl=10.0))
    authority = own(session)
    hub: Any = Hub()
    engine: Any = Engine(stored(authority), list(faults))
    now_s = 6.0
    heart = Heart(engine, hub, Announcer(), lambda: now_s, lambda _: None)
    told: list[Epoch] = []
    heart.epoch_key, heart.take_in = KEYS.epoch, told.append
    heart._do(heart._decide(heart._beats.add, session))
    heart._do(heart._decide(heart._beats.read_soon, session))
    heart._listen(0.0)
    assert told == [Epoch(7, EPOCH.value)]
    assert session.read_s == now_s
    assert [call.method for call in engine.asked] == ([TXN] if not faults else [TXN, RANGE, RANGE])


def test_an_epoch_that_cannot_be_trusted_stops_no_heart() -> None:
    """A broken record is for those who acquire to be told of: held keys count as read all the same."""
    session = make_session(Timing(ttl=10.0))
    authority = own(session)
    hub: Any = Hub()
    engine: Any = Engine(stored(authority), [])
    engine.stored[KEYS.epoch] = pb.KeyValue(key=KEYS.epoch, value=b"rubbish")
    heart = Heart(engine, hub, Announcer(), lambda: 6.0, lambda _: None)
    told: list[Epoch] = []
    heart.epoch_key, heart.take_in = KEYS.epoch, told.append
    heart._do(heart._decide(heart._beats.add, session))
    heart._do(heart._decide(heart._beats.read_soon, session))
    heart._listen(0.0)
    assert told == []
    assert session.read_s == 6.0
