"""The state machine of one owned claim, and the gate.

Theory of operation
===================

A claim is *owned* because etcd says so; whether this process may still act on it is a question of time. The only evidence
is the **proof**: the moment at which the last beat that etcd confirmed was sent. From there the lease cannot expire before
``proof + ttl``, on any clock that runs at the right rate.

The state follows from the clock whenever somebody looks; nothing has to run for it to change. A process that was frozen
for an hour finds its gate shut by the first instruction that asks, because no flag needed setting in between::

    HELD ──PAUSE──▶ SUSPENDED        the proof is older than pause_after, or the own key is in question
    HELD ◀──PROVE── SUSPENDED        authority has been proven again
    HELD, SUSPENDED ──LOSE──▶ LOST   etcd says the claim is gone, a patience ran out, fork, keeper closed
    HELD, SUSPENDED ──RELEASE──▶ RELEASED
    LOST and RELEASED are final.     Nothing revives them; a new claim has a new token.

Rules, each a function of its own so that it can be examined, and replaced by the simulator to show that it matters:

1. `proof_of`: a proof is as old as the *sending* of its beat, never as the reply.
2. `passes`: the gate passes while the proof is younger than ``pause_after`` and what is left of authority covers what the
   caller needs. A patience of Timing that runs out before is the end of authority, too.
3. `revives`: a confirmation that arrives after authority has lapsed revives nothing; the own key must be read back with
   the same create revision first. Nobody else can then have owned the name in between, so the token stays.
4. `is_own`: a key is this claim only with its create revision and under its lease; a key of the same name that somebody
   put in its place is not.

The machine holds no lock. Its transitions are made by one thread at a time (the interpreters see to that); reading is free.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING

from leasekeeper.records import Loss, Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasekeeper.protocol import etcd_pb2 as pb
    from leasekeeper.protocol.session import Session, Slot
    from leasekeeper.timing import Timing

__all__ = [
    "TRANSITIONS",
    "Authority",
    "Input",
    "Loss",
    "Reason",
    "State",
    "disown",
    "is_own",
    "passes",
    "proof_of",
    "revives",
]

NEVER = -math.inf


class State(Enum):
    """What a lease is, as seen by its own process."""

    HELD = "HELD"
    SUSPENDED = "SUSPENDED"
    LOST = "LOST"
    RELEASED = "RELEASED"

    @property
    def final(self) -> bool:
        """Whether nothing leads out of it."""
        return self in (State.LOST, State.RELEASED)


class Input(Enum):
    """What can happen to a lease."""

    PAUSE = "PAUSE"
    PROVE = "PROVE"
    LOSE = "LOSE"
    RELEASE = "RELEASE"


TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.HELD, Input.PAUSE): State.SUSPENDED,
    (State.HELD, Input.PROVE): State.HELD,
    (State.HELD, Input.LOSE): State.LOST,
    (State.HELD, Input.RELEASE): State.RELEASED,
    (State.SUSPENDED, Input.PAUSE): State.SUSPENDED,
    (State.SUSPENDED, Input.PROVE): State.HELD,
    (State.SUSPENDED, Input.LOSE): State.LOST,
    (State.SUSPENDED, Input.RELEASE): State.RELEASED,
    **{(State.LOST, i): State.LOST for i in Input},
    **{(State.RELEASED, i): State.RELEASED for i in Input},
}


def proof_of(sent_s: float, ttl: int, timing: Timing) -> float:
    """The proof that a confirmed beat gives: when it was sent, less what the server grants short of the agreed TTL.

    A TTL longer than agreed, however absurd, moves nothing further.
    """
    return sent_s - max(0.0, timing.ttl - ttl)


def passes(age_s: float, need_s: float, timing: Timing) -> bool:
    """Whether the gate passes with a proof of this age. False for a ``need_s`` that is negative or not a number."""
    return age_s < timing.pause_s and age_s + need_s <= timing.gate_s and need_s >= 0.0


def revives(age_s: float, timing: Timing) -> bool:
    """Whether a confirmed beat may move the proof by itself: only while the last proof has not lapsed."""
    return age_s < timing.authority_s


def is_own(kv: pb.KeyValue | None, create_revision: int, lease_id: int) -> bool:
    """Whether what was read at the claim's key is still this claim."""
    return kv is not None and kv.create_revision == create_revision and kv.lease == lease_id


