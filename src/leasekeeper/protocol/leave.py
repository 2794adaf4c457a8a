"""How a claim leaves the queue: given up while it waits, released when it is owned, withdrawn in the background.

All three delete the key by compare, so they do nothing to anybody else's claim, however late they arrive and however often
they are repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.plan import TXN, Call, Detach, Fault, Plan

if TYPE_CHECKING:
    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.session import Slot

__all__ = ["GIVE_UP_S", "Left", "give_up", "release", "withdraw"]

# The clean-up of an interrupted acquire delays the interruption by at most this; then the background goes on.
GIVE_UP_S = 0.8
RELEASE_S = 3.0


def _withdrawal(ctx: Context, slot: Slot, *, by_value: bool = False) -> pb.TxnRequest:
    """Delete the claim by compare, and read who owns the name then."""
    first = m.first_of(ctx.keys.queue(slot.name))
    known = slot.create_revision and not by_value
    mine = m.created_at(slot.key, slot.create_revision) if known else m.value_is(slot.key, slot.record)
    return pb.TxnRequest(compare=(mine,), success=(m.delete(slot.key), first), failure=(first, first))


@dataclass(frozen=True, slots=True)
class Left:
    """How a claim left. ``removed``: etcd deleted it now (True), it was gone already (False), not known (None)."""

    removed: bool | None
    owner: pb.KeyValue | None = None


def give_up(ctx: Context, slot: Slot, timeout_s: float = GIVE_UP_S) -> Plan[Left]:
    """Remove the claim now or, if that cannot be confirmed, in the background; and read who owns the name then.

    Whatever interrupts it, the claim is not renewed for its own sake from here on.
    """
    slot.leaving = True
    if not slot.record or slot.session.gone:
        ctx.sessions.vacate(slot)
        return Left(removed=False)
    try:
        reply = yield Call(TXN, _withdrawal(ctx, slot), timeout_s)
    except Fault:
        yield Detach(partial(withdraw, ctx, slot))
        return Left(removed=None)
    except BaseException:
        yield Detach(partial(withdraw, ctx, slot))
        raise
    ctx.sessions.vacate(slot)
    owner = m.range_kvs(reply, 1)
    return Left(bool(reply.succeeded), owner[0] if owner else None)


def withdraw(ctx: Context, slot: Slot, *, by_value: bool = False) -> Plan[bool]:
    """One attempt to remove a claim that is given up. ``by_value``: one that a late put brought back."""
    if not slot.session.gone:
        yield Call(TXN, _withdrawal(ctx, slot, by_value=by_value))
    ctx.sessions.vacate(slot)
    return True


def release(ctx: Context, slot: Slot, timeout_s: float = RELEASE_S) -> Plan[bool | None]:
    """Give an owned claim back; its gate is shut already.

    True: etcd deleted it now, so nobody else can have owned the name before. False: it was gone already. None: not
    known; the background goes on.
    """
    left = yield from give_up(ctx, slot, timeout_s)
    return left.removed
