"""A beat speaks of the lease, not of the keys: what the rules make of keys that cannot be read, and of refusals for good."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.actions import Action, Beat, Changed, ReadBack
from leasekeeper.protocol.authority import Authority, State
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
    return beats._pulses[session.lease_id].asking


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


# ---------------------------------------------------------------- keys of which some could not be read


def owning(*names: str) -> tuple[Session, Heartbeat, dict[bytes, Authority]]:
    """A session that owns these names, its heartbeat, and who owns which key."""
    session = make_session(TIMING)
    beats = Heartbeat()
    beats.add(session, 0.0)
    held = [own(session, name, revision=100 + number) for number, name in enumerate(names)]
    return session, beats, {authority.slot.key: authority for authority in held}


def show(held: dict[bytes, Authority], keys: Iterable[bytes]) -> dict[bytes, pb.KeyValue | None]:
    """What a read-back finds at these keys: the claims as they should be."""
    return {key: stored(held[key]) for key in keys}


def the_keys(actions: list[Action]) -> tuple[bytes, ...]:
    """The keys of the only read-back among the actions."""
    (read,) = of_kind(ReadBack, actions)
    return read.keys


def test_only_what_could_not_be_read_is_asked_for_again_and_soon() -> None:
    """C42: Of a read-back that a busy etcd answered in part, the rest is asked for in a moment, the others not."""
    session, beats, held = owning("a", "b", "c")
    a, b, c = the_keys(beats.due(4.6))
    beats.read_back(session, show(held, [a, c]), 4.7)
    assert of_kind(ReadBack, beats.due(4.7)) == []
    assert the_keys(beats.due(4.8)) == (b,)
    assert session.read_s == 0.0
    beats.read_back(session, show(held, [b]), 4.9)
    assert session.read_s == 4.6
    assert of_kind(ReadBack, beats.due(9.0)) == []
    assert set(the_keys(beats.due(9.2))) == {a, b, c}


def test_an_etcd_that_answers_no_part_is_not_pressed() -> None:
    """C42: Where nothing at all could be read the next try comes when a beat would be repeated, not at once."""
    session, beats, _ = owning("a", "b")
    keys = the_keys(beats.due(4.6))
    beats.read_back(session, {}, 4.7)
    assert of_kind(ReadBack, beats.due(4.7 + 0.9 * TIMING.beat_late_s)) == []
    assert the_keys(beats.due(4.7 + TIMING.beat_late_s)) == keys


def test_a_part_proves_nothing_for_the_rest() -> None:
    """G3: After a lapse the gates stay shut until the last held key was read; then the beat that waited for it counts."""
    session, beats, held = owning("a", "b")
    sent = beats.due(11.0)
    a, b = the_keys(sent)
    beats.answered(session, of_kind(Beat, sent)[0].number, 10, 11.2)
    read_all = show(held, [a, b])
    beats.read_back(session, {a: read_all[a]}, 11.3)
    assert not any(each.passes(0.0, 11.3) for each in held.values())
    for step in range(10):
        now_s = 11.4 + step / 10
        for read in of_kind(ReadBack, beats.due(now_s)):
            beats.read_back(session, {key: kv for key, kv in read_all.items() if key in read.keys and key != b}, now_s)
        assert not any(each.passes(0.0, now_s) for each in held.values())
    assert the_keys(beats.due(13.0)) == (b,)
    beats.read_back(session, {b: read_all[b]}, 13.1)
    assert all(each.passes(0.0, 13.1) for each in held.values())
    assert session.proof_s == 11.0


def test_a_key_that_is_gone_is_seen_in_a_part() -> None:
    """C38: What was read counts at once against the claim that it was read for, whatever became of the rest."""
    session, beats, held = owning("a", "b")
    a, b = the_keys(beats.due(4.6))
    assert of_kind(Changed, beats.read_back(session, {a: None}, 4.7)) == [Changed(held[a], State.SUSPENDED)]
    assert held[b].passes(0.0, 4.7)


def test_keys_read_long_ago_are_read_again_with_the_rest() -> None:
    """G3: A read-back that takes a TTL has seen nothing of use any more: it begins anew, with every key."""
    session, beats, held = owning("a", "b")
    a, b = the_keys(beats.due(4.6))
    beats.read_back(session, show(held, [a]), 4.7)
    assert the_keys(beats.due(8.0)) == (b,)
    beats.read_back(session, {}, 14.0)
    assert set(the_keys(beats.due(15.1))) == {a, b}


def test_what_happens_during_a_read_back_is_read_after_it() -> None:
    """C38: News of a key while keys are being read lead to another look at all of them, also at those read already."""
    session, beats, held = owning("a", "b")
    a, b = the_keys(beats.due(4.6))
    beats.read_back(session, show(held, [a]), 4.7)
    assert the_keys(beats.read_soon(session, 4.71)) == (b,)
    beats.read_back(session, show(held, [b]), 4.8)
    assert set(the_keys(beats.due(4.8))) == {a, b}


def test_reading_that_takes_longer_than_beats_lie_apart_proves_authority_again() -> None:
    """C26: A read-back counts for the beat it was begun after, although newer beats have been confirmed meanwhile."""
    session, beats, held = owning("a")
    run(beats, session, 0.0, 4.0, reads=True)
    sent = beats.due(20.0)
    keys = the_keys(sent)
    beats.answered(session, of_kind(Beat, sent)[0].number, 10, 20.1)
    (beat,) = of_kind(Beat, beats.due(22.0))
    beats.answered(session, beat.number, 10, 22.1)
    beats.read_back(session, show(held, keys), 23.0)
    assert session.proof_s == 22.0
    assert all(each.passes(0.0, 23.0) for each in held.values())
    assert session.lapses == 1
