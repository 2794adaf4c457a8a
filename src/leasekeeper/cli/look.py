"""Reading owners and queues for ``ls``, ``show`` and ``watch``: linearizable, or an error, never stale."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasekeeper.cli.standing import Seen, see
from leasekeeper.protocol import inspect
from leasekeeper.protocol.keys import Claim

if TYPE_CHECKING:
    from leasekeeper.runtime.core import Core

__all__ = ["Queue", "queue_of", "queues", "read_queues"]


@dataclass(frozen=True, slots=True)
class Queue:
    """Who claims a name: the owner first, then those who wait. ``read_at``: by this machine's wall clock."""

    name: str
    lock_key: str
    seen: tuple[Seen, ...]
    waiting: int
    read_at: float

    @property
    def owner(self) -> Seen | None:
        """Who owns the name."""
        return self.seen[0] if self.seen else None


def queue_of(core: Core, name: str, ask_s: float) -> Queue:
    """The whole queue of one name, with the standing of each claim."""
    until = core.until(ask_s)
    claims: list[Claim] = core.run(inspect.claims(core.ctx, name, until))
    seen = tuple(see(core, claims, until))
    return Queue(name, core.ctx.keys.lock_key(name), seen, max(0, len(seen) - 1), time.time())


def queues(core: Core, prefix: str, ask_s: float) -> list[Queue]:
    """All names that begin with ``prefix``, with the standing of their owners."""
    until = core.until(ask_s)
    found = dict(read_queues(core, prefix, until))
    owners = {one.claim.key: one for one in see(core, [claims[0] for claims in found.values()], until)}
    listed = []
    for name, claims in found.items():
        owner = owners.get(claims[0].key)
        # An owner that has just gone leaves its place to the next, whom nobody has asked about; the next look shows it.
        seen = (owner,) if owner is not None else tuple(see(core, claims[1:2], until))
        if seen:
            waiting = sum(claim.create_revision > seen[0].claim.create_revision for claim in claims)
            listed.append(Queue(name, core.ctx.keys.lock_key(name), seen, waiting, time.time()))
    return listed


def read_queues(core: Core, prefix: str, until: float) -> Iterator[tuple[str, list[Claim]]]:
    """Names and their claims, owner first; read page by page."""
    start: bytes | None = None
    held: list[Claim] = []
    while True:
        pages, start = core.run(inspect.page(core.ctx, prefix, start, until))
        for piece in pages:
            # A queue that spans pages comes in pieces.
            if held and held[0].name != piece[0].name:
                yield held[0].name, sorted(held, key=lambda claim: claim.create_revision)
                held = []
            held += piece
        if start is None:
            break
    if held:
        yield held[0].name, sorted(held, key=lambda claim: claim.create_revision)
