"""How a claim comes to stand in the queue: the put, what its replies mean, and what a dead lease or a restored store asks for.

An unknown outcome is never guessed. The put is repeated as it is: its compare makes a second execution show the key that
the first one made, and the nonce in the value tells whose it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.keys import UNREAD_EPOCH, Epoch, read_epoch
from leasekeeper.protocol.lend import Want
from leasekeeper.protocol.plan import RANGE, TXN, Cause, Fault, Kind, Plan, persist
from leasekeeper.protocol.prepared import prepared

if TYPE_CHECKING:
    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.session import Slot

__all__ = ["Displaced", "Place", "SlotTaken", "Taken", "enqueue", "enqueue_request", "persist_strict", "try_request"]


class Place(NamedTuple):
    """A place in the queue. ``ahead`` is the key before it (None: not known yet, or nobody).

    ``found`` is how many claims stood there when this one came (None: the reply that told it was lost).
    """

    create_revision: int
    epoch: Epoch
    ahead: bytes | None
    first: bool
    read_at: int
    found: int | None = None


class Displaced(Exception):
    """The claim cannot come to be owned: its lease ran out, somebody removed it, or the epoch was raised meanwhile."""


class SlotTaken(Exception):
    """Another key stands where the claim should go: a put of an earlier claim arrived late."""


class Taken(Exception):
    """A try found the name taken: by whom, and how many claims stand there."""

    def __init__(self, owner: pb.KeyValue, found: int) -> None:
        super().__init__()
        self.owner = owner
        self.found = found


RequestMaker = Callable[["Context", "Slot", Epoch], pb.TxnRequest]


def enqueue_request(ctx: Context, slot: Slot, epoch: Epoch) -> pb.TxnRequest:
    """Put the claim at the end of the queue."""
    return prepared(ctx.keys, slot, epoch).enqueue(slot.record)


def try_request(ctx: Context, slot: Slot, epoch: Epoch) -> pb.TxnRequest:
    """Put the claim if nobody claims the name."""
    queue = ctx.keys.queue(slot.name)
    return pb.TxnRequest(
        compare=(m.queue_empty(queue), m.epoch_is(ctx.keys.epoch, epoch)),
        success=(m.put(slot.key, slot.record, slot.session.lease_id),),
        failure=(m.get(slot.key), m.get(ctx.keys.epoch), m.first_of(queue)),
    )


def enqueue(ctx: Context, want: Want, slot: Slot, make: RequestMaker) -> Plan[Place]:
    """Put the claim: its place; `Taken` when a try found others there."""
    while True:
        epoch = ctx.epoch
        slot.nonce, slot.record = ctx.record(want.note, slot.session.timing.ttl, epoch.number)
        reply = yield from _commit(ctx, want, slot, make(ctx, slot, epoch))
        if reply.succeeded:
            if epoch is UNREAD_EPOCH:
                ctx.take_in(Epoch())
            return _put_done(slot, epoch, reply)
        own, first = m.range_kvs(reply, 0), m.range_kvs(reply, 2)
        found = read_epoch(m.range_kvs(reply, 1))
        ctx.learn(found, epoch)
        if own and own[0].value == slot.record:
            # Ours, from an attempt whose reply was lost.
            slot.create_revision = own[0].create_revision
            if found != epoch:
                raise Displaced
            is_first = bool(first) and first[0].key == slot.key
            return Place(own[0].create_revision, epoch, None, is_first, reply.header.revision)
        if own:
            ctx.sessions.haunt(slot)
            raise SlotTaken
        if found == epoch:
            if first:
                raise Taken(first[0], m.range_count(reply, 2))
            raise Fault(Kind.RETRY, Cause.MALFORMED, "a transaction failed without a reason", operation="Txn")
        if slot.session.retired:
            raise Displaced  # the epoch rose: through a new session


def _put_done(slot: Slot, epoch: Epoch, reply: pb.TxnResponse) -> Place:
    last = m.range_kvs(reply, 0)
    slot.create_revision = reply.header.revision
    if not last:
        return Place(reply.header.revision, epoch, None, True, reply.header.revision, 0)
    return Place(reply.header.revision, epoch, last[0].key, False, reply.header.revision, m.range_count(reply, 0))


def _commit(ctx: Context, want: Want, slot: Slot, request: pb.TxnRequest) -> Plan[pb.TxnResponse]:
    """Send the put until it is answered, with what a dead lease asks for."""
    try:
        return (yield from persist_strict(ctx, request, want.limit, partial(ctx.sessions.haunt, slot)))
    except Fault as fault:
        if fault.cause is not Cause.LEASE_NOT_FOUND:
            raise
        ctx.sessions.gone(slot.session)
        raise Displaced from None


def persist_strict(
    ctx: Context, request: pb.TxnRequest, until: float, on_unknown: Callable[[], None] | None = None
) -> Plan[pb.TxnResponse]:
    """Send a transaction until it is answered. A store that went back is believed only after its epoch was raised."""
    while True:
        since = ctx.epoch
        try:
            reply: pb.TxnResponse = yield from persist(
                TXN, request, now=ctx.now, until=until, on_unknown=on_unknown, strict=True
            )
        except Fault as fault:
            if fault.cause is not Cause.REWOUND or not (yield from _epoch_rose(ctx, since, until)):
                raise
        else:
            return reply


def _epoch_rose(ctx: Context, since: Epoch, until: float) -> Plan[bool]:
    """The store went back. Go on only if an operator has raised the epoch above the one that was known before."""
    reply = yield from persist(RANGE, pb.RangeRequest(key=ctx.keys.epoch), now=ctx.now, until=until)
    epoch = read_epoch(list(reply.kvs))
    rose = since is not UNREAD_EPOCH and epoch.number > since.number
    ctx.take_in(epoch)
    if rose:
        ctx.accept_rewind()
    return rose
