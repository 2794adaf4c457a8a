"""What the heartbeat asks its interpreter to do: one record for each kind of action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasekeeper.protocol.authority import Authority, State
    from leasekeeper.protocol.session import Session, Slot

__all__ = [
    "Action",
    "Beat",
    "Changed",
    "Deserted",
    "Ended",
    "Missed",
    "Proven",
    "ReadBack",
    "Remove",
    "Revoke",
    "Sweep",
    "Vacate",
]


@dataclass(frozen=True, slots=True)
class Beat:
    """Send a beat for this session now."""

    session: Session
    number: int


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Read these keys linearizably and report with `Heartbeat.read_back`, which is told of those that could be read."""

    session: Session
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Missed:
    """A beat was late or failed: use another endpoint. ``in_a_row`` counts since the last answered one."""

    session: Session
    in_a_row: int
    why: str


@dataclass(frozen=True, slots=True)
class Changed:
    """A lease turned to another state; tell whoever asked."""

    authority: Authority
    state: State


@dataclass(frozen=True, slots=True)
class Ended:
    """The session's lease is gone; wake everybody who waits through it."""

    session: Session


@dataclass(frozen=True, slots=True)
class Proven:
    """The session's proof moved; wake those who wait for it."""

    session: Session


@dataclass(frozen=True, slots=True)
class Remove:
    """The key of a slot that is left is there all the same: remove it, by compare on its create revision."""

    slot: Slot
    create_revision: int


@dataclass(frozen=True, slots=True)
class Deserted:
    """Nobody has this claim any more and nobody is removing it: give it up."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Vacate:
    """The slot's key is gone, and nobody else will say so."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Sweep:
    """Keys may live by the session's lease that none of its slots knows, brought back by a restore: remove them."""

    session: Session


@dataclass(frozen=True, slots=True)
class Revoke:
    """The session has been idle for its TTL: revoke its lease, unless somebody just came."""

    session: Session


Action = Beat | ReadBack | Missed | Changed | Ended | Proven | Deserted | Remove | Vacate | Sweep | Revoke
