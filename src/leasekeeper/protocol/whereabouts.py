"""Whether there is a run in etcd, or nothing at all of it: asked before anybody outside is told to forget it.

A run of which nothing is left has no chain that an operator's word could go into, so the word is kept by the anchors alone. That
is right only if nothing is left indeed. Where pieces are, the head that would say what they are is lost: that is damage, as
whoever opens the run is told. And where the run has an owner, who may just be beginning it, nobody can tell what will be there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasekeeper.errors import Misuse
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.audit import corrupt
from leasekeeper.protocol.head import Head, read_head
from leasekeeper.protocol.keys import prefix_end
from leasekeeper.protocol.plan import TXN, Plan, persist
from leasekeeper.protocol.prune import pruned_up_to

if TYPE_CHECKING:
    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.run_keys import RunKeys

__all__ = ["Whereabouts", "whereabouts"]


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """A run's head, None when nothing of the run is there, and the last of its generations that was pruned (0: none)."""

    head: Head | None
    pruned: int


def whereabouts(ctx: Context, keys: RunKeys, until: float) -> Plan[Whereabouts]:
    """Where a run is, linearizably, all of one moment.

    Raises:
        CorruptState: pieces of it are there, and its head is not; or head or tombstone cannot be trusted.
        Misuse: nothing of it is there, and it has an owner.
    """
    root = keys.root.encode()
    piece = pb.RequestOp(request_range=pb.RangeRequest(key=root, range_end=prefix_end(root), limit=1, keys_only=True))
    gets = (m.get(keys.head), m.get(keys.tomb), piece, m.first_of(ctx.keys.queue(keys.name.lease)))
    reply = yield from persist(TXN, m.read_only(gets), now=ctx.now, until=until, strict=True)
    heads, tombs, pieces, owners = (m.range_kvs(reply, index) for index in range(4))
    pruned = pruned_up_to(tombs[0] if tombs else None)
    if heads:
        return Whereabouts(read_head(heads[0].value, keys.head.decode()), pruned)
    if pieces:
        raise corrupt(keys.head, f"it is not there, and {pieces[0].key.decode('utf-8', 'replace')} is")
    if owners:
        raise Misuse(f"run {keys.name} has an owner, who may be beginning it: wait until its lease is free")
    return Whereabouts(None, pruned)
