"""Whether there is a run in etcd, or nothing at all of it: asked before anybody outside is told to forget it.

A run of which nothing is left has no chain that an operator's word could go into, so the word is kept by the anchors alone. That
is right only if nothing is left indeed. Where pieces are, the head that would say what they are is lost: that is damage, as
whoever opens the run is told. And where the run has an owner, who may just be beginning it, nobody can tell what will be there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from leasekeeper.errors import Misuse
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.audit import corrupt
from leasekeeper.protocol.head import Head, read_head
from leasekeeper.protocol.keys import prefix_end
from leasekeeper.protocol.plan import RANGE, TXN, Plan, persist
from leasekeeper.protocol.prune import pruned_up_to
from leasekeeper.protocol.receipt import digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasekeeper.protocol.chain import Point
    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.run_keys import RunKeys
    from leasekeeper.run_errors import CorruptState

__all__ = ["Held", "Whereabouts", "against", "beyond", "pieces", "whereabouts"]


Held = Literal["good", "behind", "another", "gone", "pruned"]
"""How etcd stands to what is remembered: has it, ends before it, has another record there, has none of it, or it was pruned."""


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
    piece = pb.RequestOp(request_range=_first_of(keys))
    gets = (m.get(keys.head), m.get(keys.tomb), piece, m.first_of(ctx.keys.queue(keys.name.lease)))
    reply = yield from persist(TXN, m.read_only(gets), now=ctx.now, until=until, strict=True)
    heads, tombs, left, owners = (m.range_kvs(reply, index) for index in range(4))
    pruned = pruned_up_to(tombs[0] if tombs else None)
    if heads:
        return Whereabouts(read_head(heads[0].value, keys.head.decode()), pruned)
    if left:
        raise _in_pieces(keys, left[0])
    if owners:
        raise Misuse(f"run {keys.name} has an owner, who may be beginning it: wait until its lease is free")
    return Whereabouts(None, pruned)


def beyond(ctx: Context, keys: RunKeys, gen: int, known: Sequence[Point], until: float) -> Plan[list[Point]]:
    """Of what is remembered of a run, the records that are later than all in etcd, or others than those of their number there.

    Ask whoever remembers first: records are only ever added, so what was remembered by then and is not there now is lost.

    Raises:
        Misuse: the run is not there any more, or in another generation.
    """
    gets = [m.get(keys.head), *(m.get(keys.record(seq)) for seq, _ in known)]
    reply = yield from persist(TXN, m.read_only(gets), now=ctx.now, until=until, strict=True)
    heads = m.range_kvs(reply, 0)
    head = read_head(heads[0].value, keys.head.decode()) if heads else None
    if head is None or head.gen != gen:
        raise Misuse(f"run {keys.name} was removed, or begun anew, meanwhile: look at it again")
    there = [{digest(kv.value) for kv in m.range_kvs(reply, index)} for index in range(1, len(gets))]
    found = zip(known, there, strict=True)
    return [(seq, hash_) for (seq, hash_), hashes in found if seq > head.seq or hash_ not in hashes]


def against(ctx: Context, keys: RunKeys, gen: int, known: Point, until: float) -> Plan[tuple[Held, int]]:
    """How the record that somebody remembers last of a generation of a run stands in etcd, and the number of the last one there.

    As in `beyond`, ask whoever remembers first. Of a generation before the present one nothing can be said but that it is over.
    """
    seq, hash_ = known
    gets = (m.get(keys.head), m.get(keys.tomb), m.get(keys.record(seq)))
    reply = yield from persist(TXN, m.read_only(gets), now=ctx.now, until=until, strict=True)
    heads, tombs, records = (m.range_kvs(reply, index) for index in range(3))
    if pruned_up_to(tombs[0] if tombs else None) >= gen:
        return "pruned", 0
    head = read_head(heads[0].value, keys.head.decode()) if heads else None
    if head is None or head.gen != gen:
        return ("gone", 0) if head is None or head.gen < gen else ("pruned", head.seq)
    if seq > head.seq:
        return "behind", head.seq
    return ("good" if hash_ in {digest(kv.value) for kv in records} else "another"), head.seq


def pieces(ctx: Context, keys: RunKeys, until: float) -> Plan[CorruptState | None]:
    """That something is there of a run which has no head; None: nothing is."""
    reply = yield from persist(RANGE, _first_of(keys), now=ctx.now, until=until, strict=True)
    return _in_pieces(keys, reply.kvs[0]) if reply.kvs else None


def _first_of(keys: RunKeys) -> pb.RangeRequest:
    root = keys.root.encode()
    return pb.RangeRequest(key=root, range_end=prefix_end(root), limit=1, keys_only=True)


def _in_pieces(keys: RunKeys, piece: pb.KeyValue) -> CorruptState:
    return corrupt(keys.head, f"it is not there, and {piece.key.decode('utf-8', 'replace')} is")
