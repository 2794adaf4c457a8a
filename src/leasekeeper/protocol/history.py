"""Reading a run's records, in pages, so that memory does not grow with their number; linearizable, and each page checked.

Reading on (`pages`) sees to it that every record carries the hash of the one before it, up to the head. So a record that was
changed, removed or put in another's place since it was written is found before anything is decided on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from leasekeeper.errors import ConfigError
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.head import Head, read_head
from leasekeeper.protocol.keys import prefix_end
from leasekeeper.protocol.plan import RANGE, TXN, Plan, persist
from leasekeeper.protocol.receipt import FIRST_PREV, UNSIGNED, digest, link, read_receipt, refuse_newer
from leasekeeper.protocol.run_keys import seq_of
from leasekeeper.run_errors import CorruptState

if TYPE_CHECKING:
    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.run_keys import RunKeys
    from leasekeeper.run_records import Receipt

__all__ = ["PAGE_MAX", "Page", "Walk", "last", "page", "record"]

# So many records of a reply, and about so many bytes: the next page's length follows from what the records took so far.
PAGE_FIRST = 64
PAGE_MAX = 500
PAGE_BYTES = 2 * 1024 * 1024

Page = list[tuple[int, bytes]]


def page(ctx: Context, keys: RunKeys, start: int, until: float, *, limit: int = PAGE_FIRST) -> Plan[Page]:
    """The records from number ``start`` on, at most ``limit``: their numbers and stored bytes."""
    request = pb.RangeRequest(key=keys.record(start), range_end=prefix_end(keys.records), limit=limit)
    reply: pb.RangeResponse = yield from persist(RANGE, request, now=ctx.now, until=until)
    return [(seq_of(kv.key), kv.value) for kv in reply.kvs]


class Walk:
    """Goes over the records in order and checks that each carries the hash of the one before it.

    ``signed_from`` is the first that is signed, 0 while none is: from it on all have to be.
    """

    __slots__ = ("_keys", "_limit", "hash", "seq", "signed_from")

    def __init__(self, keys: RunKeys) -> None:
        self._keys = keys
        self._limit = PAGE_FIRST
        self.seq = 0
        self.hash = FIRST_PREV
        self.signed_from = 0

    def next_page(self, ctx: Context, last_seq: int, until: float) -> Plan[Page]:
        """The next page up to number ``last_seq``; empty at the end. CorruptState for a broken chain."""
        if self.seq >= last_seq:
            return []
        limit = min(self._limit, last_seq - self.seq)
        found = yield from page(ctx, self._keys, self.seq + 1, until, limit=limit)
        if not found:
            raise self._broken("it is not there, and later ones were written")
        self._take_in(found)
        size = sum(len(stored) for _, stored in found)
        self._limit = max(1, min(PAGE_MAX, PAGE_BYTES * len(found) // size))
        return found

    def _take_in(self, found: Page) -> None:
        hash_, expected = self.hash, self.seq + 1
        for seq, stored in found:
            if seq != expected or link(stored) != (hash_, seq):
                self.seq = expected - 1
                self._say_what_is_wrong(seq, stored)
            if not stored.endswith(UNSIGNED):
                self.signed_from = self.signed_from or seq
            elif self.signed_from:
                self.seq = seq - 1
                raise self._broken("it is not signed, and those before it are")
            hash_, expected = digest(stored), seq + 1
        self.hash, self.seq = hash_, expected - 1

    def _say_what_is_wrong(self, seq: int, stored: bytes) -> NoReturn:
        if seq != self.seq + 1:
            raise self._broken("it is not there, and later ones are")
        refuse_newer(stored, self._keys.record(seq).decode())
        raise self._broken("it does not carry its number and the hash of the one before it")

    def _broken(self, why: str) -> CorruptState:
        where = self._keys.record(self.seq + 1).decode()
        return CorruptState(f"{where} cannot be trusted: {why}", where=where, why=why)


def record(ctx: Context, keys: RunKeys, seq: int, until: float) -> Plan[Receipt]:
    """One record; CorruptState when it is not there or not what was written."""
    where = keys.record(seq)
    reply = yield from persist(RANGE, pb.RangeRequest(key=where), now=ctx.now, until=until)
    if not reply.kvs:
        raise CorruptState(f"{where.decode()} is not there", where=where.decode(), why="it is not there")
    return checked(keys, seq, reply.kvs[0].value)


def checked(keys: RunKeys, seq: int, stored: bytes) -> Receipt:
    """A record from its bytes, if it is the one of this number and run."""
    where = keys.record(seq).decode()
    receipt = read_receipt(stored, where)
    if receipt.seq != seq or (receipt.workflow, receipt.id) != (keys.name.workflow, keys.name.id):
        raise CorruptState(f"{where} cannot be trusted: it belongs elsewhere", where=where, why="it belongs elsewhere")
    return receipt


def head_of(ctx: Context, keys: RunKeys, until: float) -> Plan[Head]:
    """A run's head, linearizably; ConfigError for a run that was never begun."""
    reply = yield from persist(RANGE, pb.RangeRequest(key=keys.head), now=ctx.now, until=until, strict=True)
    if not reply.kvs:
        raise ConfigError(field="run", value=keys.name.text, expected="a run that was begun; see: leasekeeper runs ls")
    return read_head(reply.kvs[0].value, keys.head.decode())


def last(ctx: Context, keys: RunKeys, until: float) -> Plan[tuple[Head, Receipt] | None]:
    """The head and the last record, of one moment; None for a run that was never begun."""
    kinds = pb.RangeRequest
    newest = pb.RequestOp(
        request_range=kinds(
            key=keys.records,
            range_end=prefix_end(keys.records),
            limit=1,
            sort_order=kinds.DESCEND,
            sort_target=kinds.KEY,
        )
    )
    reply = yield from persist(TXN, m.read_only((m.get(keys.head), newest)), now=ctx.now, until=until, strict=True)
    heads, records = m.range_kvs(reply, 0), m.range_kvs(reply, 1)
    if not heads and not records:
        return None
    where = keys.head.decode()
    if not heads or not records:
        raise CorruptState(f"{where} and the records do not go together", where=where, why="one of them is gone")
    head = read_head(heads[0].value, where)
    receipt = checked(keys, seq_of(records[0].key), records[0].value)
    if (receipt.seq, receipt.hash) != (head.seq, head.hash):
        why = f"it names record {head.seq}, and the last one is {receipt.seq}"
        raise CorruptState(f"{where} cannot be trusted: {why}", where=where, why=why)
    return head, receipt