def disown(session: Session, now_s: float) -> None:
    """The fork rule, for each session in a child: its claims are LOST, and no beat proves anything. Takes no lock."""
    for authority in session.authorities():
        authority.lose("forked", now_s)
    session.shut()


class Authority:
    """What this process may claim about one owned claim.

    ``open`` is False once the claim is lost, released or in question; the gate then refuses whatever the clock says. The
    session's proof is shared: one beat speaks for every claim of the session.
    """

    __slots__ = (
        "__weakref__",
        "create_revision",
        "dropped",
        "held_since_s",
        "listeners",
        "loss",
        "name",
        "open",
        "owner",
        "session",
        "shown",
        "slot",
        "timing",
        "token",
        "until_s",
    )

    def __init__(self, slot: Slot, *, token: int, create_revision: int, timing: Timing, now_s: float) -> None:
        self.slot = slot
        self.session: Session = slot.session
        self.name = slot.name
        self.token = token
        self.create_revision = create_revision
        self.timing = timing
        self.held_since_s = now_s
        # When it is given up at the latest, however good the proof.
        self.until_s = math.inf if timing.max_hold is None else now_s + timing.max_hold
        self.open = True
        self.loss: Loss | None = None
        # The last state that subscribers were told; `turn` moves it along TRANSITIONS.
        self.shown = State.HELD
        # Who acquired it (a thread or a task, referred to weakly), who wants to hear of changes, and whom to tell when
        # it is dropped without a release. Set by the floor above.
        self.owner: Callable[[], object] | None = None
        self.listeners: dict[Callable[[State], None], None] = {}
        self.dropped: Callable[[Slot], None] | None = None

    def __del__(self) -> None:
        dropped = getattr(self, "dropped", None)  # Ctrl-C may have struck before it was made
        if dropped is not None and not self.shown.final:
            dropped(self.slot)

    def state(self, now_s: float) -> State:
        """The state at this moment."""
        if self.shown.final:
            return self.shown
        return State.HELD if self.passes(0.0, now_s) else State.SUSPENDED

    def passes(self, need_s: float, now_s: float) -> bool:
        """Whether the gate lets work through that needs ``need_s`` seconds of proven authority."""
        in_time = now_s + need_s <= self.until_s
        return self.open and in_time and passes(now_s - self.session.proof_s, need_s, self.timing)

    def remaining(self, now_s: float) -> float:
        """Seconds of proven authority left; 0 when there is none."""
        if not self.open:
            return 0.0
        return max(0.0, min(self.session.proof_s + self.timing.gate_s, self.until_s) - now_s)

    def turn(self, event: Input) -> bool:
        """Move the shown state; whether it changed."""
        before, self.shown = self.shown, TRANSITIONS[self.shown, event]
        return self.shown is not before

    def question(self) -> None:
        """The own key seems gone: hold work until the lease has been asked."""
        self.open = False

    def lose(self, reason: Reason, now_s: float) -> bool:
        """Shut the gate for good. The first reason stands; whether this was it."""
        if self.shown.final:
            return False
        self.loss = Loss(reason, now_s, now_s - self.session.proof_s)
        self.open = False
        return self.turn(Input.LOSE)

    def release(self) -> bool:
        """Shut the gate because the owner is done; whether it was still owned."""
        if self.shown.final:
            return False
        self.open = False
        return self.turn(Input.RELEASE)

    def run_out(self, now_s: float) -> bool:
        """Whether etcd may have let the lease go, for all that is proven."""
        return now_s >= self.session.proof_s + self.timing.ttl

    def suspended_since(self) -> float:
        """When the proof grew too old, or will."""
        return self.session.proof_s + self.timing.pause_s

    def overdue(self, now_s: float) -> bool:
        """Whether a patience has run out: SUSPENDED for ``give_up_after``, or owned for ``max_hold``."""
        timing = self.timing
        if now_s >= self.until_s:
            return True
        return timing.give_up_after is not None and now_s - self.suspended_since() >= timing.give_up_after
