"""Who owns what: reads for people and for `leasekeeper ls`. Linearizable, never a ground to act on."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.keys import Claim, prefix_end, read_claim, read_epoch
from leasekeeper.protocol.plan import CALL_TIMEOUT_S, RANGE, TIME_TO_LIVE, TXN, Cause, Fault, Plan, ask, persist

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasekeeper.protocol.context import Context

__all__ = [
    "PAGE",
    "TimeLeft",
    "claims",
    "head",
    "last_change",
    "owner",
    "page",
    "read_together",
    "still_there",
    "time_left",
]

# Keys of one reply when walking over names; with a 64 KiB record each this stays below gRPC's limits.
PAGE = 500
CLAIMS_MAX = 10_000
# etcd takes 128 operations per transaction by default.
GETS_MAX = 100


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


def read_together(ctx: Context, ops: Sequence[pb.RequestOp], until: float) -> Plan[pb.TxnResponse]:
    """Several linearizable reads, together at one revision.

    A full etcd of some releases (3.5.1 is one) refuses every transaction, also one that only reads. Then they are read one
    by one, since an operator has to see most of all when something is wrong; they are not of one revision then.
    """
    try:
        together: pb.TxnResponse = yield from persist(TXN, m.read_only(ops), now=ctx.now, until=until)
    except Fault as fault:
        if fault.cause is not Cause.NO_SPACE:
            raise
    else:
        return together
    apart = pb.TxnResponse(succeeded=True)
    for op in ops:
        reply: pb.RangeResponse = yield from persist(RANGE, op.request_range, now=ctx.now, until=until)
        apart.responses.add(response_range=reply)
    return apart


def head(ctx: Context, name: str, until: float) -> Plan[tuple[pb.KeyValue, Claim] | None]:
    """The claim that owns a name, as it is stored and as it reads; None when nobody claims it."""
    reply = yield from read_together(ctx, (m.first_of(ctx.keys.queue(name)), m.get(ctx.keys.epoch)), until)
    first, epoch = m.range_kvs(reply, 0), _epoch_in(ctx, reply)
    return (first[0], read_claim(ctx.keys, first[0], epoch)) if first else None


def owner(ctx: Context, name: str, until: float) -> Plan[Claim | None]:
    """The claim that owns a name; None when nobody claims it."""
    found = yield from head(ctx, name, until)
    return None if found is None else found[1]


def claims(ctx: Context, name: str, until: float) -> Plan[list[Claim]]:
    """The queue of a name, owner first; at most 10,000 of it."""
    queue = ctx.keys.queue(name)
    reply = yield from read_together(ctx, (_range(queue, queue, CLAIMS_MAX, by_age=True), m.get(ctx.keys.epoch)), until)
    epoch = _epoch_in(ctx, reply)
    return [read_claim(ctx.keys, kv, epoch) for kv in m.range_kvs(reply, 0)]


def page(ctx: Context, prefix: str, start: bytes | None, until: float) -> Plan[tuple[list[list[Claim]], bytes | None]]:
    """One page of queues of names that begin with ``prefix``: the queues, owner first, and where to go on.

    A queue that spans pages comes in pieces; each page is of one revision, the pages together are not.
    """
    begin = ctx.keys.starting(prefix)
    reply = yield from read_together(
        ctx, (_range(begin, start or begin, PAGE, by_age=False), m.get(ctx.keys.epoch)), until
    )
    epoch = _epoch_in(ctx, reply)
    kvs = m.range_kvs(reply, 0)
    found = [read_claim(ctx.keys, kv, epoch) for kv in kvs]
    queues = [
        sorted(queue, key=lambda claim: claim.create_revision)
        for _, queue in groupby(found, key=lambda claim: claim.name)
    ]
    more = bool(reply.responses) and reply.responses[0].response_range.more
    return queues, kvs[-1].key + b"\0" if more and kvs else None


def _epoch_in(ctx: Context, reply: pb.TxnResponse) -> int:
    """The number of the epoch in the second answer; remembered, so that a later rise is known for one."""
    epoch = read_epoch(m.range_kvs(reply, 1))
    ctx.take_in(epoch)
    return epoch.number


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """What etcd tells of a lease's time.

    ``alive`` with ``seconds`` left, whole ones, rounded down and negative when the lease is overdue; ``gone``: etcd knows
    no such lease; ``unknown``: it did not tell, may not tell, or told what cannot be. ``granted`` is the TTL in seconds.
    """

    kind: Literal["alive", "gone", "unknown"]
    seconds: int = 0
    granted: int = 0


UNKNOWN = TimeLeft("unknown")
# etcd grants no more than this, and nobody can be overdue for longer than that; the rest is an artefact of a new leader.
TIME_MAX_S = 9_000_000_000


def time_left(lease_id: int, timeout_s: float = CALL_TIMEOUT_S) -> Plan[TimeLeft]:
    """How long etcd will keep a lease, as etcd tells it.

    Only for people. Expiry may come later than it says (a restart or a new leader re-arms leases), never earlier. Never
    fails: what cannot be asked is ``unknown``.
    """
    request = pb.LeaseTimeToLiveRequest(ID=lease_id)
    try:
        reply: pb.LeaseTimeToLiveResponse = yield from ask(TIME_TO_LIVE, request, timeout_s)
    except Fault as fault:
        return TimeLeft("gone") if fault.cause is Cause.LEASE_NOT_FOUND else UNKNOWN
    if reply.grantedTTL == 0 and reply.TTL < 0:
        return TimeLeft("gone")
    plausible = 0 < reply.grantedTTL <= TIME_MAX_S and -TIME_MAX_S <= reply.TTL <= reply.grantedTTL
    return TimeLeft("alive", reply.TTL, reply.grantedTTL) if plausible else UNKNOWN


def still_there(ctx: Context, claims: Sequence[Claim], until: float) -> Plan[set[str]]:
    """The keys of those ``claims`` that stand as they stood: same key, same create revision; read linearizably."""
    found: set[str] = set()
    for begin in range(0, len(claims), GETS_MAX):
        batch = claims[begin : begin + GETS_MAX]
        gets = [m.get(claim.key.encode(), keys_only=True) for claim in batch]
        reply = yield from read_together(ctx, gets, until)
        for index, claim in enumerate(batch):
            kvs = m.range_kvs(reply, index)
            if kvs and kvs[0].create_revision == claim.create_revision:
                found.add(claim.key)
    return found


def last_change(ctx: Context, prefix: bytes, until: float) -> Plan[tuple[int, int]]:
    """``(how many keys, latest revision of any)`` below a prefix: equal twice in a row means that nothing changed."""
    kinds = pb.RangeRequest
    request = kinds(
        key=prefix,
        range_end=prefix_end(prefix),
        limit=1,
        sort_order=kinds.DESCEND,
        sort_target=kinds.MOD,
        keys_only=True,
    )
    reply = yield from persist(RANGE, request, now=ctx.now, until=until)
    return reply.count, reply.kvs[0].mod_revision if reply.kvs else 0
