"""Who owns what: reads for people and for `leasekeeper ls`. Linearizable, never a ground to act on."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.keys import Claim, prefix_end, read_claim, read_epoch
from leasekeeper.protocol.plan import TIME_TO_LIVE, TXN, Fault, Plan, ask, persist

if TYPE_CHECKING:
    from leasekeeper.protocol.context import Context

__all__ = ["PAGE", "claims", "page", "time_left"]

# Keys of one reply when walking over names; with a 64 KiB record each this stays below gRPC's limits.
PAGE = 500
CLAIMS_MAX = 10_000


def _range(prefix: bytes, start: bytes, limit: int, *, by_age: bool) -> pb.RequestOp:
    kinds = pb.RangeRequest
    return pb.RequestOp(
        request_range=kinds(
            key=start,
            range_end=prefix_end(prefix),
            limit=limit,
            sort_order=kinds.ASCEND if by_age else kinds.NONE,
            sort_target=kinds.CREATE if by_age else kinds.KEY,
        )
    )


def claims(ctx: Context, name: str, until: float) -> Plan[list[Claim]]:
    """The queue of a name, owner first; at most 10,000 of it."""
    queue = ctx.keys.queue(name)
    request = m.read_only((_range(queue, queue, CLAIMS_MAX, by_age=True), m.get(ctx.keys.epoch)))
    reply = yield from persist(TXN, request, now=ctx.now, until=until)
    epoch = read_epoch(m.range_kvs(reply, 1)).number
    return [read_claim(ctx.keys, kv, epoch) for kv in m.range_kvs(reply, 0)]


def page(ctx: Context, prefix: str, start: bytes | None, until: float) -> Plan[tuple[list[list[Claim]], bytes | None]]:
    """One page of queues of names that begin with ``prefix``: the queues, owner first, and where to go on.

    A queue that spans pages comes in pieces; each page is of one revision, the pages together are not.
    """
    begin = ctx.keys.starting(prefix)
    request = m.read_only((_range(begin, start or begin, PAGE, by_age=False), m.get(ctx.keys.epoch)))
    reply = yield from persist(TXN, request, now=ctx.now, until=until)
    epoch = read_epoch(m.range_kvs(reply, 1)).number
    kvs = m.range_kvs(reply, 0)
    found = [read_claim(ctx.keys, kv, epoch) for kv in kvs]
    queues = [
        sorted(queue, key=lambda claim: claim.create_revision)
        for _, queue in groupby(found, key=lambda claim: claim.name)
    ]
    more = bool(reply.responses) and reply.responses[0].response_range.more
    return queues, kvs[-1].key + b"\0" if more and kvs else None


def time_left(lease_id: int) -> Plan[int | None]:
    """Seconds until etcd lets a lease go, as etcd tells it; negative when overdue, None when unknown or not to be had.

    Only for people. Expiry may come later than it says (a restart or a new leader re-arms leases), never earlier.
    """
    try:
        reply: pb.LeaseTimeToLiveResponse = yield from ask(TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(ID=lease_id))
    except Fault:
        return None
    plausible = -(10**6) < reply.TTL <= max(reply.grantedTTL, 0) or reply.TTL < 0
    return reply.TTL if plausible and reply.grantedTTL > 0 else None
