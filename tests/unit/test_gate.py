"""At the gate: whom it lets through, what it says to those whom it does not, and what the end of a block means."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

from leasekeeper.errors import LeaseLost, LeaseSuspended, Misuse
from leasekeeper.protocol.authority import Authority, Loss
from leasekeeper.protocol.gate import REASONS, check_need, lost, not_provable, parting, refusal, wait_held
from leasekeeper.protocol.plan import Wait
from leasekeeper.timing import Timing
from tests.model.claims import make_session, own

TIMING = Timing(ttl=10.0)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        """The time."""
        return self.now_s


def held() -> Authority:
    """A lease with a fresh proof."""
    return own(make_session(TIMING))


def at_gate(authority: Authority, clock: Clock, need_s: float = 0.0, until: float | None = None) -> Any:
    """The plan of somebody who waits at the gate."""
    return wait_held(authority, need_s, until, clock.now)


def token_of(plan: Any) -> int:
    """What a plan that does not wait any more gives."""
    with pytest.raises(StopIteration) as done:
        plan.send(None)
    token: int = done.value.value
    return token


# ---------------------------------------------------------------- waiting


def test_the_gate_passes_at_once_while_authority_is_proven() -> None:
    """Nothing is waited for."""
    authority = held()
    assert token_of(at_gate(authority, Clock())) == authority.token


def test_work_waits_until_authority_is_proven_again() -> None:
    """G5: a suspended lease holds work at the gate; a new proof lets it through with the same token."""
    authority, clock = held(), Clock()
    clock.now_s = 6.0
    plan = at_gate(authority, clock)
    assert next(plan).signals == (authority.session.changed,)
    authority.session.proof_s = 6.0
    assert token_of(plan) == authority.token


def test_a_wake_up_is_not_lost_between_looking_and_waiting() -> None:
    """What is waited for is the flag from before the look, so a proof that comes in between is not slept through."""
    authority, clock = held(), Clock()
    clock.now_s = 6.0
    before = authority.session.changed
    assert next(at_gate(authority, clock)).signals == (before,)


def test_a_waiter_that_nobody_woke_looks_again() -> None:
    """G5: Whoever shuts a lease may be struck by Ctrl-C before it wakes others: they look for themselves now and then."""
    authority, clock = held(), Clock()
    clock.now_s = 6.0
    plan = at_gate(authority, clock)
    look_at = next(plan).until
    assert look_at is not None
    assert clock.now_s < look_at <= clock.now_s + 10.0
    clock.now_s = look_at
    authority.release()
    with pytest.raises(LeaseLost):
        plan.send(False)


def test_work_waits_for_as_much_authority_as_it_needs() -> None:
    """`need` holds work while the lease is HELD but not for long enough."""
    authority, clock = held(), Clock()
    clock.now_s = 3.0
    plan = at_gate(authority, clock, need_s=8.0)
    assert isinstance(next(plan), Wait)
    authority.session.proof_s = 2.9
    assert token_of(plan) == authority.token


def test_waiting_ends_with_the_lease() -> None:
    """Work that waits at the gate of a lease that is lost is told so."""
    authority, clock = held(), Clock()
    clock.now_s = 6.0
    plan = at_gate(authority, clock)
    next(plan)
    authority.lose("revoked", 6.5)
    with pytest.raises(LeaseLost) as caught:
        plan.send(True)
    assert (caught.value.reason, caught.value.loss) == ("revoked", authority.loss)


def test_waiting_ends_with_its_time() -> None:
    """The timeout of a wait raises what the gate says at that moment."""
    authority, clock = held(), Clock()
    clock.now_s = 6.0
    plan = at_gate(authority, clock, until=7.0)
    assert next(plan).until == 7.0
    clock.now_s = 7.0
    with pytest.raises(LeaseSuspended):
        plan.send(False)


@pytest.mark.parametrize("need_s", [-1.0, -1e-9, 9.7, 100.0, math.inf, math.nan])
@pytest.mark.parametrize("now_s", [0.0, 6.0])
def test_a_need_that_no_proof_can_satisfy_is_misuse(need_s: float, now_s: float) -> None:
    """Waiting for it would be waiting for ever; negative ones and NaN make no sense. HELD or SUSPENDED, it is told."""
    authority, clock = held(), Clock()
    clock.now_s = now_s
    with pytest.raises(Misuse):
        check_need(authority, need_s)
    with pytest.raises(Misuse):
        raise refusal(authority, need_s, now_s)
    with pytest.raises(Misuse):
        next(at_gate(authority, clock, need_s=need_s if need_s != 9.7 else 9.8))


@pytest.mark.parametrize("need_s", [1, True, Fraction(1)], ids=repr)
def test_a_need_that_passes_while_held_is_no_misuse_while_suspended(need_s: float) -> None:
    """The gate only compares, so whatever compares like a number is one also where the refusal is put in words."""
    authority, clock = held(), Clock()
    assert authority.passes(need_s, clock.now_s)
    error = refusal(authority, need_s, 6.0)
    assert isinstance(error, LeaseSuspended)
    assert error.need_s == 1.0
    assert "1.00 s are needed" in str(error)


# ---------------------------------------------------------------- what is said


def test_a_suspension_is_told_with_its_numbers() -> None:
    """LeaseSuspended says how old the proof is, what is left and what was asked."""
    error = refusal(held(), 2.0, 6.0)
    assert isinstance(error, LeaseSuspended)
    assert (error.name, error.token, error.age_s, error.need_s) == ("name", 100, 6.0, 2.0)
    assert error.remaining_s == pytest.approx(3.7)
    for number in ("6.00", "3.70", "2.00"):
        assert number in str(error)


@pytest.mark.parametrize("reason", ["expired", "revoked", "deleted", "gave_up", "forked", "closed"])
def test_every_loss_has_words(reason: Any) -> None:
    """C38: each reason is told in a sentence of its own, with name and token."""
    authority = held()
    authority.lose(reason, 1.0)
    error = refusal(authority, 0.0, 1.0)
    assert isinstance(error, LeaseLost)
    assert (error.reason, error.loss, error.name, error.token) == (reason, authority.loss, "name", 100)
    assert REASONS[reason] in str(error)
    assert "\n" not in str(error)


def test_a_released_lease_lets_nobody_through() -> None:
    """C30: after release the gate says released, and there is no loss."""
    authority = held()
    authority.release()
    error = refusal(authority, 0.0, 0.0)
    assert isinstance(error, LeaseLost)
    assert (error.reason, error.loss) == ("released", None)


# ---------------------------------------------------------------- the end of a critical block


def test_a_block_under_proven_authority_is_not_in_doubt() -> None:
    """Nothing lapsed: nothing is said."""
    assert not_provable(held(), 0, 4.0) is None
    assert not_provable(held(), 0, 9.0) is None


def test_a_block_that_outlived_its_authority_is_in_doubt() -> None:
    """Authority has lapsed and is not proven again: LeaseLost with the mark that the outcome must be checked."""
    error = not_provable(held(), 0, 9.7)
    assert error is not None
    assert error.in_doubt
    assert error.reason == "expired"
    assert "in doubt" in str(error)


def test_a_block_during_which_authority_lapsed_is_in_doubt() -> None:
    """Proven again at its end, but not all the time: somebody else could have acted in between."""
    authority = held()
    authority.session.lapses = 1
    error = not_provable(authority, 0, 1.0)
    assert error is not None
    assert error.in_doubt


def test_a_block_that_ends_with_a_loss_is_in_doubt() -> None:
    """The lease's own loss is told, marked as in doubt."""
    authority = held()
    authority.lose("deleted", 1.0)
    error = not_provable(authority, 0, 2.0)
    assert error is not None
    assert (error.reason, error.loss, error.in_doubt) == ("deleted", authority.loss, True)


