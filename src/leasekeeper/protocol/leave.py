"""How a claim leaves the queue: given up while it waits, released when it is owned, withdrawn in the background.

All of them delete the key by compare, so they do nothing to anybody else's claim, however late they arrive and however often
they are repeated.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.plan import TIME_TO_LIVE, TXN, Call, Detach, Fault, Plan, ask
from leasekeeper.protocol.prepared import prepared

if TYPE_CHECKING:
    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.session import Session, Slot, Tending

__all__ = ["GIVE_UP_S", "Left", "give_up", "release", "remove", "sweep", "withdraw"]

# The clean-up of an interrupted acquire delays the interruption by at most this; then the background goes on.
GIVE_UP_S = 0.8
RELEASE_S = 3.0


def _withdrawal(ctx: Context, slot: Slot) -> pb.TxnRequest:
    """Delete the claim by compare, and read who owns the name then."""
    first = m.first_of(ctx.keys.queue(slot.name))
    known = slot.create_revision
    mine = m.created_at(slot.key, known) if known else m.value_is(slot.key, slot.record)
    return pb.TxnRequest(compare=(mine,), success=(m.delete(slot.key), first), failure=(first, first))


class Left(NamedTuple):
    """How a claim left. ``removed``: etcd deleted it now (True), it was gone already (False), not known (None)."""

    removed: bool | None
    owner: pb.KeyValue | None = None


def give_up(ctx: Context, slot: Slot) -> Plan[Left]:
    """Remove the claim of a waiter now or, if that cannot be confirmed, in the background; and read who owns the name.

    Whatever interrupts it, the claim is not renewed for its own sake from here on.
    """
    if not slot.record:
        ctx.sessions.vacate(slot)
        return Left(removed=False)
    return (yield from _leave(ctx, slot, _withdrawal(ctx, slot), GIVE_UP_S))


def release(ctx: Context, slot: Slot, tending: Tending | None = None) -> Plan[bool | None]:
    """Give an owned claim back; its gate is shut already, by whoever keeps ``tending`` since.

    True: etcd deleted it now, so nobody else can have owned the name before. False: it was gone already. None: not
    known; the background goes on.
    """
    request = prepared(ctx.keys, slot, ctx.epoch).release(slot.create_revision)
    left = yield from _leave(ctx, slot, request, RELEASE_S, tending)
    return left.removed


def _leave(
    ctx: Context, slot: Slot, request: pb.TxnRequest, timeout_s: float, tending: Tending | None = None
) -> Plan[Left]:
    # In this order: whoever sees that it is leaving sees that somebody is at it.
    tending = slot.tend(tending)
    slot.leaving = True
    if slot.session.gone:
        ctx.sessions.vacate(slot)
        return Left(removed=False)
    try:
        reply = yield Call(TXN, request, timeout_s)
    except Fault:
        yield Detach(partial(withdraw, ctx, slot))
        return Left(removed=None)
    except BaseException:
        yield Detach(partial(withdraw, ctx, slot))
        raise
    finally:
        del tending
    ctx.sessions.vacate(slot)
    owner = m.range_kvs(reply, 1)
    return Left(bool(reply.succeeded), owner[0] if owner else None)


def withdraw(ctx: Context, slot: Slot) -> Plan[bool]:
    """One attempt to remove a claim that is given up."""
    if not slot.session.gone:
        yield Call(TXN, _withdrawal(ctx, slot))
    ctx.sessions.vacate(slot)
    return True


def remove(ctx: Context, slot: Slot, create_revision: int) -> Plan[bool]:
    """One attempt to remove what was found at the key of a slot that is left: a put that arrived late."""
    if not slot.session.gone:
        yield Call(
            TXN, pb.TxnRequest(compare=(m.created_at(slot.key, create_revision),), success=(m.delete(slot.key),))
        )
    ctx.sessions.vacate(slot)
    return True


def sweep(ctx: Context, session: Session) -> Plan[bool]:
    """Remove the keys of a lease that are none of its session's claims: claims given back that a restore brought back.

    One of these may stand where a slot has put a later claim, which the restore took away: it is known by its create revision.
    Only for a session that takes no more claims: what none of its slots knows now, none will put.
    """
    if session.gone:
        return True
    reply: pb.LeaseTimeToLiveResponse
    reply = yield from ask(TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(ID=session.lease_id, keys=True))
    for key in reply.keys:
        slot = session.slots.get(key)
        if not key.startswith(ctx.keys.leases) or (slot is not None and not slot.create_revision):
            continue  # whoever is putting the slot's claim will see for himself
        stray = [m.under_lease(key, session.lease_id)]
        if slot is not None:
            stray.append(m.not_created_at(key, slot.create_revision))
        yield Call(TXN, pb.TxnRequest(compare=stray, success=(m.delete(key),)))
    return True
