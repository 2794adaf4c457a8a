"""A run as it stands at one moment, for those who only look: read without its lease, a page at a time, and not judged.

Records are only ever added. So it is enough to see head and last record at one moment: what comes up to there afterwards is what
was there then, however long the reading takes, and nothing is asked of a revision that etcd may compact away meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol import run_keys
from leasekeeper.protocol.history import PAGE_BYTES, PAGE_FIRST, PAGE_MAX, page
from leasekeeper.protocol.keys import prefix_end
from leasekeeper.protocol.limits import VALUE_MAX
from leasekeeper.protocol.plan import TXN, Plan, persist
from leasekeeper.protocol.run_keys import seq_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.history import Page
    from leasekeeper.protocol.run_keys import RunKeys

__all__ = ["Pages", "Snapshot", "pieces", "snapshot"]

# A value of 8 MiB comes in 32 pieces; who writes may cut smaller ones.
PIECES_MAX = 1024


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Stored bytes, empty where there are none. ``end`` is the number in the last record's key."""

    identity: bytes
    meta: bytes
    head: bytes
    end: int


def snapshot(ctx: Context, keys: RunKeys, until: float) -> Plan[Snapshot | None]:
    """How a run stands, linearizably; None when nothing is there."""
    kinds = pb.RangeRequest
    last = pb.RequestOp(
        request_range=kinds(
            key=keys.records,
            range_end=prefix_end(keys.records),
            limit=1,
            keys_only=True,
            sort_order=kinds.DESCEND,
            sort_target=kinds.KEY,
        )
    )
    gets = (m.get(run_keys.identity(ctx.keys)), m.get(keys.meta), m.get(keys.head), last)
    reply = yield from persist(TXN, m.read_only(gets), now=ctx.now, until=until, strict=True)
    identity, meta, head, records = (m.range_kvs(reply, index) for index in range(4))
    if not meta and not head and not records:
        return None
    return Snapshot(_only(identity), _only(meta), _only(head), seq_of(records[0].key) if records else 0)


def _only(kvs: Sequence[pb.KeyValue]) -> bytes:
    return kvs[0].value if kvs else b""


class Pages:
    """Goes over the records of a snapshot in the order of their keys, whatever they hold."""

    __slots__ = ("_end", "_keys", "_limit", "_next")

    def __init__(self, keys: RunKeys, found: Snapshot) -> None:
        self._keys = keys
        self._end = found.end
        self._next = 1
        self._limit = PAGE_FIRST

    def next_page(self, ctx: Context, until: float) -> Plan[Page]:
        """The next records; empty at the end."""
        if self._next > self._end:
            return []
        found = yield from page(ctx, self._keys, self._next, until, limit=self._limit)
        found = [pair for pair in found if pair[0] <= self._end]
        self._next = found[-1][0] + 1 if found else self._end + 1
        size = sum(len(stored) for _, stored in found)
        self._limit = max(1, min(PAGE_MAX, PAGE_BYTES * len(found) // max(1, size)))
        return found


def pieces(ctx: Context, keys: RunKeys, digest: str, size: int, until: float) -> Plan[bytes]:
    """The bytes of a large value that is kept in etcd, ``size`` at most, whether or not they are all there; empty: none are."""
    found: list[bytes] = []
    left = min(size, VALUE_MAX)
    for number in range(PIECES_MAX):
        reply = yield from persist(TXN, m.read_only((m.get(keys.blob(digest, number)),)), now=ctx.now, until=until)
        kvs = m.range_kvs(reply, 0)
        if not kvs or left <= 0:
            break
        found.append(kvs[0].value[:left])
        left -= len(found[-1])
    return b"".join(found)
