"""The transaction that adds entries to a run: what it compares, what it writes, what it reads when it is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import halt as halts
from leasekeeper.protocol import messages as m
from leasekeeper.protocol import run_keys
from leasekeeper.protocol.limits import TRANSACTION_MAX, check_transaction
from leasekeeper.protocol.log import Built, fail
from leasekeeper.protocol.receipt import digest
from leasekeeper.run_errors import RunFinished

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leasekeeper.protocol.halt import Halt
    from leasekeeper.protocol.head import Head
    from leasekeeper.protocol.log import Entry, Log

__all__ = ["EPOCH", "EXPECTED", "HALTS", "HEAD", "OWN", "RECORD", "build", "taken"]

# etcd takes 128 operations and as many compares per transaction by default; an entry puts at most four keys.
ENTRIES_MAX = 31
# What does not come behind the record that ends a run, whatever was the case when somebody began to write it.
BEFORE_THE_END = frozenset(("intent", "before", "checkpoint", "phase", "finished"))
# A record below this, with all that is put beside it, is far from what a transaction may hold: it is not measured.
MEASURED_FROM = 16 * 1024
# What a refused transaction reads, in this order: halts only where there is an intent, and then what each entry expected.
OWN, EPOCH, HEAD, RECORD, HALTS = range(5)
EXPECTED = HALTS
# Where the compares of head and halts stand.
HEAD_COMPARE, HALTS_COMPARE = 1, 3


def taken(waiting: Iterable[Entry]) -> list[Entry]:
    """The first that go into one transaction, at least one if there is any.

    None that writes what another one writes: etcd refuses to write a key twice in one transaction.
    """
    found: list[Entry] = []
    written: set[bytes] = set()
    size = 0
    for entry in waiting:
        if entry.settled or any(key in written for key, _ in entry.expects):
            continue
        size += entry.size
        if found and (len(found) == ENTRIES_MAX or size > TRANSACTION_MAX):
            break
        found.append(entry)
        written.update(key for key, _ in entry.expects)
    return found


def build(log: Log, entries: Sequence[Entry], known: Sequence[Halt]) -> Built:
    """Their transaction. ``known`` are halts that stand and do not cover the run. One that cannot be written fails alone."""
    head = log.head
    at_ms = int(log.ctx.wall() * 1000)
    first = head.seq + 1
    request = _begun(log, first, intent=any(entry.intent for entry in entries), known=known)
    built = Built([], [], first, head, request)
    for entry in entries:
        try:
            built.head = _add(log, built, entry, at_ms)
        except Exception as error:  # noqa: BLE001 - whoever wants it added is told; the others have nothing to do with it
            fail(log, (entry,), error)
    request.success.append(m.put(log.keys.head, built.head.stored()))
    return built


def _add(log: Log, built: Built, entry: Entry, at_ms: int) -> Head:
    before, request = built.head, built.request
    if before.status == "finished" and entry.draft.kind in BEFORE_THE_END:
        raise RunFinished(run=log.run)
    seq, where = before.seq + 1, log.keys.record(before.seq + 1)
    stored = log.writer.seal(entry.draft, seq=seq, prev=before.hash, at_ms=at_ms)
    head = entry.change(before.after(seq, digest(stored), at_ms, len(stored)))
    puts = (m.put(where, stored), *entry.puts(seq))
    if len(stored) >= MEASURED_FROM:
        check_transaction(pb.TxnRequest(success=puts))
    request.compare.append(m.absent(where))
    request.success.extend(puts)
    for key, revision in entry.expects:
        request.compare.append(m.unchanged(key, revision))
        request.failure.append(m.get(key))
    built.entries.append(entry)
    built.stored.append(stored)
    return head


def _begun(log: Log, first: int, *, intent: bool, known: Sequence[Halt]) -> pb.TxnRequest:
    """What every transaction compares, and reads when it is refused. What repeats is prepared once."""
    prepared = log.prepared.get(intent)
    if prepared is None:
        prepared = log.prepared[intent] = _prepared(log, intent=intent)
    request = pb.TxnRequest()
    request.CopyFrom(prepared)
    # By its bytes, spelled anew from what is remembered of it: what is remembered wrongly is refused.
    request.compare[HEAD_COMPARE].value = log.head.stored()
    request.failure[RECORD].request_range.key = log.keys.record(first)
    if intent and known:
        request.compare[HALTS_COMPARE].CopyFrom(halts.no_others(run_keys.halts(log.ctx.keys), known))
    return request


def _prepared(log: Log, *, intent: bool) -> pb.TxnRequest:
    keys = log.keys
    compares = [_owned(log), m.value_is(keys.head, b""), _same_epoch(log)]
    gets = [m.get(log.mine.key, keys_only=True), m.get(log.ctx.keys.epoch), m.get(keys.head), m.get(keys.record(1))]
    if intent:
        prefix = run_keys.halts(log.ctx.keys)
        compares.append(halts.none_at_all(prefix))
        gets.append(halts.all_of(prefix))
    return pb.TxnRequest(compare=compares, failure=gets)


def _owned(log: Log) -> pb.Compare:
    return m.created_at(log.mine.key, log.mine.create_revision)


def _same_epoch(log: Log) -> pb.Compare:
    return m.epoch_is(log.ctx.keys.epoch, log.epoch)