def test_a_block_during_which_the_lease_was_released_is_in_doubt() -> None:
    """Whoever gave it back, the rest of the block ran without authority."""
    authority = held()
    authority.release()
    error = not_provable(authority, 0, 1.0)
    assert error is not None
    assert (error.reason, error.loss, error.in_doubt) == ("released", None, True)


# ---------------------------------------------------------------- leaving a with block


@pytest.mark.parametrize(
    ("removed", "lapsed", "reason"),
    [
        (True, False, None),  # etcd deleted it now, so nobody else can have owned the name before
        (True, True, None),
        (None, False, None),  # not known, but authority was proven all the time
        (None, True, "deleted"),
        (False, False, "deleted"),  # the key was gone already
        (False, True, "deleted"),
    ],
)
def test_the_end_of_a_block(removed: bool | None, lapsed: bool, reason: str | None) -> None:
    """C15: a block whose claim was gone, or not provably there, before its release ends in LeaseLost, never cleanly."""
    authority = held()
    authority.release()
    error = parting(authority, removed, lapsed, 1.0)
    assert (error.reason if error is not None else None) == reason


def test_the_end_of_a_block_after_its_ttl() -> None:
    """When the proof is older than all authority, the reason is that the time ran out."""
    authority = held()
    authority.release()
    error = parting(authority, False, True, 11.0)
    assert error is not None
    assert error.loss == Loss("expired", 11.0, 11.0)


def test_a_loss_is_told_at_the_end_whatever_the_release_says() -> None:
    """C07, C15: a lease that was lost inside the block raises its own loss at the end."""
    authority = held()
    authority.lose("revoked", 1.0)
    error = parting(authority, True, False, 2.0)
    assert error is not None
    assert error.loss is authority.loss
    assert lost(authority).reason == "revoked"
