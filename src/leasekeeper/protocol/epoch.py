"""The epoch: the high part of every token, raised by an operator after etcd was restored from a backup.

A restore takes the revision back, so tokens made of it alone would repeat. A new epoch puts all new tokens above all old
ones. It has 19 bits and is derived from the time of the bump, in units of 15 minutes since 2026 (enough until 2040), so
that restoring the same backup a second time, which forgets the first bump, does not hand out the same epoch again. Within
one unit it would, and the n-th bump of a unit counts as one made n - 1 units later: whoever restores twice within 15
minutes for each bump passes a token of the first try with ``above``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from leasekeeper.errors import ConfigError, OutcomeUnknown
from leasekeeper.fencing import EPOCH_MAX, split_token
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.keys import Epoch, read_epoch, write_epoch
from leasekeeper.protocol.plan import RANGE, TXN, Fault, Plan, persist

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasekeeper.protocol.context import Context

__all__ = ["UNIT_S", "bump", "may_repeat_until", "next_epoch", "read"]

UNIT_S = 15 * 60
# 2026-01-01T00:00:00Z
ORIGIN_S = 1_767_225_600


def next_epoch(current: int, wall_s: float, above: int = 0) -> int:
    """The epoch of a bump: above ``current``, above that of the token ``above``, and not below the time's own.

    ConfigError when the 19 bits are used up.
    """
    by_time = max(0, int((wall_s - ORIGIN_S) // UNIT_S))
    floor = split_token(above)[0] if above else 0
    number = max(by_time, current + 1, floor + 1)
    if number > EPOCH_MAX:
        raise ConfigError(
            field="epoch", value=number, expected=f"at most {EPOCH_MAX}; look at the clock and at --above"
        )
    return number


def may_repeat_until(epoch: int) -> float:
    """Until which wall-clock time a bump on a store that has forgotten ``epoch`` could hand it out again."""
    return float(ORIGIN_S + (epoch + 1) * UNIT_S)


def read(ctx: Context, until: float) -> Plan[Epoch]:
    """The epoch as it is now, linearizably."""
    reply = yield from persist(RANGE, pb.RangeRequest(key=ctx.keys.epoch), now=ctx.now, until=until)
    epoch = read_epoch(list(reply.kvs))
    ctx.take_in(epoch)
    return epoch


def bump(ctx: Context, until: float, above: int = 0) -> Plan[Epoch]:
    """Raise the epoch: the new one. Two operators at once raise it once each, one after the other.

    Leases that are held go on under their old tokens; whoever acquires from now on gets larger ones.

    Raises:
        ConfigError: no epoch is left above that of ``above``.
        OutcomeUnknown: a reply was lost and the epoch could not be read back in time.
        Fault: etcd could not be asked; nothing was raised.
    """
    unseen: list[None] = []
    try:
        return (yield from _bump(ctx, until, above, partial(unseen.append, None)))
    except Fault as fault:
        if not unseen:
            raise
        raise OutcomeUnknown(
            f"the reply to a new epoch was lost, and the epoch could not be read back: {fault.text or fault.cause.value};"
            " look with `leasekeeper epoch show`",
            operation="epoch bump",
            detail=fault.text,
        ) from None


def _bump(ctx: Context, until: float, above: int, on_unknown: Callable[[], None]) -> Plan[Epoch]:
    while True:
        old = yield from read(ctx, until)
        wall_s = ctx.wall()
        # Also above what was known before the store went back.
        number = next_epoch(max(old.number, ctx.epoch.number), wall_s, above)
        value = write_epoch(number, at=wall_s, by=f"{ctx.holder} {ctx.new_nonce()}")
        request = pb.TxnRequest(compare=(m.epoch_is(ctx.keys.epoch, old),), success=(m.put(ctx.keys.epoch, value),))
        reply = yield from persist(TXN, request, now=ctx.now, until=until, on_unknown=on_unknown)
        # A repeated attempt fails its compare although the first one went through: the value tells.
        now = Epoch(number, value) if reply.succeeded else (yield from read(ctx, until))
        if now.stored == value:
            ctx.take_in(now)
            return now
