"""The state machine of a lease: its table, its diagram, its rules, and the loss that it remembers."""

from __future__ import annotations

import math
import re

import pytest

from leasekeeper.protocol import authority as module
from leasekeeper.protocol.authority import (
    TRANSITIONS,
    Input,
    Loss,
    State,
    is_own,
    passes,
    proof_of,
    revives,
)
from leasekeeper.timing import Timing
from tests.model.claims import LEASE, make_session, own, stored

TIMING = Timing(ttl=10.0)  # pause at 5 s, authority for 9.7 s
FINAL = {State.LOST, State.RELEASED}


# ---------------------------------------------------------------- the table and its diagram


def test_the_table_is_total() -> None:
    """Every input has an answer in every state."""
    assert set(TRANSITIONS) == {(state, event) for state in State for event in Input}


def test_lost_and_released_are_final() -> None:
    """C06, C38: nothing leads out of LOST or RELEASED, and only these two are final."""
    assert {state for state in State if state.final} == FINAL
    for state in FINAL:
        assert {TRANSITIONS[state, event] for event in Input} == {state}


def test_the_diagram_is_the_table() -> None:
    """The arrows drawn in the module's essay are exactly the transitions that change the state."""
    assert module.__doc__ is not None
    drawn: dict[tuple[State, Input], State] = {}
    for line in module.__doc__.splitlines():
        right = re.match(r"\s+(\w+(?:, \w+)*) ──(\w+)──▶ (\w+)", line)
        left = re.match(r"\s+(\w+) ◀──(\w+)── (\w+(?:, \w+)*)", line)
        if right:
            sources, event, target = right.groups()
        elif left:
            target, event, sources = left.groups()
        else:
            continue
        for source in sources.split(", "):
            drawn[State[source], Input[event]] = State[target]
    assert drawn == {(state, event): to for (state, event), to in TRANSITIONS.items() if to is not state}


def test_the_essay_says_which_states_are_final() -> None:
    """Below the arrows stands what has none."""
    assert module.__doc__ is not None
    assert re.search(r"LOST and RELEASED are final", module.__doc__)


# ---------------------------------------------------------------- the rules


@pytest.mark.parametrize(
    ("age_s", "need_s", "verdict"),
    [
        (0.0, 0.0, True),
        (4.999, 0.0, True),
        (5.0, 0.0, False),
        (9.0, 0.0, False),
        (0.0, 9.7, True),
        (0.0, 9.71, False),
        (4.0, 5.7, True),
        (4.0, 5.8, False),
        (-1.0, 0.0, True),
        (math.inf, 0.0, False),
        (0.0, math.inf, False),
        (0.0, -0.001, False),
        (0.0, math.nan, False),
        (math.nan, 0.0, False),
    ],
)
def test_when_the_gate_passes(age_s: float, need_s: float, verdict: bool) -> None:
    """Rule 2: younger than the pause, and what is left covers the need; anything that is not a number does not pass."""
    assert passes(age_s, need_s, TIMING) is verdict


@pytest.mark.parametrize(
    ("ttl", "proof_s"), [(10, 100.0), (9, 99.0), (1, 91.0), (11, 100.0), (9_223_372_036, 100.0), (2**63 - 1, 100.0)]
)
def test_a_proof_is_as_old_as_its_sending(ttl: int, proof_s: float) -> None:
    """Rule 1, C24: counted from the send time, less what the server grants short; a longer TTL moves nothing further."""
    assert proof_of(100.0, ttl, TIMING) == proof_s


@pytest.mark.parametrize(
    ("age_s", "verdict"), [(0.0, True), (9.69, True), (9.7, False), (10.0, False), (math.inf, False)]
)
def test_what_has_lapsed_is_not_revived(age_s: float, verdict: bool) -> None:
    """Rule 3: a beat moves the proof by itself only while the last proof has not lapsed."""
    assert revives(age_s, TIMING) is verdict


def test_a_key_is_own_by_create_revision_and_lease() -> None:
    """Rule 4: the same key name put again, or under another lease, is another claim."""
    authority = own(make_session(TIMING), revision=7)
    assert is_own(stored(authority), 7, LEASE)
    assert not is_own(None, 7, LEASE)
    assert not is_own(stored(authority, revision=8), 7, LEASE)
    assert not is_own(stored(authority, lease_id=0), 7, LEASE)


# ---------------------------------------------------------------- the machine


def test_the_state_follows_from_the_clock() -> None:
    """A frozen process cannot have set a flag: whoever asks, at whatever time, gets the state of that time."""
    authority = own(make_session(TIMING))
    assert [authority.state(at) for at in (0.0, 4.9, 5.0, 100.0, 4.9)] == [
        State.HELD,
        State.HELD,
        State.SUSPENDED,
        State.SUSPENDED,
        State.HELD,
    ]
    assert [authority.remaining(at) for at in (0.0, 9.7, 50.0)] == [9.7, 0.0, 0.0]


def test_a_loss_shuts_the_gate_and_stays_as_it_was() -> None:
    """The first reason stands, with when it was and how old the proof was."""
    authority = own(make_session(TIMING))
    assert authority.lose("revoked", 3.0)
    for again in (authority.lose("expired", 4.0), authority.release()):
        assert not again
    assert authority.loss == Loss("revoked", 3.0, 3.0)
    assert authority.state(0.0) is State.LOST
    assert not authority.passes(0.0, 0.0)
    assert authority.remaining(0.0) == 0.0


