"""The heartbeat's schedule: when beats go out, what their answers mean, when keys are read back."""

from __future__ import annotations

import gc
import math
from itertools import pairwise

import pytest

from leasekeeper.protocol.actions import (
    Action,
    Beat,
    Changed,
    Ended,
    Missed,
    Proven,
    ReadBack,
    Remove,
    Revoke,
    Vacate,
)
from leasekeeper.protocol.authority import Authority, State
from leasekeeper.protocol.heartbeat import FLYING_MAX, MISS_PAUSE_S, Heartbeat
from leasekeeper.protocol.session import Session, Slot
from leasekeeper.timing import Timing
from tests.model.claims import KEYS, LEASE, make_session, occupy, of_kind, own, stored

TIMING = Timing(ttl=10.0)  # a beat every 2 s, pause at 5 s, authority for 9.7 s


def begun(session: Session, now_s: float = 0.0) -> Heartbeat:
    """A heartbeat that has begun with one session."""
    beats = Heartbeat()
    beats.add(session, now_s)
    return beats


def the_beat(actions: list[Action]) -> Beat:
    """The only beat among the actions."""
    (beat,) = of_kind(Beat, actions)
    return beat


def read_of(actions: list[Action]) -> ReadBack:
    """The only read-back among the actions."""
    (read,) = of_kind(ReadBack, actions)
    return read


# ---------------------------------------------------------------- the schedule


def test_a_beat_is_due_one_interval_after_the_proof() -> None:
    """Nothing goes out before the interval is over, and one beat goes out then."""
    session = make_session(TIMING)
    authority = own(session)
    beats = begun(session)
    assert beats.due(1.99) == []
    assert the_beat(beats.due(2.0)).session is session
    assert authority.state(2.0) is State.HELD


def test_a_late_beat_is_missed_once_and_followed_at_once() -> None:
    """A hanging member costs half an interval, then the next beat goes out (C12, C19)."""
    session = make_session(TIMING)
    _authority = own(session)
    beats = begun(session)
    first = the_beat(beats.due(2.0))
    assert of_kind(Missed, beats.due(2.9)) == []
    actions = beats.due(3.0)
    assert [missed.in_a_row for missed in of_kind(Missed, actions)] == [1]
    assert the_beat(actions).number > first.number


def test_a_late_answer_counts_from_the_moment_its_beat_was_sent() -> None:
    """Rule 1: a proof is as old as the sending of its beat, however late the answer."""
    session = make_session(TIMING)
    _authority = own(session)
    beats = begun(session)
    first = the_beat(beats.due(2.0))
    the_beat(beats.due(3.0))
    assert of_kind(Proven, beats.answered(session, first.number, 10, 3.4))
    assert session.proof_s == 2.0


def test_an_answer_to_an_old_beat_does_not_excuse_a_newer_one() -> None:
    """While a newer beat is in the air it can still be late, so a second hanging member is noticed too."""
    session = make_session(TIMING)
    _authority = own(session)
    beats = begun(session)
    first = the_beat(beats.due(2.0))
    the_beat(beats.due(3.0))
    beats.answered(session, first.number, 10, 3.4)
    assert of_kind(Missed, beats.due(4.0))


def test_a_failed_beat_is_repeated_soon_but_not_in_a_storm() -> None:
    """Refused connections cost a growing pause of at most half an interval each (C41, C42)."""
    session = make_session(TIMING)
    _authority = own(session)
    beats = begun(session)
    now_s, sent = 2.0, 0
    while now_s < 4.0:
        for beat in of_kind(Beat, beats.due(now_s)):
            sent += 1
            beats.failed(session, beat.number, "refused", now_s)
        now_s += 0.01
    assert 3 <= sent <= 8


def test_at_most_so_many_beats_are_in_the_air() -> None:
    """A cluster that answers nothing piles up no more than FLYING_MAX exchanges in memory."""
    session = make_session(TIMING)
    _authority = own(session)
    beats = begun(session)
    for tick in range(20 * 10):
        beats.due(2.0 + tick / 10)
        assert len(beats._pulses[LEASE].flying) <= FLYING_MAX


