"""Guards taken out, one at a time, to show that each is needed and that the simulator would notice.

Production code has no switch for this. A guard is one function, or a few; while a world runs without it, another function stands
in their place, and only for the thread that runs the world: a real keeper in the same process keeps its guards. Each entry says
what the guard is for, and in which worlds its absence shows.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasekeeper.protocol import authority, leave, messages, queue, session
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.authority import Authority, State
from leasekeeper.protocol.context import Context
from leasekeeper.protocol.heartbeat import Heartbeat
from leasekeeper.protocol.prepared import Prepared
from leasekeeper.protocol.session import Session
from leasekeeper.runtime.sessions import SessionTable
from leasekeeper.runtime.watches import KeyWatches
from leasekeeper.testing.sim import heart, replica, resource

if TYPE_CHECKING:
    from leasekeeper.fencing import Admitted
    from leasekeeper.protocol.session import Slot
    from leasekeeper.timing import Timing

__all__ = ["GUARDS", "Guard", "taken_out"]

# What stands in a function's place: it is given the function first.
Instead = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Guard:
    """One guard: its name, what it is for, what stands in its place, and the mix of faults that shows it best."""

    name: str
    what: str
    mix: str
    swaps: tuple[tuple[Any, str, Instead], ...]


@contextmanager
def taken_out(guard: Guard | None) -> Iterator[None]:
    """Without the guard, in this thread, for as long as the block runs. None: with all of them."""
    with ExitStack() as stack:
        for owner, attribute, instead in guard.swaps if guard is not None else ():
            stack.enter_context(_swapped(owner, attribute, instead))
        yield


@contextmanager
def _swapped(owner: Any, attribute: str, instead: Instead) -> Iterator[None]:
    before, here = getattr(owner, attribute), threading.get_ident()

    def either(*args: Any, **named: Any) -> Any:
        if threading.get_ident() == here:
            return instead(before, *args, **named)
        return before(*args, **named)

    setattr(owner, attribute, either)
    try:
        yield
    finally:
        setattr(owner, attribute, before)


# ---------------------------------------------------------------- what stands in their place


def _greater_or_equal(_: Instead, highest: Admitted | None, token: int, claim: str) -> bool:
    return highest is None or token >= highest.token


def _proof_from_receipt(confirm: Instead, of: Session, sent_s: float, ttl: int, now_s: float) -> Any:
    return confirm(of, now_s, ttl, now_s)


def _made_from_receipt(make: Instead, table: SessionTable, lease_id: int, timing: Timing, proof_s: float) -> Any:
    return make(table, lease_id, timing, table._now())


def _passes_without_margin(_: Instead, age_s: float, need_s: float, timing: Timing) -> bool:
    return age_s < timing.pause_s and age_s + need_s <= timing.gate_s + timing.margin_s and need_s >= 0.0


def _remaining_without_margin(remaining: Instead, of: Authority, now_s: float) -> float:
    left_s: float = remaining(of, now_s - of.timing.margin_s)
    return left_s


def _revives_without_margin(_: Instead, age_s: float, timing: Timing) -> bool:
    return age_s < timing.ttl


def _nothing(*_: Any) -> list[Any]:
    return []


def _withdrawal_without_compare(withdrawal: Instead, ctx: Context, slot: Slot) -> pb.TxnRequest:
    return _without_compare(withdrawal(ctx, slot))


def _release_without_compare(release: Instead, of: Prepared, create_revision: int) -> pb.TxnRequest:
    return _without_compare(release(of, create_revision))


def _without_compare(request: pb.TxnRequest) -> pb.TxnRequest:
    bare: pb.TxnRequest = pb.TxnRequest.FromString(request.SerializeToString())
    bare.ClearField("compare")
    return bare


def _record_without_nonce(record: Instead, ctx: Context, note: str, ttl: float, epoch: int) -> tuple[str, bytes]:
    _, stored = record(ctx, note, ttl, epoch)
    return "same", re.sub(rb'"nonce":"[^"]*","claimed_at":[^,]*', b'"nonce":"same","claimed_at":0.0', stored)


def _any_epoch(_: Instead, key: bytes, __: Any) -> pb.Compare:
    return pb.Compare(result=pb.Compare.GREATER, target=pb.Compare.VERSION, key=key, version=-1)


def _never_late(send: Instead, beats: Heartbeat, pulse: Any, now_s: float) -> Any:
    beat = send(beats, pulse, now_s)
    pulse.late_at = float("inf")
    return beat


def _confirm_whatever(confirm: Instead, of: Session, sent_s: float, ttl: int, now_s: float) -> bool:
    if not of._keys_known(sent_s):
        return bool(confirm(of, sent_s, ttl, now_s))
    of.proof_s = max(of.proof_s, authority.proof_of(sent_s, ttl, of.timing))
    return True


def _passes_by_flag(_: Instead, of: Authority, need_s: float, now_s: float) -> bool:
    return of.open and of.shown is State.HELD


GUARDS: dict[str, Guard] = {
    guard.name: guard
    for guard in (
        Guard(
            "fence-equal",
            "at a resource, an equal token counts only for the same claim: after a restore numbers repeat",
            "careless",
            ((resource, "admits", _greater_or_equal),),
        ),
        Guard(
            "deadline-from-send",
            "a proof is as old as the sending of its beat, not as the answer",
            "late",
            ((Session, "confirm", _proof_from_receipt), (SessionTable, "make", _made_from_receipt)),
        ),
        Guard(
            "margin",
            "what is kept back of a TTL for clocks that run at different rates",
            "clocks",
            (
                (authority, "passes", _passes_without_margin),
                (Authority, "remaining", _remaining_without_margin),
                (queue, "passes", _passes_without_margin),
                (session, "revives", _revives_without_margin),
            ),
        ),
        Guard(
            "own-key",
            "every held key is watched, and read again at least once per TTL",
            "blind",
            (
                (KeyWatches, "_watch", _nothing),
                (Heartbeat, "_read_backs", _nothing),
                (Heartbeat, "read_soon", _nothing),
                (Session, "_keys_known", lambda *_: True),
            ),
        ),
        Guard(
            "compare-on-release",
            "a claim is deleted only as it was created: what arrives late hits nobody else's",
            "late",
            ((leave, "_withdrawal", _withdrawal_without_compare), (Prepared, "release", _release_without_compare)),
        ),
        Guard(
            "nonce",
            "every claim carries a nonce, by which its own put is known from another",
            "careless",
            ((Context, "record", _record_without_nonce),),
        ),
        Guard(
            "first-in-line",
            "a waiter owns the name only when its own key is the first of the queue",
            "everything",
            ((queue, "_is_head", lambda *_: True),),
        ),
        Guard(
            "epoch-compare",
            "every acquire compares the epoch, so that none is under an old one",
            "epochs",
            ((messages, "epoch_is", _any_epoch),),
        ),
        Guard(
            "beat-deadline",
            "a beat that is not answered soon is late, and the next goes to another member",
            "members",
            ((Heartbeat, "_send", _never_late), (heart, "beat_timeout_s", lambda *_: 1e6)),
        ),
        Guard(
            "re-proof",
            "a confirmation that comes after authority has lapsed revives nothing before the key was read back",
            "blind",
            ((Session, "confirm", _confirm_whatever),),
        ),
        Guard(
            "fork",
            "in a forked child every inherited lease is LOST",
            "processes",
            ((replica, "disown", _nothing),),
        ),
        Guard(
            "gate-clock",
            "the gate reads the clock, not a flag that somebody should have set",
            "processes",
            ((Authority, "passes", _passes_by_flag),),
        ),
    )
}
