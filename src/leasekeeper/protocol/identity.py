"""The namespace's own number and secret, made once by whoever comes first and never changed.

The number says in every receipt which environment it belongs to. The secret makes idempotency keys that nobody outside the
namespace can guess and that are the same after any crash, on any host: HMAC of run, generation and step. It has to be kept
from those who could send requests with such keys, no more: whoever may read the namespace in etcd knows it.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol import run_keys
from leasekeeper.protocol.plan import TXN, Plan, persist
from leasekeeper.protocol.receipt import seal, text_of, unsealed
from leasekeeper.run_errors import CorruptState

if TYPE_CHECKING:
    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.run_keys import RunName

__all__ = ["Identity", "idempotency_key", "known_identity", "read_identity", "the_identity"]

FORMAT = 1
UUID_DIGITS = 32
SECRET_DIGITS = 64
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Identity:
    """A namespace's own; ``stored`` is what transactions compare."""

    uuid: str
    secret: bytes = field(repr=False)
    stored: bytes = field(repr=False)


def read_identity(stored: bytes, where: str) -> Identity:
    """The identity from its bytes; CorruptState for anything that was not written as one."""
    body, _, _ = unsealed(stored, where, "identity", FORMAT)
    uuid, secret = body.get("uuid"), body.get("secret")
    if not _is_hex(uuid, UUID_DIGITS) or not _is_hex(secret, SECRET_DIGITS) or body.get("v") != FORMAT:
        raise CorruptState(f"{where} cannot be trusted: it is no identity", where=where, why="it is no identity")
    return Identity(str(uuid), bytes.fromhex(str(secret)), stored)


def _is_hex(text: object, digits: int) -> bool:
    return isinstance(text, str) and len(text) == digits and _HEX.issuperset(text)


def the_identity(ctx: Context, until: float) -> Plan[Identity]:
    """The namespace's identity; made if there is none. Of several that make it at once, one wins and all get that one."""
    key = run_keys.identity(ctx.keys)
    # Repeating it after a lost reply changes nothing: it is there then.
    number = (ctx.new_nonce() + ctx.new_nonce())[:UUID_DIGITS]
    secret = (ctx.new_nonce() + ctx.new_nonce() + ctx.new_nonce())[:SECRET_DIGITS]
    value = seal(f'{{"secret":{text_of(secret)},"uuid":{text_of(number)},"v":{FORMAT}}}'.encode(), None)
    request = pb.TxnRequest(compare=(m.absent(key),), success=(m.put(key, value), m.get(key)), failure=(m.get(key),))
    reply = yield from persist(TXN, m.read_only((m.get(key),)), now=ctx.now, until=until)
    kvs = m.range_kvs(reply, 0)
    if not kvs:
        reply = yield from persist(TXN, request, now=ctx.now, until=until)
        kvs = m.range_kvs(reply, 1 if reply.succeeded else 0)
    return read_identity(kvs[0].value, key.decode())


def known_identity(ctx: Context, until: float) -> Plan[Identity]:
    """The namespace's identity where runs were begun, so that there was one; CorruptState when there is none.

    Another one would give the steps of those runs other idempotency keys, so none is made.
    """
    key = run_keys.identity(ctx.keys)
    reply = yield from persist(TXN, m.read_only((m.get(key),)), now=ctx.now, until=until)
    kvs = m.range_kvs(reply, 0)
    if not kvs:
        where, why = key.decode(), "it is not there, and runs are"
        raise CorruptState(
            f"{where}: {why}: put it back from a backup of etcd before any run is begun", where=where, why=why
        )
    return read_identity(kvs[0].value, key.decode())


def idempotency_key(secret: bytes, name: RunName, gen: int, step: str) -> str:
    """The key of a step: 32 hex digits, the same for whoever asks, whenever."""
    message = "\0".join((name.workflow, name.id, str(gen), step)).encode()
    return hmac.digest(secret, message, hashlib.sha256).hex()[:32]