@pytest.mark.parametrize("timing", [TIMING, Timing(ttl=10.0, beat_every=0.1), Timing(ttl=10.0, pause_after=9.0)])
def test_no_beat_is_forgotten_while_its_answer_could_prove_something(timing: Timing) -> None:
    """C26: However slow the network and however often beats go out, an answer within the authority it proves counts."""
    session = make_session(timing)
    _authority = own(session)
    beats, sent = begun(session), []
    now_s = timing.beat_s
    while now_s < timing.beat_s + timing.authority_s:
        sent += of_kind(Beat, beats.due(now_s))
        now_s += 0.01
    beats.answered(session, sent[0].number, 10, now_s)
    assert max(session.proof_s, session.pending_s) == pytest.approx(timing.beat_s)


def test_beats_do_not_grow_with_claims() -> None:
    """A thousand held claims of a session cost the same beats as one."""

    def beats_in_a_minute(claims: int) -> int:
        session = make_session(TIMING)
        held = [own(session, f"name-{number}", revision=10 + number) for number in range(claims)]
        by_key = {authority.slot.key: authority for authority in held}
        beats, sent = begun(session), 0
        for tick in range(600):
            now_s = tick / 10
            for action in beats.due(now_s):
                if isinstance(action, Beat):
                    sent += 1
                    beats.answered(session, action.number, 10, now_s)
                elif isinstance(action, ReadBack):
                    beats.read_back(session, {key: stored(by_key[key]) for key in action.keys}, now_s)
        assert all(authority.state(59.9) is State.HELD for authority in held)
        return sent

    assert beats_in_a_minute(1000) == beats_in_a_minute(1)


def test_waking_never_misses_a_beat() -> None:
    """Whoever sleeps until wake_at finds a beat that is due at the moment it is due."""
    session = make_session(TIMING)
    _authority = own(session)
    beats, now_s, sent_at = begun(session), 0.0, []
    while now_s < 20.0:
        for action in beats.due(now_s):
            if isinstance(action, Beat):
                sent_at.append(now_s)
                beats.answered(session, action.number, 10, now_s)
            elif isinstance(action, ReadBack):
                beats.read_back(session, {key: stored(_authority) for key in action.keys}, now_s)
        wake_s = beats.wake_at(now_s)
        assert now_s < wake_s <= now_s + 0.5
        now_s = wake_s
    assert sent_at == [2.0 * beat for beat in range(1, len(sent_at) + 1)]
    assert len(sent_at) == 9


def test_without_sessions_there_is_nothing_to_wake_for() -> None:
    """An empty heartbeat sleeps for ever and does nothing."""
    beats = Heartbeat()
    assert len(beats) == 0
    assert beats.wake_at(5.0) == math.inf
    assert beats.due(5.0) == []


# ---------------------------------------------------------------- sessions nobody claims through


def test_an_idle_session_does_not_beat_and_is_revoked_after_its_ttl() -> None:
    """C17: after the last claim left, no beat goes out, and the lease is revoked when a TTL has passed."""
    session = make_session(TIMING)
    slot = occupy(session)
    beats = begun(session)
    session.free(slot)
    actions = [action for tick in range(100) for action in beats.due(tick / 10)]
    assert actions == []
    assert beats.due(10.0) == [Revoke(session)]


def test_a_claim_wakes_an_idle_session_before_its_proof_is_too_old() -> None:
    """A claim that comes through an idle session with a fresh proof gets a beat before its work would pause."""
    session = make_session(TIMING)
    beats = begun(session)
    beats.due(0.5)
    _authority = own(session, now_s=2.5)
    assert the_beat(beats.due(2.6)).session is session


def test_a_haunted_idle_session_is_revoked_at_once() -> None:
    """When only a put that may still arrive is left of a session, its lease goes: the late put then fails."""
    session = make_session(TIMING)
    slot = occupy(session)
    session.haunt(slot)
    session.free(slot)
    assert begun(session).due(0.1) == [Revoke(session)]


# ---------------------------------------------------------------- what answers mean


@pytest.mark.parametrize("ttl", [0, -1, -(2**63)])
def test_a_ttl_of_zero_or_less_means_lost(ttl: int) -> None:
    """C04, C36: a normal reply with TTL 0 says that the lease is gone; the gate shuts at once."""
    session = make_session(TIMING)
    authority = own(session)
    beats = begun(session)
    beat = the_beat(beats.due(2.0))
    actions = beats.answered(session, beat.number, ttl, 2.1)
    assert Changed(authority, State.LOST) in actions
    assert Ended(session) in actions
    assert authority.loss is not None
    assert authority.loss.reason == "revoked"
    assert not authority.passes(0.0, 2.1)
    assert len(beats) == 0


