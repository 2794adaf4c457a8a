"""The queue on a name: acquire, wait for the turn, try, verify. How a claim comes into it: `place`; how it leaves: `leave`.

Claims on a name are keys under one prefix, ordered by create revision; the first is the owner (the order of etcd's own
mutex, so both stand in one queue). Every plan here keeps one rule: whatever ends it early, at whichever yield, the claim
that it may have put is deleted by compare, or handed to the background to be.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from leasekeeper.errors import NotAcquired
from leasekeeper.fencing import make_token
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.authority import Authority, passes
from leasekeeper.protocol.keys import Claim, read_claim, read_epoch
from leasekeeper.protocol.leave import GIVE_UP_S, give_up
from leasekeeper.protocol.lend import Want, lend
from leasekeeper.protocol.place import (
    Displaced,
    Place,
    SlotTaken,
    Taken,
    enqueue,
    enqueue_request,
    persist_strict,
    try_request,
)
from leasekeeper.protocol.plan import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    TXN,
    Fault,
    Kind,
    Plan,
    Sleep,
    Wait,
    Watch,
    persist,
    rest,
)
from leasekeeper.protocol.session import Tending

if TYPE_CHECKING:
    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.session import Slot

__all__ = ["Want", "acquire", "at_once", "try_acquire", "verify"]

SURVEY_S = 5.0
# A waiter looks at the queue this often even when its watch is silent: a watch from before a restore never speaks again.
LOOK_ANYWAY_S = 30.0


class _TimeUp(Exception):
    """The time to wait is over. ``owner`` is who owned the name at the last look, if there was one."""

    def __init__(self, owner: pb.KeyValue | None = None) -> None:
        super().__init__()
        self.owner = owner
        self.found: int | None = None


# ---------------------------------------------------------------- acquire


def acquire(ctx: Context, want: Want) -> Plan[Authority]:
    """Own the name: enqueue, wait for the turn, and return with fresh authority.

    A claim that vanishes while it waits is put again, at the end of the queue, as long as there is time; so is one
    that was put under an epoch that is over when its turn comes.

    Raises:
        NotAcquired: ``want.until`` has come; no claim is left behind.
        Fault: etcd could not be asked.
    """
    again_s = 0.0
    while True:
        session = yield from lend(ctx, want)
        tending = Tending()
        slot = ctx.sessions.occupy(session, want.name, tending)
        if slot is not None:
            try:
                return (yield from _claim(ctx, want, slot))
            except (Displaced, SlotTaken):
                want = want._replace(round_s=ctx.now())
                yield from give_up(ctx, slot)
            except _TimeUp as over:
                left = yield from give_up(ctx, slot)
                # Where the claim was deleted now, nobody behind it in the answer means that the name is free by now.
                owner = left.owner if left.removed else left.owner or over.owner
                raise _not_acquired(want, ctx, owner, over.found, free=bool(left.removed)) from None
            except BaseException:
                yield from give_up(ctx, slot)
                raise
        if want.until is not None and ctx.now() >= want.until:
            raise _not_acquired(want, ctx)
        if again_s:
            yield _rest(ctx, want, again_s)
        again_s = min(1.0, 2 * again_s or 0.05)


def _rest(ctx: Context, want: Want, pause_s: float) -> Sleep:
    return rest(pause_s, math.inf if want.until is None else want.until - ctx.now())


def _claim(ctx: Context, want: Want, slot: Slot) -> Plan[Authority]:
    place = yield from enqueue(ctx, want, slot, enqueue_request)
    try:
        if not place.first:
            yield from _wait_turn(ctx, want, slot, place)
        return (yield from _own(ctx, want, slot, place))
    except _TimeUp as over:
        over.found = place.found
        raise


def _own(ctx: Context, want: Want, slot: Slot, place: Place) -> Plan[Authority]:
    """The claim is first in line: wait until authority is fresh, and take it."""
    session = slot.session
    while True:
        changed = session.changed
        if session.gone:
            raise Displaced
        if passes(session.age(ctx.now()), 0.0, session.timing):
            break
        if not (yield Wait((changed, session.ended), want.until)):
            raise _TimeUp
        # Authority may have lapsed meanwhile: only the key itself shows that the claim is still the owner's.
        yield from _wait_turn(ctx, want, slot, place._replace(ahead=None))
    authority = Authority(
        slot,
        token=make_token(place.epoch.number, place.create_revision),
        create_revision=place.create_revision,
        timing=session.timing,
        now_s=ctx.now(),
    )
    if not ctx.sessions.adopt(authority):
        raise Displaced
    return authority


def _not_acquired(
    want: Want, ctx: Context, owner: pb.KeyValue | None = None, ahead: int | None = None, *, free: bool = False
) -> NotAcquired:
    claim = None if owner is None else read_claim(ctx.keys, owner, ctx.epoch.number)
    waited_s = ctx.now() - want.since
    return NotAcquired(
        f"{want.name!r} was not acquired in {waited_s:.1f} s: {_who(claim, free=free)}",
        name=want.name,
        owner=claim,
        ahead=ahead,
        waited_s=waited_s,
    )


def _who(claim: Claim | None, *, free: bool) -> str:
    if claim is None:
        return "nobody owns it any more" if free else "its owner could not be read"
    holder = claim.holder or "somebody who left no name"
    return f"owned by {holder}, token {claim.token}, lease {claim.lease_id:x}"


# ---------------------------------------------------------------- wait for the turn


def _wait_turn(ctx: Context, want: Want, slot: Slot, place: Place) -> Plan[None]:
    """Until the claim is first. Only the claim before it is watched, so a release wakes one waiter."""
    ahead, read_at = place.ahead, place.read_at
    session = slot.session
    until = want.until
    pause_s = BACKOFF_FIRST_S
    while True:
        if ahead is not None:
            watch = yield Watch((slot.key, ahead), read_at + 1)
            try:
                look_at = ctx.now() + LOOK_ANYWAY_S
                yield Wait((watch, session.ended), look_at if until is None else min(until, look_at))
            finally:
                watch.close()
        if session.gone:
            raise Displaced
        reply = yield from _survey(ctx, want, slot)
        own, first, before = (m.range_kvs(reply, i) for i in range(3))
        epoch = read_epoch(m.range_kvs(reply, 3))
        ctx.learn(epoch, place.epoch)
        if not own or own[0].create_revision != slot.create_revision:
            raise Displaced
        if first and _is_head(first[0], slot):
            if epoch != place.epoch:
                # The epoch was raised while this claim waited: its token could be lower than one from before a restore.
                raise Displaced
            return
        if until is not None and ctx.now() >= until:
            raise _TimeUp(first[0] if first else None)
        still, ahead, read_at = ahead, (before[0].key if before else None), reply.header.revision
        if ahead == still:
            # Woken for nothing: a watch that cannot tell must not make the waiter ask without a pause.
            yield _rest(ctx, want, pause_s)
            pause_s = min(BACKOFF_MAX_S, 2 * pause_s)


def _is_head(first: pb.KeyValue, slot: Slot) -> bool:
    """Whether the first claim of the queue is this one: the key alone could be a later claim of the same slot."""
    return first.key == slot.key and first.create_revision == slot.create_revision


def _survey(ctx: Context, want: Want, slot: Slot) -> Plan[pb.TxnResponse]:
    """Own key, owner, predecessor and epoch at one revision, linearizably; rides out an outage while the session lives."""
    queue = ctx.keys.queue(slot.name)
    before = m.last_of(queue, slot.create_revision)
    request = m.read_only((m.get(slot.key, keys_only=True), m.first_of(queue), before, m.get(ctx.keys.epoch)))
    while True:
        # One last look is owed to a claim whose turn came in the very last moment.
        last_call = ctx.now() + GIVE_UP_S
        until = last_call if want.until is not None and want.until < last_call else ctx.now() + SURVEY_S
        try:
            return (yield from persist_strict(ctx, request, until))
        except Fault as fault:
            if slot.session.gone:
                raise Displaced from None
            if fault.lasting:
                raise
            if want.until is not None and ctx.now() >= want.until:
                raise _TimeUp from None


# ---------------------------------------------------------------- try


def try_acquire(ctx: Context, want: Want) -> Plan[Authority | None]:
    """Own the name if nobody claims it, else None at once. A name that is taken is left without a trace.

    Raises:
        Fault: etcd could not be asked.
    """
    try:
        return (yield from _try(ctx, want))
    except Taken:
        return None


def at_once(ctx: Context, want: Want) -> Plan[Authority]:
    """`try_acquire` for whoever wants to know why not: NotAcquired tells who owns the name."""
    try:
        return (yield from _try(ctx, want))
    except Taken as taken:
        raise _not_acquired(want, ctx, taken.owner, taken.found) from None


def _try(ctx: Context, want: Want) -> Plan[Authority]:
    """Own the name, or `Taken`."""
    want = want._replace(until=want.limit)
    while True:
        if not ctx.sessions.at_hand(want.timing):
            yield from _look_first(ctx, want)
        session = yield from lend(ctx, want)
        tending = Tending()
        slot = ctx.sessions.occupy(session, want.name, tending)
        if slot is not None:
            try:
                place = yield from enqueue(ctx, want, slot, try_request)
                return (yield from _own(ctx, want, slot, place))
            except Taken:
                ctx.sessions.vacate(slot)
                raise
            except (Displaced, SlotTaken):
                yield from give_up(ctx, slot)
            except _TimeUp:
                yield from give_up(ctx, slot)
                raise Fault(Kind.RETRY, text="beats are answered too slowly", operation="LeaseKeepAlive") from None
            except BaseException:
                yield from give_up(ctx, slot)
                raise
        if ctx.now() >= want.limit:
            raise Fault(Kind.RETRY, text="the session ended again and again", operation="Txn")
        yield Sleep(0.05)


def _look_first(ctx: Context, want: Want) -> Plan[None]:
    """`Taken` when anybody claims the name, before a lease is granted for nothing."""
    queue = ctx.keys.queue(want.name)
    since = ctx.epoch
    request = m.read_only((m.first_of(queue), m.get(ctx.keys.epoch)))
    reply = yield from persist(TXN, request, now=ctx.now, until=want.limit)
    ctx.learn(read_epoch(m.range_kvs(reply, 1)), since)
    if first := m.range_kvs(reply, 0):
        raise Taken(first[0], m.range_count(reply, 0))


# ---------------------------------------------------------------- verify


def verify(ctx: Context, name: str, token: int, until: float = math.inf) -> Plan[bool]:
    """Whether ``token`` is the present owner's, by one linearizable read."""
    request = m.read_only((m.first_of(ctx.keys.queue(name)), m.get(ctx.keys.epoch)))
    since = ctx.epoch
    reply = yield from persist_strict(ctx, request, until)
    first, epoch = m.range_kvs(reply, 0), read_epoch(m.range_kvs(reply, 1))
    ctx.learn(epoch, since)
    return bool(first) and read_claim(ctx.keys, first[0], epoch.number).token == token