def test_what_was_released_is_never_lost() -> None:
    """C38: a lease that its owner gave back has no loss, whatever etcd says later."""
    authority = own(make_session(TIMING))
    assert authority.release()
    assert not authority.release()
    assert not authority.lose("expired", 20.0)
    assert authority.loss is None
    assert authority.state(20.0) is State.RELEASED


def test_a_key_in_question_shuts_the_gate_whatever_the_clock_says() -> None:
    """News that the key is gone holds work at once, although the proof is fresh."""
    authority = own(make_session(TIMING))
    authority.question()
    assert authority.state(0.0) is State.SUSPENDED
    assert not authority.passes(0.0, 0.0)
    assert authority.remaining(0.0) == 0.0


def test_no_lease_outlives_the_session_it_hangs_on() -> None:
    """A session that is shut proves nothing any more, to none of its claims."""
    session = make_session(TIMING)
    authority = own(session)
    session.shut()
    assert not authority.passes(0.0, 0.0)
    assert not session.confirm(0.0, 10, 0.1)
    assert not session.reprove(0.1)
    assert session.proof_s == -math.inf


@pytest.mark.parametrize(
    ("timing", "now_s", "overdue"),
    [
        (Timing(ttl=10.0), 1e9, False),
        (Timing(ttl=10.0, give_up_after=2.0), 6.9, False),
        (Timing(ttl=10.0, give_up_after=2.0), 7.0, True),
        (Timing(ttl=10.0, max_hold=3.0), 2.9, False),
        (Timing(ttl=10.0, max_hold=3.0), 3.0, True),
    ],
)
def test_patience(timing: Timing, now_s: float, overdue: bool) -> None:
    """give_up_after counts from the pause, max_hold from the acquire; without them a lease waits as long as etcd lets it."""
    assert own(make_session(timing)).overdue(now_s) is overdue


@pytest.mark.parametrize(
    ("timing", "now_s", "left_s"),
    [
        (Timing(ttl=10.0), 0.0, 9.7),
        (Timing(ttl=10.0, give_up_after=2.0), 0.0, 7.0),
        (Timing(ttl=10.0, give_up_after=60.0), 0.0, 9.7),
        (Timing(ttl=10.0, max_hold=3.0), 0.0, 3.0),
        (Timing(ttl=10.0, max_hold=3.0), 2.0, 1.0),
        (Timing(ttl=10.0, max_hold=3.0), 3.5, 0.0),
        (Timing(ttl=10.0, max_hold=60.0), 2.0, 7.7),
    ],
)
def test_the_gate_promises_no_more_than_the_patience(timing: Timing, now_s: float, left_s: float) -> None:
    """G3: what is given up is free for others at once, so work that needs longer than a patience lasts is not let through."""
    authority = own(make_session(timing))
    assert authority.remaining(now_s) == pytest.approx(left_s)
    assert authority.passes(left_s - 0.01, now_s) is (left_s > 0)
    assert not authority.passes(left_s + 0.01, now_s)


def test_whoever_drops_a_lease_gives_its_claim_up() -> None:
    """C18: an authority that is collected while it is owned tells so, once; one that is over does not."""
    told: list[str] = []
    for name, end in (("dropped", None), ("released", "release"), ("lost", "lose")):
        authority = own(make_session(TIMING), name)
        authority.dropped = lambda slot: told.append(slot.name)
        if end == "release":
            authority.release()
        elif end == "lose":
            authority.lose("expired", 0.0)
        del authority
    assert told == ["dropped"]


# ---------------------------------------------------------------- the session's proof


def test_a_proof_never_goes_back() -> None:
    """An answer to an older beat, or with a shorter TTL, does not make a newer proof older."""
    session = make_session(TIMING)
    assert session.confirm(5.0, 10, 5.1)
    assert session.confirm(4.0, 10, 5.2)
    assert session.confirm(5.1, 3, 5.2)
    assert session.proof_s == 5.0


def test_a_lapse_is_counted_when_it_is_over() -> None:
    """A critical block learns that authority had lapsed in between, although it is proven again at its end."""
    session = make_session(TIMING)
    _held = own(session)
    assert not session.confirm(11.0, 10, 11.1)
    assert session.lapses == 0
    session.begin_reading(11.1)
    assert session.reprove(11.2)
    session.read_s = 11.2
    assert (session.lapses, session.proof_s) == (1, 11.0)
    assert session.confirm(12.0, 10, 12.1)
    assert session.lapses == 1


def test_nothing_pending_nothing_proven() -> None:
    """A read-back alone proves nothing."""
    session = make_session(TIMING)
    assert not session.reprove(1.0)
    assert session.proof_s == 0.0


def test_a_session_takes_no_more_claims_once_too_many_puts_are_out() -> None:
    """A network that swallows replies cannot pile up slots to look after without end."""
    from leasekeeper.protocol.session import HAUNTED_MAX
    from tests.model.claims import occupy

    session = make_session(TIMING)
    for number in range(HAUNTED_MAX):
        assert session.usable(0.0)
        slot = occupy(session, f"name-{number}")
        session.haunt(slot)
        session.free(slot)
    assert not session.usable(0.0)
    assert len(session.slots) == HAUNTED_MAX