def test_a_lease_that_is_gone_after_its_ttl_has_expired() -> None:
    """The reason tells an expiry from a revocation by the age of the proof."""
    session = make_session(TIMING)
    authority = own(session)
    begun(session).lease_gone(session, 10.0)
    assert authority.loss is not None
    assert (authority.loss.reason, authority.loss.proof_age_s) == ("expired", 10.0)


def test_even_a_forgotten_beat_can_tell_that_the_lease_is_gone() -> None:
    """One member saying so is enough, also in answer to a beat that has been superseded (C46)."""
    session = make_session(TIMING)
    authority = own(session)
    beats = begun(session)
    first, second = the_beat(beats.due(2.0)), the_beat(beats.due(3.0))
    beats.answered(session, second.number, 10, 3.1)
    beats.answered(session, first.number, 0, 3.2)
    assert authority.state(3.2) is State.LOST


def test_an_absurd_ttl_moves_the_proof_no_further() -> None:
    """C24: a reply of 9,223,372,036 s is worth the agreed TTL, counted from the send time."""
    session = make_session(TIMING)
    _authority = own(session)
    beats = begun(session)
    beat = the_beat(beats.due(2.0))
    beats.answered(session, beat.number, 9_223_372_036, 2.5)
    assert session.proof_s == 2.0


def test_a_shorter_ttl_is_worth_less() -> None:
    """A server that grants less than agreed moves the proof back by the difference."""
    session = make_session(TIMING, proof_s=-5.0)
    _authority = own(session)
    beats = begun(session)
    beat = the_beat(beats.due(2.0))
    beats.answered(session, beat.number, 7, 2.5)
    assert session.proof_s == -1.0


def test_nothing_is_made_of_answers_for_a_session_that_is_gone() -> None:
    """A confirmation that arrives after the loss revives nothing (C06, C19)."""
    session = make_session(TIMING)
    authority = own(session)
    beats = begun(session)
    beat = the_beat(beats.due(2.0))
    beats.lease_gone(session, 2.1)
    assert beats.answered(session, beat.number, 10, 2.2) == []
    assert authority.state(2.2) is State.LOST
    assert session.proof_s == -math.inf


# ---------------------------------------------------------------- after a lapse


def lapsed(authority: Authority) -> tuple[Heartbeat, ReadBack, float]:
    """A heartbeat whose session lapsed and got one beat confirmed 11 s after the proof: the read-back it then asks for."""
    session = authority.session
    beats = begun(session)
    regular = read_of(beats.due(9.0))
    beats.read_back(session, dict.fromkeys(regular.keys, stored(authority)), 9.1)
    beat = the_beat(beats.due(11.0))
    return beats, read_of(beats.answered(session, beat.number, 10, 11.2)), 11.2


def test_a_confirmation_after_the_lapse_passes_nothing_by_itself() -> None:
    """Rule 3: a beat confirmed after authority lapsed opens no gate until the key was read back (C06, B26)."""
    session = make_session(TIMING)
    authority = own(session)
    beats, read, now_s = lapsed(authority)
    assert not authority.passes(0.0, now_s)
    actions = beats.read_back(session, {key: stored(authority) for key in read.keys}, now_s + 0.1)
    assert Proven(session) in actions
    assert authority.passes(0.0, now_s + 0.1)
    assert session.proof_s == 11.0


@pytest.mark.parametrize("case", ["missing", "other revision", "other lease"])
def test_a_key_that_is_not_the_claim_keeps_the_gate_shut(case: str) -> None:
    """Rule 4: after a lapse the same key name is not enough; create revision and lease must be the claim's."""
    session = make_session(TIMING)
    authority = own(session)
    beats, read, now_s = lapsed(authority)
    shown = {
        "missing": None,
        "other revision": stored(authority, revision=101),
        "other lease": stored(authority, lease_id=1),
    }[case]
    beats.read_back(session, dict.fromkeys(read.keys, shown), now_s + 0.1)
    assert not authority.passes(0.0, now_s + 0.1)
    beat = the_beat(beats.due(now_s + 0.2))
    actions = beats.answered(session, beat.number, 10, now_s + 0.3)
    assert Changed(authority, State.LOST) in actions
    assert authority.loss is not None
    assert authority.loss.reason == "deleted"


