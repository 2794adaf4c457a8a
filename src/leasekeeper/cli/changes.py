"""What happened between two looks at the queues, as events in an order that makes sense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from leasekeeper.protocol.keys import Claim

__all__ = ["Change", "Event", "Queues", "changes"]

Event = Literal["owner", "waiting", "ended", "left", "free"]
Queues = Mapping[str, Sequence[Claim]]


@dataclass(frozen=True, slots=True)
class Change:
    """One event on a name: ``claim`` came or went; ``waiting`` claims wait behind the owner after the look.

    ``owner``: the claim owns the name now. ``waiting``: it waits now. ``ended``: it owned the name and is gone. ``left``: it
    waited and is gone. ``free``: nobody claims the name any more (``claim`` is None).
    """

    name: str
    event: Event
    claim: Claim | None
    waiting: int


def changes(before: Queues, after: Queues) -> list[Change]:
    """The changes of all names, name by name: who went, who owns it now, who came to wait."""
    return [
        change for name in sorted({*before, *after}) for change in _of(name, before.get(name, ()), after.get(name, ()))
    ]


def _of(name: str, before: Sequence[Claim], after: Sequence[Claim]) -> list[Change]:
    old, new = {_identity(c): c for c in before}, {_identity(c): c for c in after}
    waiting = max(0, len(after) - 1)
    found = [
        Change(name, "ended" if claim is before[0] else "left", claim, waiting)
        for identity, claim in old.items()
        if identity not in new
    ]
    if after and (not before or _identity(before[0]) != _identity(after[0])):
        found.append(Change(name, "owner", after[0], waiting))
    if before and not after:
        found.append(Change(name, "free", None, 0))
    found += [Change(name, "waiting", claim, waiting) for claim in after[1:] if _identity(claim) not in old]
    return found


def _identity(claim: Claim) -> tuple[str, int, str]:
    """The same key may hold another claim later, and after a restore even one of the same revision."""
    return claim.key, claim.create_revision, claim.nonce
