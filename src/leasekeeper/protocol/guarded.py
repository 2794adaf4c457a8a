"""A write to a key of the user's own that happens only while a claim owns its name: compare and put in one transaction.

An unknown outcome is never guessed. The key is looked at first, and the put compares that nobody has written it since. So
the same transaction can be sent again after a lost reply, and at most one of the attempts has an effect. If one of them
failed because the key had been written, what stands there tells who wrote it: one write since the look that left exactly
the bytes of this put is this put; one write that left others is somebody else's, and this put can no longer happen; more
than one write hides whether this put was among them, and that is said.

A key that does not exist has no counters: written and deleted again, it looks as if nothing had been, and the compare would
let the same put through a second time. So a key's first put is not sent again once its reply was lost. It is looked for, and
if it is not what stands there, it is said that nobody can tell. Somebody else's write of the very same bytes in its place is
taken for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from leasekeeper.errors import OutcomeUnknown, StaleToken
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.keys import read_claim, read_epoch
from leasekeeper.protocol.plan import TXN, Fault, Kind, Plan, persist

if TYPE_CHECKING:
    from leasekeeper.protocol.context import Context

__all__ = ["Ownership", "put_if_owner"]

OPERATION = "put_if_owner"


@dataclass(frozen=True, slots=True)
class Ownership:
    """The claim that a write depends on."""

    name: str
    token: int
    key: bytes
    create_revision: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """A key as it was read: its write counters (0 when it does not exist) and its value."""

    mod_revision: int = 0
    create_revision: int = 0
    version: int = 0
    value: bytes = b""


def put_if_owner(ctx: Context, mine: Ownership, key: bytes, value: bytes, until: float) -> Plan[int]:
    """Put ``value`` at ``key`` while the claim owns its name: the revision of the put.

    Raises:
        StaleToken: the claim is gone; says who owns the name now. Nothing was written.
        OutcomeUnknown: a reply was lost and it could not be told in time whether the put happened.
        Fault: etcd could not be asked. Nothing was written.
    """
    own = m.created_at(mine.key, mine.create_revision)
    tell = (m.get(mine.key, keys_only=True), m.get(key), m.first_of(ctx.keys.queue(mine.name)), m.get(ctx.keys.epoch))
    reply = yield from persist(TXN, m.read_only(tell), now=ctx.now, until=until)
    while True:
        _check_owner(ctx, mine, key, reply)
        before = _seen(reply)
        request = pb.TxnRequest(
            compare=(own, m.unchanged(key, before.mod_revision)), success=(m.put(key, value),), failure=tell
        )
        unseen: list[None] = []
        lost_reply, first = partial(unseen.append, None), not before.mod_revision
        try:
            reply = yield from persist(TXN, request, now=ctx.now, until=until, on_unknown=lost_reply, once=first)
            if reply.succeeded:
                return int(reply.header.revision)
        except Fault as fault:
            if not unseen:
                raise
            reply = yield from _look_again(ctx, key, tell, fault, until if first else ctx.now())
        if unseen and (revision := _written(before, _seen(reply), key, value)):
            return revision
        if ctx.now() >= until:
            _check_owner(ctx, mine, key, reply)
            raise Fault(Kind.RETRY, text=f"others wrote {_text(key)} again and again", operation="Txn")


def _look_again(
    ctx: Context, key: bytes, tell: tuple[pb.RequestOp, ...], fault: Fault, until: float
) -> Plan[pb.TxnResponse]:
    """What stands at the key after a reply was lost; OutcomeUnknown when that cannot be read either."""
    if ctx.now() < until:
        try:
            reply: pb.TxnResponse = yield from persist(TXN, m.read_only(tell), now=ctx.now, until=until)
        except Fault as again:
            fault = again
        else:
            return reply
    raise _unknown(key, fault.text or fault.cause.value)


def _seen(reply: pb.TxnResponse) -> _Seen:
    kvs = m.range_kvs(reply, 1)
    return _Seen(kvs[0].mod_revision, kvs[0].create_revision, kvs[0].version, kvs[0].value) if kvs else _Seen()


def _check_owner(ctx: Context, mine: Ownership, key: bytes, reply: pb.TxnResponse) -> None:
    """StaleToken when the claim's key is not there any more."""
    own, first = m.range_kvs(reply, 0), m.range_kvs(reply, 2)
    if own and own[0].create_revision == mine.create_revision:
        return
    epoch = read_epoch(m.range_kvs(reply, 3)).number
    owner = read_claim(ctx.keys, first[0], epoch) if first else None
    now = f"{owner.holder or 'somebody who left no name'} owns it, token {owner.token}" if owner else "nobody owns it"
    raise StaleToken(
        f"{_text(key)} was not written: token {mine.token} is no longer that of {mine.name!r}; now {now}",
        resource=_text(key),
        token=mine.token,
        highest=owner.token if owner else 0,
        holder=owner.holder if owner else "",
    )


def _written(before: _Seen, after: _Seen, key: bytes, value: bytes) -> int:
    """After lost replies: the revision of this put, or 0 if it did not happen and cannot any more.

    Raises OutcomeUnknown when what stands at the key does not tell.
    """
    if not before.mod_revision:
        if after.version != 1 or after.value != value:
            raise _unknown(key, "it did not exist, and may have been written and deleted since, or be written yet")
        return after.mod_revision
    if after.mod_revision == before.mod_revision:
        return 0  # only the claim's compare can have failed, and a claim that is gone never comes back
    if after.create_revision != before.create_revision or after.version != before.version + 1:
        raise _unknown(key, "it has been written more than once since")
    return after.mod_revision if after.value == value else 0


def _unknown(key: bytes, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the reply to a put of {_text(key)} was lost, and whether it happened cannot be told: {why}",
        operation=OPERATION,
        detail=why,
    )


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