def test_a_read_back_begun_before_the_beat_was_sent_is_repeated() -> None:
    """What was read before the confirming beat went out says nothing about the time after it."""
    session = make_session(TIMING)
    authority = own(session)
    beats = begun(session)
    early = read_of(beats.due(9.0))
    the_beat(beats.due(10.5))
    beat = the_beat(beats.due(11.6))
    beats.answered(session, beat.number, 10, 11.7)
    actions = beats.read_back(session, {key: stored(authority) for key in early.keys}, 11.8)
    assert not authority.passes(0.0, 11.8)
    again = read_of(actions)
    beats.read_back(session, {key: stored(authority) for key in again.keys}, 11.9)
    assert authority.passes(0.0, 11.9)


def test_a_short_ttl_does_not_make_an_early_read_back_count() -> None:
    """The read-back must follow the sending of the beat, not the shortened proof that a small TTL leaves of it."""
    session = make_session(TIMING)
    authority = own(session)
    beats = begun(session)
    early = read_of(beats.due(9.0))
    beat = the_beat(beats.due(11.0))
    beats.answered(session, beat.number, 8, 11.2)  # worth a proof of 9.0
    beats.read_back(session, {key: stored(authority) for key in early.keys}, 11.3)
    assert not authority.passes(0.0, 11.3)


def test_a_confirmation_that_has_lapsed_in_turn_is_forgotten() -> None:
    """A read-back that takes longer than the authority it waits for proves nothing."""
    session = make_session(TIMING)
    authority = own(session)
    beats, read, now_s = lapsed(authority)
    beats.read_back(session, {key: stored(authority) for key in read.keys}, now_s + 9.7)
    assert not authority.passes(0.0, now_s + 9.7)


def test_a_failed_read_back_is_tried_again_soon() -> None:
    """An unanswered read-back leaves the gate shut and is repeated within half a beat."""
    session = make_session(TIMING)
    authority = own(session)
    beats, _, now_s = lapsed(authority)
    beats.read_back_failed(session, now_s + 0.1)
    assert not authority.passes(0.0, now_s + 0.1)
    assert of_kind(ReadBack, beats.due(now_s + 0.9)) == []
    assert of_kind(ReadBack, beats.due(now_s + 1.2))


# ---------------------------------------------------------------- read-backs of other times


def test_held_keys_are_read_back_within_every_ttl() -> None:
    """A confirmed beat proves nothing about a key: each held one is read at least once per TTL, with room for a failure."""
    session = make_session(TIMING)
    authority = own(session)
    beats, reads = begun(session), []
    for tick in range(400):
        now_s = tick / 10
        for action in beats.due(now_s):
            if isinstance(action, Beat):
                beats.answered(session, action.number, 10, now_s)
            elif isinstance(action, ReadBack):
                reads.append(now_s)
                beats.read_back(session, {key: stored(authority) for key in action.keys}, now_s)
    assert max(later - earlier for earlier, later in pairwise([0.0, *reads])) <= TIMING.ttl / 2


def test_a_read_back_says_nothing_about_a_later_claim_on_its_key() -> None:
    """A name given back and owned again while its key is being read is not lost by what the old claim left there."""
    session = make_session(TIMING)
    old = own(session)
    beats = begun(session)
    read = read_of(beats.due(4.6))
    old.release()
    session.free(old.slot)
    new = own(session, revision=105, now_s=4.7)
    assert new.slot.key == old.slot.key
    beats.read_back(session, {read.keys[0]: stored(old)}, 4.8)
    assert new.state(4.8) is State.HELD
    beats.read_back(session, {read.keys[0]: None}, 4.8)
    assert new.passes(0.0, 4.8)


def test_a_read_back_says_nothing_about_a_claim_that_was_not_owned_when_it_began() -> None:
    """A key that was read before it was put does not lose the claim that was put meanwhile."""
    session = make_session(TIMING)
    _other = own(session, "other")
    slot = occupy(session)
    beats = begun(session)
    read = read_of(beats.due(4.6))
    slot.create_revision = 105
    slot.authority = claim = Authority(slot, token=105, create_revision=105, timing=TIMING, now_s=4.7)
    beats.read_back(session, {**dict.fromkeys(read.keys, stored(_other)), slot.key: None}, 4.8)
    assert claim.state(4.8) is State.HELD


