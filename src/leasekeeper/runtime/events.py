"""What the runtime tells observers (`leasekeeper.observe`): facts as frozen records, with times in seconds.

``claim`` is the claim's nonce: unlike a name with a token it is unique also where one process keeps leases in several clusters.
A run's is that of the lease that owns it: what is told of one life of a run has it in common. ``run`` is ``workflow/id``, with
"/" in either written as %2F.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from leasekeeper.protocol.authority import Loss, State

__all__ = [
    "AcquireFailed",
    "Acquired",
    "AlertGiven",
    "BeatMissed",
    "CleanupFailed",
    "Dropped",
    "Event",
    "Observer",
    "RecordDelayed",
    "Released",
    "RunEnded",
    "RunOpened",
    "RunQuarantined",
    "StateChanged",
    "StepPassed",
]


@dataclass(frozen=True, slots=True)
class Acquired:
    """A name was acquired, after ``waited_s``."""

    name: str
    token: int
    claim: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class AcquireFailed:
    """A name was not acquired. ``error`` is the name of the exception's class, ``NotAcquired`` also where a try gave None."""

    name: str
    error: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class Released:
    """A lease was given back after ``held_s``. ``confirmed`` is False when the background still has to remove its key."""

    name: str
    token: int
    claim: str
    held_s: float
    confirmed: bool


@dataclass(frozen=True, slots=True)
class StateChanged:
    """A lease turned to another state by itself. ``loss`` is set when it is LOST.

    ``in_question``: it is SUSPENDED not for want of proof but because its key in etcd is gone; LOST follows, with the reason.
    """

    name: str
    token: int
    claim: str
    state: State
    proof_age_s: float
    loss: Loss | None
    in_question: bool = False


@dataclass(frozen=True, slots=True)
class BeatMissed:
    """A heartbeat was late or failed, ``in_a_row`` times since the last good one."""

    lease_id: int
    in_a_row: int
    endpoint: str
    why: str
    proof_age_s: float


@dataclass(frozen=True, slots=True)
class Dropped:
    """A lease was garbage-collected without a release; its claim is given up."""

    name: str
    claim: str


@dataclass(frozen=True, slots=True)
class CleanupFailed:
    """The background stopped trying to remove a key or lease; it goes when its lease runs out."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class StepPassed:
    """A step of a run came so far.

    ``what``: ``called`` (its effect is about to be called; ``repeated``: not for the first time; ``window_s`` after its
    preflight, or else after it was asked for), ``done`` (its outcome is recorded; ``took_s`` is how long the call took),
    ``replayed`` (the recorded result was used), ``adopted`` (the effect of an earlier life was found and recorded), ``conflict``,
    ``drift``, ``in_doubt``, ``halted`` (a halt kept it from being begun). ``kind`` is ``do`` or ``memo``.

    ``accepted``: the step goes on all the same; of a drift. ``why``: who has halted what, and their reason; of ``halted``.

    ``halt_s``: how long after `halt` the run met it, by the wall clocks of two machines; None unless this life of the run was
    under way when the halt was made, and met it for the first time.
    """

    run: str
    step: str
    kind: str
    what: str
    repeated: bool = False
    window_s: float = 0.0
    took_s: float = 0.0
    halt_s: float | None = None
    claim: str = ""
    accepted: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class RunOpened:
    """A life of a run began. ``how``: ``begun`` (the run is new), ``resumed``, ``read`` (it was finished before).

    ``restarts`` counts how often it was begun again since it was begun or a step was done.
    """

    run: str
    token: int
    claim: str
    how: Literal["begun", "resumed", "read"]
    restarts: int


@dataclass(frozen=True, slots=True)
class RunEnded:
    """A life of a run ended after ``lived_s``.

    ``how``: ``finished``, ``failed`` (its block raised), ``halted``, ``in_doubt``, ``lost`` (its lease was), ``left`` (it was
    only begun, for a worker), ``read`` (it was finished before).
    """

    run: str
    token: int
    claim: str
    how: Literal["finished", "failed", "halted", "in_doubt", "lost", "left", "read"]
    lived_s: float


@dataclass(frozen=True, slots=True)
class RunQuarantined:
    """A run was put aside, because it was begun again ``restarts`` times without a step done."""

    run: str
    restarts: int


@dataclass(frozen=True, slots=True)
class AlertGiven:
    """Somebody had to be told that a run needs a person. ``passed_on``: whether every hook could; without one the log is told."""

    run: str
    step: str
    kind: str
    passed_on: bool


@dataclass(frozen=True, slots=True)
class RecordDelayed:
    """A record of a run cannot be written for now, and waits; its program waits with it.

    ``record`` is its kind (``outcome``, ``finished`` …), ``step`` its step, or "". ``how``: ``waits`` (trying has come to
    nothing ``in_a_row`` times, for ``waited_s`` in all, the last time because of ``why``; it is tried again as long as the
    run's claim can stand), and then once ``recorded`` or ``given_up`` (nobody waits for it any more; its call raises the reason).
    """

    run: str
    step: str
    record: str
    how: Literal["waits", "recorded", "given_up"]
    in_a_row: int
    waited_s: float
    why: str
    claim: str


OfLeases = Acquired | AcquireFailed | Released | StateChanged | BeatMissed | Dropped | CleanupFailed
OfRuns = StepPassed | RunOpened | RunEnded | RunQuarantined | AlertGiven | RecordDelayed
Event = OfLeases | OfRuns
Observer = Callable[[Event], object]
