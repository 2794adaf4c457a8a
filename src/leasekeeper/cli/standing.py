"""How long an owner may be expected to stay: claims with what etcd tells of their leases, for people and never to act on.

A TTL read is a lower bound: etcd lets a lease go late (a restart or a new leader counts it afresh), never early. So nothing is
called free before its key is gone, and a lease whose time is over while the key still stands is OVERDUE, not over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from leasekeeper.protocol.inspect import UNKNOWN, TimeLeft, still_there, time_left
from leasekeeper.protocol.keys import Claim
from leasekeeper.protocol.plan import CALL_TIMEOUT_S

if TYPE_CHECKING:
    from leasekeeper.runtime.core import Core

__all__ = ["Seen", "Standing", "see"]

# Leases asked for at once.
ASKED_AT_ONCE = 16


class Standing(Enum):
    """What a claim's lease says about its stay."""

    ALIVE = "alive"
    EXPIRING = "expiring"
    OVERDUE = "overdue"
    UNKNOWN = "unknown"
    LEASELESS = "leaseless"


@dataclass(frozen=True, slots=True)
class Seen:
    """A claim as it stands. ``left_s``: what etcd tells, negative when overdue, None when it tells nothing usable."""

    claim: Claim
    standing: Standing
    left_s: int | None = None
    granted_s: int | None = None


def standing_of(claim: Claim, left: TimeLeft) -> Seen:
    """A claim and what etcd told of its lease."""
    if claim.lease_id == 0:
        return Seen(claim, Standing.LEASELESS)
    if left.kind == "unknown":
        return Seen(claim, Standing.UNKNOWN)
    if left.kind == "gone":
        return Seen(claim, Standing.OVERDUE)
    standing = Standing.ALIVE if left.seconds > 0 else Standing.EXPIRING if left.seconds == 0 else Standing.OVERDUE
    return Seen(claim, standing, left.seconds, left.granted)


def see(core: Core, claims: Sequence[Claim], until: float) -> list[Seen]:
    """``claims`` with their standing, in order, without those that have gone meanwhile.

    ``until``: on the keeper's clock; leases that could not be asked for by then are UNKNOWN.
    """
    lefts = asyncio.run(_ask(core, {claim.lease_id for claim in claims if claim.lease_id}, until))
    seen = [standing_of(claim, lefts.get(claim.lease_id, UNKNOWN)) for claim in claims]
    # A claim that ended between the two reads is not overdue but gone: look again.
    overdue = [one.claim for one in seen if one.standing is Standing.OVERDUE and "\ufffd" not in one.claim.key]
    if not overdue:
        return seen
    there: set[str] = core.run(still_there(core.ctx, overdue, until))
    gone = {claim.key for claim in overdue} - there
    return [one for one in seen if one.claim.key not in gone]


async def _ask(core: Core, lease_ids: Iterable[int], until: float) -> dict[int, TimeLeft]:
    turn = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(lease_id: int) -> tuple[int, TimeLeft]:
        async with turn:
            left_s = until - core.now()
            if left_s <= 0:
                return lease_id, UNKNOWN
            return lease_id, await core.arun(time_left(lease_id, min(CALL_TIMEOUT_S, left_s)))

    return dict(await asyncio.gather(*map(ask, lease_ids)))