def test_a_late_put_is_removed_by_its_create_revision() -> None:
    """G6: what stands at the key of a slot that is left, under its lease, was put by it, late; it goes."""
    session = make_session(TIMING)
    held, ghost = own(session, "held"), occupy(session, "ghost")
    session.haunt(ghost)
    session.free(ghost)
    beats = begun(session)
    read = read_of(beats.due(4.6))
    assert ghost.key in read.keys
    late = {**dict.fromkeys(read.keys, stored(held)), ghost.key: stored(held, revision=140)}
    assert of_kind(Remove, beats.read_back(session, late, 4.7)) == [Remove(ghost, 140)]


def test_a_key_put_by_somebody_else_is_left_alone() -> None:
    """A key under another lease is not this session's to remove, whatever its name."""
    session = make_session(TIMING)
    held, ghost = own(session, "held"), occupy(session, "ghost")
    session.haunt(ghost)
    session.free(ghost)
    beats = begun(session)
    read = read_of(beats.due(4.6))
    foreign = {**dict.fromkeys(read.keys, stored(held)), ghost.key: stored(held, revision=140, lease_id=0)}
    assert of_kind(Remove, beats.read_back(session, foreign, 4.7)) == []


def test_a_slot_that_is_left_is_free_once_its_key_is_seen_gone() -> None:
    """A clean-up that nobody could report does not occupy its slot for ever; a haunted one is kept."""
    session = make_session(TIMING)
    held, left, haunted = own(session, "held"), occupy(session, "left"), occupy(session, "haunted")
    session.haunt(haunted)
    left.leaving = haunted.leaving = True
    beats = begun(session)
    read = read_of(beats.due(4.6))
    shown = {key: stored(held) if key == held.slot.key else None for key in read.keys}
    for action in of_kind(Vacate, beats.read_back(session, shown, 4.7)):
        session.free(action.slot)
    assert left.key not in session.slots
    assert session.slots[haunted.key] is haunted


# ---------------------------------------------------------------- a key that is gone


def test_a_key_that_is_gone_shuts_the_gate_and_asks_the_lease() -> None:
    """C38: the gate shuts at the news; the next beat's answer tells a deleted key from a revoked lease."""
    session = make_session(TIMING)
    authority = own(session)
    beats = begun(session)
    actions = beats.key_gone(authority, 1.0)
    assert actions == [Changed(authority, State.SUSPENDED)]
    assert not authority.passes(0.0, 1.0)
    beat = the_beat(beats.due(1.0))
    assert beats.answered(session, beat.number, 10, 1.1)[:2] == [Changed(authority, State.LOST), Vacate(authority.slot)]
    assert authority.loss is not None
    assert authority.loss.reason == "deleted"


def test_a_beat_sent_before_the_key_was_gone_does_not_tell_why() -> None:
    """Only an answer to a beat sent after the news can say that the lease outlived the key."""
    session = make_session(TIMING)
    authority = own(session)
    beats = begun(session)
    early = the_beat(beats.due(2.0))
    beats.key_gone(authority, 2.2)
    beats.answered(session, early.number, 10, 2.3)
    assert authority.state(2.3) is State.SUSPENDED
    beat = the_beat(beats.due(2.4))
    beats.answered(session, beat.number, 0, 2.5)
    assert authority.loss is not None
    assert authority.loss.reason == "revoked"


def test_many_keys_gone_together_cost_one_beat() -> None:
    """An operator who deletes a thousand claims at once does not make the process storm etcd with beats."""
    session = make_session(TIMING)
    held = [own(session, f"name-{number}") for number in range(1000)]
    beats, sent = begun(session), []
    for number, authority in enumerate(held):
        now_s = 1.0 + number / 10_000
        beats.key_gone(authority, now_s)
        sent += of_kind(Beat, beats.due(now_s))
    assert len(sent) <= 1 + 0.1 / MISS_PAUSE_S
    sent += of_kind(Beat, beats.due(1.2))
    beats.answered(session, sent[-1].number, 10, 1.3)
    assert {authority.loss.reason for authority in held if authority.loss} == {"deleted"}
    assert all(authority.loss for authority in held)


