"""The queue on a name: enqueue, wait for the turn, try, verify. How a claim leaves it again: `leave`.

Claims on a name are keys under one prefix, ordered by create revision; the first is the owner (the order of etcd's own
mutex, so both stand in one queue). Every plan here keeps one rule: whatever ends it early, at whichever yield, the claim
that it may have put is deleted by compare, or handed to the background to be.

An unknown outcome is never guessed. The put is repeated as it is: its compare makes a second execution show the key that
the first one made, and the nonce in the value tells whose it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from leasekeeper.errors import NotAcquired
from leasekeeper.fencing import make_token
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.authority import Authority, passes
from leasekeeper.protocol.keys import UNREAD_EPOCH, Claim, Epoch, read_claim, read_epoch
from leasekeeper.protocol.leave import GIVE_UP_S, give_up
from leasekeeper.protocol.lend import Want, lend
from leasekeeper.protocol.plan import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    RANGE,
    TXN,
    Cause,
    Fault,
    Kind,
    Plan,
    Sleep,
    Wait,
    Watch,
    persist,
)
from leasekeeper.protocol.prepared import prepared
from leasekeeper.protocol.session import Tending

if TYPE_CHECKING:
    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.session import Slot

__all__ = ["Want", "acquire", "try_acquire", "verify"]

SURVEY_S = 5.0
# A waiter looks at the queue this often even when its watch is silent: a watch from before a restore never speaks again.
LOOK_ANYWAY_S = 30.0


class Place(NamedTuple):
    """A place in the queue. ``ahead`` is the key before it (None: not known yet, or nobody)."""

    create_revision: int
    epoch: Epoch
    ahead: bytes | None
    first: bool
    read_at: int


class _Displaced(Exception):
    """The claim cannot come to be owned: its lease ran out, somebody removed it, or the epoch was raised meanwhile."""


class _SlotTaken(Exception):
    """Another key stands where the claim should go: a put of an earlier claim arrived late."""


class _TimeUp(Exception):
    """The time to wait is over."""


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
            except (_Displaced, _SlotTaken):
                want = want._replace(round_s=ctx.now())
                yield from give_up(ctx, slot)
            except _TimeUp:
                left = yield from give_up(ctx, slot)
                raise _not_acquired(want, ctx, left.owner) from None
            except BaseException:
                yield from give_up(ctx, slot)
                raise
        if want.until is not None and ctx.now() >= want.until:
            raise _not_acquired(want, ctx, None)
        if again_s:
            yield Sleep(again_s)
        again_s = min(1.0, 2 * again_s or 0.05)


def _claim(ctx: Context, want: Want, slot: Slot) -> Plan[Authority]:
    place = yield from _enqueue(ctx, want, slot, _enqueue_request)
    assert place is not None  # only a try can be turned away
    if not place.first:
        yield from _wait_turn(ctx, want, slot, place)
    return (yield from _own(ctx, want, slot, place))


def _own(ctx: Context, want: Want, slot: Slot, place: Place) -> Plan[Authority]:
    """The claim is first in line: wait until authority is fresh, and take it."""
    session = slot.session
    while True:
        changed = session.changed
        if session.gone:
            raise _Displaced
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
        raise _Displaced
    return authority


def _not_acquired(want: Want, ctx: Context, owner: pb.KeyValue | None) -> NotAcquired:
    claim = None if owner is None else read_claim(ctx.keys, owner, ctx.epoch.number)
    waited_s = ctx.now() - want.since
    return NotAcquired(
        f"{want.name!r} was not acquired in {waited_s:.1f} s: {_who(claim)}",
        name=want.name,
        owner=claim,
        waited_s=waited_s,
    )


def _who(claim: Claim | None) -> str:
    if claim is None:
        return "its owner could not be read"
    holder = claim.holder or "somebody who left no name"
    return f"owned by {holder}, token {claim.token}, lease {claim.lease_id:x}"


# ---------------------------------------------------------------- enqueue

RequestMaker = Callable[["Context", "Slot", Epoch], pb.TxnRequest]


def _enqueue_request(ctx: Context, slot: Slot, epoch: Epoch) -> pb.TxnRequest:
    return prepared(ctx.keys, slot, epoch).enqueue(slot.record)


def _try_request(ctx: Context, slot: Slot, epoch: Epoch) -> pb.TxnRequest:
    queue = ctx.keys.queue(slot.name)
    return pb.TxnRequest(
        compare=(m.queue_empty(queue), m.epoch_is(ctx.keys.epoch, epoch)),
        success=(m.put(slot.key, slot.record, slot.session.lease_id),),
        failure=(m.get(slot.key), m.get(ctx.keys.epoch), m.first_of(queue)),
    )


def _enqueue(ctx: Context, want: Want, slot: Slot, make: RequestMaker) -> Plan[Place | None]:
    """Put the claim: its place, or None when a try found the name taken."""
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
                raise _Displaced
            is_first = bool(first) and first[0].key == slot.key
            return Place(own[0].create_revision, epoch, None, is_first, reply.header.revision)
        if own:
            ctx.sessions.haunt(slot)
            raise _SlotTaken
        if found == epoch:
            if first:
                return None
            raise Fault(Kind.RETRY, Cause.MALFORMED, "a transaction failed without a reason", operation="Txn")
        if slot.session.retired:
            raise _Displaced  # the epoch rose: through a new session


def _put_done(slot: Slot, epoch: Epoch, reply: pb.TxnResponse) -> Place:
    last = m.range_kvs(reply, 0)
    slot.create_revision = reply.header.revision
    ahead = last[0].key if last else None
    return Place(reply.header.revision, epoch, ahead, not last, reply.header.revision)


def _commit(ctx: Context, want: Want, slot: Slot, request: pb.TxnRequest) -> Plan[pb.TxnResponse]:
    """Send the put until it is answered, with what a dead lease asks for."""
    try:
        return (yield from _persist(ctx, request, want.limit, partial(ctx.sessions.haunt, slot)))
    except Fault as fault:
        if fault.cause is not Cause.LEASE_NOT_FOUND:
            raise
        ctx.sessions.gone(slot.session)
        raise _Displaced from None


def _persist(
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
            raise _Displaced
        reply = yield from _survey(ctx, want, slot)
        own, first, before = (m.range_kvs(reply, i) for i in range(3))
        epoch = read_epoch(m.range_kvs(reply, 3))
        ctx.learn(epoch, place.epoch)
        if not own or own[0].create_revision != slot.create_revision:
            raise _Displaced
        if first and _is_head(first[0], slot):
            if epoch != place.epoch:
                # The epoch was raised while this claim waited: its token could be lower than one from before a restore.
                raise _Displaced
            return
        if until is not None and ctx.now() >= until:
            raise _TimeUp
        still, ahead, read_at = ahead, (before[0].key if before else None), reply.header.revision
        if ahead == still:
            # Woken for nothing: a watch that cannot tell must not make the waiter ask without a pause.
            yield Sleep(pause_s)
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
            return (yield from _persist(ctx, request, until))
        except Fault as fault:
            if slot.session.gone:
                raise _Displaced from None
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
    want = want._replace(until=want.limit)
    while True:
        if not ctx.sessions.at_hand(want.timing) and (yield from _taken(ctx, want)):
            return None
        session = yield from lend(ctx, want)
        tending = Tending()
        slot = ctx.sessions.occupy(session, want.name, tending)
        if slot is not None:
            try:
                place = yield from _enqueue(ctx, want, slot, _try_request)
                if place is not None:
                    return (yield from _own(ctx, want, slot, place))
                ctx.sessions.vacate(slot)
                return None
            except (_Displaced, _SlotTaken):
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


def _taken(ctx: Context, want: Want) -> Plan[bool]:
    """Whether anybody claims the name, before a lease is granted for nothing."""
    queue = ctx.keys.queue(want.name)
    since = ctx.epoch
    request = m.read_only((m.first_of(queue), m.get(ctx.keys.epoch)))
    reply = yield from persist(TXN, request, now=ctx.now, until=want.limit)
    ctx.learn(read_epoch(m.range_kvs(reply, 1)), since)
    return bool(m.range_kvs(reply, 0))


# ---------------------------------------------------------------- verify


def verify(ctx: Context, name: str, token: int, until: float = math.inf) -> Plan[bool]:
    """Whether ``token`` is the present owner's, by one linearizable read."""
    request = m.read_only((m.first_of(ctx.keys.queue(name)), m.get(ctx.keys.epoch)))
    since = ctx.epoch
    reply = yield from _persist(ctx, request, until)
    first, epoch = m.range_kvs(reply, 0), read_epoch(m.range_kvs(reply, 1))
    ctx.learn(epoch, since)
    return bool(first) and read_claim(ctx.keys, first[0], epoch.number).token == token
