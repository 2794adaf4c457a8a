"""What a run has done before: found again step by step, a page of records at a time.

A run that is resumed asks for its steps mostly in the order in which they were recorded. So records are read ahead in pages,
and only one page is kept. What is kept decides nothing that etcd does not say: a record never changes once it is there, each
carries its own hash, which is checked when it is used, and whatever does not hold is read anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.history import PAGE_BYTES, PAGE_FIRST, PAGE_MAX, checked, page, record
from leasekeeper.protocol.plan import RANGE, Plan, persist
from leasekeeper.protocol.pointer import ABSENT, Pointer, read_pointer
from leasekeeper.protocol.receipt import step_text, text_of
from leasekeeper.protocol.vouching import vouched
from leasekeeper.run_errors import ILLEGIBLE, CorruptState

if TYPE_CHECKING:
    from leasekeeper.protocol.append import Log
    from leasekeeper.run_records import Receipt

__all__ = ["Recorded", "outcome_of", "pointer_of"]

_OUTCOME = b'","kind":"outcome","'


class Recorded:
    """The steps that were done before this life began, up to record ``end``."""

    __slots__ = ("_limit", "_next", "_window", "end")

    def __init__(self, end: int) -> None:
        self.end = end
        self._next = 1
        self._limit = PAGE_FIRST
        self._window: dict[bytes, tuple[int, bytes]] = {}

    def find(self, log: Log, step: str, until: float) -> Plan[Receipt | Pointer]:
        """A step's outcome, or where it stands (`ABSENT`: it was never begun)."""
        found = self._kept(log, step)
        if found is None and self._window_is_used_up() and self._next <= self.end:
            yield from self._turn_page(log, until)
            found = self._kept(log, step)
        if found is None:
            pointer: Pointer = yield from pointer_of(log, step, until)
            if pointer.state != "done":
                return pointer
            found = yield from outcome_of(log, step, pointer, until)
            self._go_on_from(found.seq)
        return found

    def _window_is_used_up(self) -> bool:
        return not self._window

    def _go_on_from(self, seq: int) -> None:
        """Somebody skipped a part: read ahead from there."""
        if seq >= self._next:
            self._window.clear()
            self._next = seq + 1

    def _kept(self, log: Log, step: str) -> Receipt | None:
        kept = self._window.pop(text_of(step).encode(), None)
        if kept is None:
            return None
        try:
            receipt = believed(log, checked(log.keys, *kept))
        except ILLEGIBLE:
            return None
        return receipt if receipt.step == step and receipt.kind == "outcome" else None

    def _turn_page(self, log: Log, until: float) -> Plan[None]:
        start = self._next
        limit = min(self._limit, self.end + 1 - start)
        found = yield from page(log.ctx, log.keys, start, until, limit=limit)
        if self._next != start:
            return  # another thread or task has read it meanwhile
        if not found:
            self._next = self.end + 1
            return
        self._next = found[-1][0] + 1
        size = sum(len(stored) for _, stored in found)
        self._limit = max(1, min(PAGE_MAX, PAGE_BYTES * len(found) // size))
        for seq, stored in found:
            if _OUTCOME in stored:
                self._window[step_text(stored)] = (seq, stored)


def believed(log: Log, receipt: Receipt) -> Receipt:
    """A record of the run, if it is signed as it has to be: from the first one on that was; CorruptState when not."""
    return vouched(receipt, log.ring, signed=0 < log.signed_from <= receipt.seq)


def pointer_of(log: Log, step: str, until: float) -> Plan[Pointer]:
    """Where a step stands, linearizably; `ABSENT` when it was never begun."""
    request = pb.RangeRequest(key=log.keys.step(step))
    reply: pb.RangeResponse = yield from persist(RANGE, request, now=log.ctx.now, until=until, strict=True)
    return read_pointer(reply.kvs[0]) if reply.kvs else ABSENT


def outcome_of(log: Log, step: str, pointer: Pointer, until: float) -> Plan[Receipt]:
    """The record in which a step was done; CorruptState when it is another's."""
    receipt = believed(log, (yield from record(log.ctx, log.keys, pointer.outcome, until)))
    if receipt.step != step or receipt.kind not in ("outcome", "resolved"):
        where = log.keys.record(pointer.outcome).decode()
        why = f"it is not the outcome of {step!r}"
        raise CorruptState(f"{where} cannot be trusted: {why}", where=where, why=why)
    return receipt