def test_a_claim_in_question_that_is_given_back_is_not_asked_about_any_more() -> None:
    """C17: when nothing is claimed any more no beat goes out, not even to learn why a key was gone."""
    session = make_session(TIMING)
    authority = own(session)
    beats = begun(session)
    beats.key_gone(authority, 1.0)
    authority.release()
    session.free(authority.slot)
    assert [action for tick in range(90) for action in beats.due(1.0 + tick / 10)] == []


def test_without_an_answer_the_question_ends_with_the_ttl() -> None:
    """A key that seems gone and a lease that cannot be asked: expired when its time is out, at the latest."""
    session = make_session(TIMING)
    authority = own(session)
    beats = begun(session)
    beats.key_gone(authority, 1.0)
    assert Changed(authority, State.LOST) not in beats.due(9.9)
    assert Changed(authority, State.LOST) in beats.due(10.0)
    assert authority.loss is not None
    assert authority.loss.reason == "expired"


def test_the_first_reason_of_a_loss_stands() -> None:
    """What is LOST stays as it was lost, whatever is heard later."""
    session = make_session(TIMING)
    authority = own(session)
    beats = begun(session)
    authority.lose("closed", 1.0)
    loss = authority.loss
    beats.key_gone(authority, 2.0)
    beats.lease_gone(session, 3.0)
    assert authority.loss is loss


# ---------------------------------------------------------------- patience, and what subscribers hear


def test_a_pause_is_told_once_and_so_is_its_end() -> None:
    """Subscribers hear SUSPENDED and HELD in turn, each once, as the proof grows old and is renewed (C26)."""
    session = make_session(TIMING)
    authority = own(session)
    beats = begun(session)
    beat = the_beat(beats.due(2.0))
    assert of_kind(Changed, beats.due(4.9)) == []
    assert of_kind(Changed, beats.due(5.0)) == [Changed(authority, State.SUSPENDED)]
    assert of_kind(Changed, beats.due(5.5)) == []
    assert of_kind(Changed, beats.answered(session, beat.number, 10, 5.6)) == [Changed(authority, State.HELD)]


def test_patience_with_a_suspension_ends() -> None:
    """give_up_after: SUSPENDED for that long becomes LOST, and the claim is removed."""
    session = make_session(Timing(ttl=10.0, give_up_after=3.0))
    authority = own(session)
    beats = begun(session)
    assert Changed(authority, State.LOST) not in beats.due(7.9)
    actions = beats.due(8.0)
    assert Changed(authority, State.LOST) in actions
    assert Remove(authority.slot, authority.create_revision) in actions
    assert authority.loss is not None
    assert authority.loss.reason == "gave_up"


def test_work_that_hangs_does_not_hold_for_ever() -> None:
    """C18c: max_hold ends a lease although its heart beats, and the claim is removed."""
    session = make_session(Timing(ttl=10.0, max_hold=30.0))
    authority = own(session)
    beats = begun(session)
    session.proof_s = 29.9
    assert of_kind(Changed, beats.due(29.9)) == []
    assert Remove(authority.slot, authority.create_revision) in beats.due(30.0)
    assert authority.loss is not None
    assert authority.loss.reason == "gave_up"


def test_a_dropped_claim_is_not_kept_alive_by_a_read_back() -> None:
    """C18: what is being read does not hold the authority that its owner has dropped."""
    session = make_session(TIMING)
    authority = own(session)
    told: list[Slot] = []
    authority.dropped = told.append
    slot = authority.slot
    beats = begun(session)
    read_of(beats.due(4.6))
    del authority
    gc.collect()
    assert told == [slot]


def test_the_keys_of_a_session_are_its_own() -> None:
    """Two slots of a session on one name have different keys, and a freed one is used again."""
    session = make_session(TIMING)
    first, second = occupy(session), occupy(session)
    assert first.key == KEYS.claim("name", LEASE)
    assert second.key == KEYS.claim("name", LEASE, 1)
    session.free(first)
    session.free(first)
    third = occupy(session)
    session.free(first)  # late, by a background that also had it to remove
    assert third.key == first.key
    assert session.slots[third.key] is third
