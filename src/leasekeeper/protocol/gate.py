"""At the gate: waiting for authority, and what to tell those whom it does not let through."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING

from leasekeeper.errors import LeaseLost, LeaseSuspended, Misuse, shown
from leasekeeper.protocol.authority import Authority, Loss
from leasekeeper.protocol.plan import Plan, Wait

if TYPE_CHECKING:
    from collections.abc import Callable

# How often those who wait look at the clock and the lease, whether or not somebody woke them.
LOOK_ANYWAY_S = 5.0

__all__ = ["check_need", "gone", "lost", "not_provable", "parting", "refusal", "wait_held"]

REASONS = {
    "expired": "its time ran out at etcd",
    "revoked": "its etcd lease was revoked",
    "deleted": "its key was deleted or replaced in etcd",
    "gave_up": "a patience of its Timing ran out",
    "forked": "this is a child process; make a keeper here",
    "closed": "the keeper was closed",
    "released": "it was released",
}


def lost(authority: Authority, loss: Loss | None = None, *, in_doubt: bool = False) -> LeaseLost:
    """The error for a lease that is over."""
    loss = loss or authority.loss
    reason = loss.reason if loss is not None else "released"
    tail = "; what the critical block did is in doubt" if in_doubt else ""
    return LeaseLost(
        f"lease on {authority.name!r} (token {authority.token}) is over: {REASONS[reason]}{tail}",
        name=authority.name,
        token=authority.token,
        reason=reason,
        loss=loss,
        in_doubt=in_doubt,
    )


def refusal(authority: Authority, need_s: float, now_s: float) -> LeaseLost | LeaseSuspended:
    """Why the gate does not let work through just now."""
    if authority.state(now_s).final:
        return lost(authority)
    check_need(authority, need_s)
    age_s = now_s - authority.session.proof_s
    remaining_s = authority.remaining(now_s)
    return LeaseSuspended(
        f"lease on {authority.name!r} is suspended: the last confirmed heartbeat was sent {age_s:.2f} s ago,"
        f" {remaining_s:.2f} s of authority are left and {float(need_s):.2f} s are needed",
        name=authority.name,
        token=authority.token,
        age_s=age_s,
        remaining_s=remaining_s,
        need_s=float(need_s),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, Real)


def check_need(authority: Authority, need_s: float) -> None:
    """Misuse for a need that no proof can ever satisfy.

    Any real number will do, as for the gate itself, which only compares: what passes while HELD must not be refused later.
    """
    timing = authority.timing
    most_s = timing.gate_s if timing.max_hold is None else min(timing.gate_s, timing.max_hold)
    if not (_is_number(need_s) and 0 <= need_s < most_s):
        raise Misuse(
            f"need={shown(need_s)}: expected seconds from 0 to less than {most_s:g}, which is all that a TTL of"
            f" {authority.timing.ttl:g} s can ever prove"
        )


def wait_held(authority: Authority, need_s: float, until: float | None, now: Callable[[], float]) -> Plan[int]:
    """Until the gate passes: the token.

    Raises:
        LeaseLost: the lease is over.
        LeaseSuspended: ``until`` has come.
        Misuse: no proof could ever satisfy ``need_s``.
    """
    session = authority.session
    if not authority.state(now()).final:
        check_need(authority, need_s)
    while True:
        changed = session.changed
        now_s = now()
        if authority.passes(need_s, now_s):
            return authority.token
        error = refusal(authority, need_s, now_s)
        if isinstance(error, LeaseLost) or (until is not None and now_s >= until):
            raise error
        look_at = now_s + LOOK_ANYWAY_S
        yield Wait((changed,), look_at if until is None else min(until, look_at))


def not_provable(authority: Authority, lapses: int, now_s: float) -> LeaseLost | None:
    """The error for a critical block that ends now, if authority lapsed since ``lapses`` were counted; else None.

    Also after a release, whoever made it: somebody else may own the name while the rest of the block runs, and whether there
    was a rest cannot be seen from here.
    """
    if authority.state(now_s).final:
        return lost(authority, in_doubt=True)
    if authority.remaining(now_s) > 0 and authority.session.lapses == lapses:
        return None
    return lost(authority, _expired(authority, now_s), in_doubt=True)


def parting(authority: Authority, removed: bool | None, lapsed: bool, now_s: float) -> LeaseLost | None:
    """What a ``with`` block must raise at its end, after its release came back so; None when all was well.

    A key that is gone already, or authority that had lapsed and could not be proven again, means that the end of the
    block may have run without it.
    """
    if authority.loss is not None:
        return lost(authority)
    if removed or (removed is None and not lapsed):
        return None
    return lost(authority, _expired(authority, now_s))


def gone(authority: Authority, now_s: float) -> LeaseLost:
    """The error for a lease whose key etcd says is not there; the heart may not know it yet."""
    return lost(authority, authority.loss or _expired(authority, now_s))


def _expired(authority: Authority, now_s: float) -> Loss:
    age_s = now_s - authority.session.proof_s
    return Loss("expired" if age_s >= authority.timing.authority_s else "deleted", now_s, age_s)
