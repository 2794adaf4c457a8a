"""A beat speaks of the lease, not of the keys: what the rules make of keys that cannot be read, and of refusals for good."""

from __future__ import annotations

import pytest

from leasekeeper.protocol.actions import Beat, Changed, ReadBack
from leasekeeper.protocol.authority import State
from leasekeeper.protocol.heartbeat import Heartbeat
from leasekeeper.protocol.session import Session
from leasekeeper.timing import Timing
from tests.model.claims import make_session, of_kind, own, stored

TIMING = Timing(ttl=10.0)  # a beat every 2 s, pause at 5 s, authority for 9.7 s


def run(beats: Heartbeat, session: Session, start_s: float, end_s: float, *, reads: bool) -> None:
    """Every beat is answered; reads of keys succeed, or fail for now."""
    now_s = start_s
    while now_s < end_s:
        for action in beats.due(now_s):
            if isinstance(action, Beat):
                beats.answered(session, action.number, 10, now_s)
        if session_reading(beats, session):
            found = {key: stored(slot.authority) for key, slot in session.slots.items() if slot.authority is not None}
            _ = beats.read_back(session, found, now_s) if reads else beats.read_back_failed(session, now_s)
        now_s += 0.5


def session_reading(beats: Heartbeat, session: Session) -> bool:
    """Whether a read-back is under way."""
    return beats._pulses[session.lease_id].reading_since is not None


def test_beats_count_while_keys_are_read() -> None:
    """With both answered, authority is proven for ever."""
    session = make_session(TIMING)
    authority = own(session)
    beats = Heartbeat()
    beats.add(session, 0.0)
    run(beats, session, 0.0, 100.0, reads=True)
    assert authority.state(100.0) is State.HELD
    assert session.lapses == 0


def test_beats_do_not_count_when_no_key_was_read_for_a_ttl() -> None:
    """G3: confirmed beats alone keep a lease HELD for one TTL, and no longer than until the proof is too old after that."""
    session = make_session(TIMING)
    authority = own(session)
    beats = Heartbeat()
    beats.add(session, 0.0)
    run(beats, session, 0.0, 8.0, reads=False)
    assert authority.state(8.0) is State.HELD
    run(beats, session, 8.0, 16.0, reads=False)
    assert session.proof_s < 10.0
    assert authority.state(16.0) is State.SUSPENDED


def test_a_read_makes_them_count_again() -> None:
    """Reading the keys again proves authority again; over a lapse that counts as one, without a lapse it does not."""
    for pause_s, lapses in ((6.0, 0), (12.0, 1)):
        session = make_session(TIMING)
        authority = own(session)
        beats = Heartbeat()
        beats.add(session, 0.0)
        run(beats, session, 0.0, 9.0 + pause_s, reads=False)
        run(beats, session, 9.0 + pause_s, 20.0 + pause_s, reads=True)
        assert authority.state(20.0 + pause_s) is State.HELD
        assert session.lapses == lapses


def test_a_session_that_owns_nothing_needs_no_reads() -> None:
    """What only waits has no key whose loss it would have to know of before its turn."""
    session = make_session(TIMING)
    assert session.confirm(50.0, 10, 9.0)


@pytest.mark.parametrize("what", ["beat", "read"])
def test_a_refusal_for_good_ends_the_lease_with_its_ttl(what: str) -> None:
    """C47: where only a person could mend what etcd refuses, the lease is LOST when its TTL is out, not before."""
    session = make_session(TIMING)
    authority = own(session)
    beats = Heartbeat()
    beats.add(session, 0.0)
    (beat,) = of_kind(Beat, beats.due(2.0))
    if what == "beat":
        beats.failed(session, beat.number, "no login", 2.1, refused=True)
    else:
        assert of_kind(ReadBack, beats.due(5.0))
        beats.read_back_failed(session, 5.1, refused=True)
    beats.due(9.9)
    assert authority.state(9.9) is State.SUSPENDED
    ended = of_kind(Changed, beats.due(10.0))
    assert [change.state for change in ended] == [State.LOST]
    assert authority.loss is not None
    assert authority.loss.reason == "expired"


def test_a_refusal_that_passes_ends_nothing() -> None:
    """A beat that is refused and then answered leaves the lease as it was, and a later silence is only a silence."""
    session = make_session(TIMING)
    authority = own(session)
    beats = Heartbeat()
    beats.add(session, 0.0)
    (beat,) = of_kind(Beat, beats.due(2.0))
    beats.failed(session, beat.number, "no login", 2.1, refused=True)
    (beat,) = of_kind(Beat, beats.due(3.0))
    beats.answered(session, beat.number, 10, 3.1)
    beats.due(30.0)
    assert authority.state(30.0) is State.SUSPENDED
