"""What came of a beat, as the wire gives it, and what the rules make of it."""

from __future__ import annotations

import pytest

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.actions import Action, Beat, Changed, Ended, Missed
from leasekeeper.protocol.authority import Authority, State
from leasekeeper.protocol.heartbeat import Heartbeat
from leasekeeper.protocol.plan import Cause, Fault, Kind
from leasekeeper.timing import Timing
from tests.model.claims import LEASE, make_session, of_kind, own

TIMING = Timing(ttl=10.0)
SENT_S = 2.0


class Beating:
    """One owned claim, whose first beat is under way."""

    def __init__(self) -> None:
        self.session = make_session(TIMING)
        self.authority: Authority = own(self.session)
        self.beats = Heartbeat()
        self.beats.add(self.session, 0.0)
        (self.beat,) = of_kind(Beat, self.beats.due(SENT_S))

    def done(self, result: object) -> list[Action]:
        """What the rules make of what came half a second later."""
        return self.beats.beat_done(self.session, self.beat.number, result, SENT_S + 0.5)


@pytest.fixture
def beating() -> Beating:
    """One owned claim, whose first beat is under way."""
    return Beating()


def test_an_answer_proves_authority_from_its_sending(beating: Beating) -> None:
    """A TTL above 0 moves the proof to the moment at which the beat was sent."""
    beating.done(pb.LeaseKeepAliveResponse(ID=LEASE, TTL=10))
    assert beating.session.proof_s == SENT_S


@pytest.mark.parametrize(
    "result",
    [
        pb.LeaseKeepAliveResponse(ID=LEASE),
        Fault(Kind.RETRY, Cause.LEASE_NOT_FOUND, "etcdserver: requested lease not found"),
    ],
    ids=["TTL 0", "lease not found"],
)
def test_a_lease_that_is_gone_is_lost_at_once(beating: Beating, result: object) -> None:
    """C04: etcd says so in two ways, and each is final."""
    actions = beating.done(result)
    assert beating.authority.state(SENT_S + 0.5) is State.LOST
    assert of_kind(Changed, actions)
    assert of_kind(Ended, actions)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (Fault(Kind.NOT_SENT, Cause.OTHER, "connection refused"), "connection refused"),
        (Fault(Kind.RETRY, Cause.BUSY), Cause.BUSY.value),
        (ValueError("no such message"), "ValueError('no such message')"),
    ],
    ids=["with a text", "without one", "something else"],
)
def test_whatever_else_is_a_missed_beat(beating: Beating, result: object, why: str) -> None:
    """C16, C41: it is told why, proves nothing, and ends nothing."""
    (missed,) = of_kind(Missed, beating.done(result))
    assert missed.why == why
    assert beating.session.proof_s == 0.0
    assert beating.authority.state(SENT_S + 0.5) is State.HELD


@pytest.mark.parametrize(("kind", "lost"), [(Kind.RETRY, False), (Kind.FIX, True)])
def test_what_only_a_person_can_mend_is_not_waited_for_beyond_the_ttl(beating: Beating, kind: Kind, lost: bool) -> None:
    """A refusal that lasts ends a lease whose TTL is out; an outage does not, since etcd may keep the claim."""
    beating.done(Fault(kind, Cause.DENIED if lost else Cause.OTHER, "refused"))
    beating.beats.due(TIMING.ttl + 0.1)
    assert (beating.authority.loss is not None) is lost
