"""A step that is done, and whose result is nowhere: whoever asks for it is stuck, until an operator says what it returns.

A result that is there is never replaced: what a step came to is no operator's to decide. It is nowhere where it could not be
recorded, where its pieces in etcd are no longer whole, or where it is kept outside of etcd and was seen to be missing there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasekeeper.errors import Misuse
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.history import record
from leasekeeper.protocol.keys import prefix_end
from leasekeeper.protocol.plan import RANGE, TXN, Plan, persist
from leasekeeper.protocol.pointer import read_pointer
from leasekeeper.protocol.receipt import digest
from leasekeeper.protocol.snapshot import pieces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.run_keys import RunKeys
    from leasekeeper.run_records import Receipt

__all__ = ["bare_outcome", "blob_of", "named_blob", "replaced_by"]


def bare_outcome(ctx: Context, keys: RunKeys, outcome: int, missing: str, until: float) -> Plan[int]:
    """The number of an outcome whose result is nowhere, or 0. ``missing``: the digest of one that was looked for outside of etcd.

    A record never changes, so this holds as long as the step's key names the same one. Misuse where nobody has looked yet.
    """
    receipt: Receipt = yield from record(ctx, keys, outcome, until)
    if isinstance(receipt.data.get("refused"), dict):
        return outcome
    if (found := blob_of(receipt.data)) is None:
        return 0
    name, size = found
    if digest((yield from pieces(ctx, keys, name, size, until))) == name:
        return 0
    prefix = keys.blobs(name)
    request = pb.RangeRequest(key=prefix, range_end=prefix_end(prefix), limit=1, keys_only=True)
    reply = yield from persist(RANGE, request, now=ctx.now, until=until, strict=True)
    if reply.kvs or name == missing:
        return outcome
    raise Misuse(
        f"the result of step {receipt.step!r} of run {keys.name} is kept outside of etcd, as {name}: put it back where it was; if"
        " it is lost there, name the place, so that this is seen (blobs=, --blobs DIR)"
    )


def blob_of(data: Mapping[str, Any]) -> tuple[str, int] | None:
    """Digest and size of the large result that an outcome names; None when it names none."""
    blob = data.get("blob")
    if not isinstance(blob, dict) or not isinstance(blob.get("digest"), str) or type(blob.get("size")) is not int:
        return None
    return blob["digest"], blob["size"]


def replaced_by(receipt: Receipt) -> int:
    """The number of the outcome in place of whose result an operator has given another in this record; 0: none."""
    instead = receipt.data.get("instead")
    return instead if receipt.kind == "resolved" and type(instead) is int else 0


def named_blob(ctx: Context, keys: RunKeys, step: str, until: float) -> Plan[str]:
    """The digest of the large result of a step that is done; empty when it has none."""
    reply = yield from persist(TXN, m.read_only((m.get(keys.step(step)),)), now=ctx.now, until=until, strict=True)
    kvs = m.range_kvs(reply, 0)
    pointer = read_pointer(kvs[0] if kvs else None)
    if pointer.state != "done":
        return ""
    receipt: Receipt = yield from record(ctx, keys, pointer.outcome, until)
    found = blob_of(receipt.data)
    return "" if found is None else found[0]
