"""Checkpoints of a run: versioned states that are changed by compare-and-set, each change together with a record that holds it.

A commit compares that the checkpoint is the one last read, by the revision of its last change, and counts it on by one. So two
commits never follow from one state, and a lost reply is told by the record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from leasekeeper.canonical import canonical
from leasekeeper.errors import LeasekeeperError
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.append import Appended, Entry, Unexpected, append
from leasekeeper.protocol.audit import corrupt
from leasekeeper.protocol.history import record
from leasekeeper.protocol.limits import check_length
from leasekeeper.protocol.outcome import RESULT_INLINE_MAX, joined
from leasekeeper.protocol.plan import RANGE, Plan, persist
from leasekeeper.protocol.receipt import Draft, text_of
from leasekeeper.protocol.recorded import believed
from leasekeeper.protocol.schema import Envelope, Loaded, encode, read_envelope, seal_envelope
from leasekeeper.run_errors import RecordTooLarge, RunFinished, StaleCheckpoint

if TYPE_CHECKING:
    from leasekeeper.protocol.append import Log
    from leasekeeper.protocol.run_keys import RunKeys
    from leasekeeper.run_records import Receipt

__all__ = ["Change", "change_of", "check_expected", "commit", "envelope_change", "read"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Change:
    """A checkpoint's next state. ``record`` is what the chain keeps of it; ``also`` are further puts (the one before, migrated).

    ``landed`` is told the record's number and the revision once it is committed.
    """

    name: str
    key: bytes
    mod_revision: int
    envelope: Envelope
    record: bytes
    also: tuple[pb.RequestOp, ...] = ()
    landed: Callable[[int, int], None] = lambda seq, revision: None

    def put(self, seq: int) -> pb.RequestOp:
        """Write it, with the number of the record that goes with it."""
        return m.put(self.key, self.stored(seq))

    def stored(self, seq: int) -> bytes:
        """Its bytes in etcd."""
        return seal_envelope(replace(self.envelope, seq=seq))


def change_of(
    keys: RunKeys,
    name: str,
    kind: type[T],
    value: T,
    *,
    over: Loaded[Any] | None,
    mod_revision: int,
    write_version: int | None = None,
) -> Change:
    """The change that makes ``value`` of what was read. All that can be wrong with it is found here, before anything is written.

    Raises NotSerialisable, RecordTooLarge, SchemaTooNew, ConfigError, MigrationFailed: see `leasekeeper.protocol.schema`.
    """
    key = keys.checkpoint(name)
    envelope = read_envelope(encode(value, kind, over=over, seq=1, write_version=write_version), key.decode())
    also: tuple[pb.RequestOp, ...] = ()
    if over is not None and over.migrated and envelope.version != over.version:
        also = (m.put(keys.checkpoint_before(name, over.version), over.stored),)
    return envelope_change(name, key, mod_revision, envelope, also=also)


def envelope_change(
    name: str,
    key: bytes,
    mod_revision: int,
    envelope: Envelope,
    *,
    also: tuple[pb.RequestOp, ...] = (),
) -> Change:
    """A change to this envelope; RecordTooLarge when its record has no room for it."""
    record = joined(
        data=canonical(envelope.data, "checkpoint"),
        min_reader=b"%d" % envelope.min_reader,
        n=b"%d" % envelope.n,
        name=text_of(name).encode(),
        schema=text_of(envelope.schema).encode(),
        version=b"%d" % envelope.version,
    )
    if len(record) > RESULT_INLINE_MAX:
        raise RecordTooLarge(what=f"checkpoint {name!r}", size=len(record), most=RESULT_INLINE_MAX)
    return Change(name, key, mod_revision, envelope, record, also)


def check_expected(change: Change | None, key: bytes, found: pb.KeyValue | None, run: str) -> None:
    """StaleCheckpoint when it was the checkpoint that was not as it was read."""
    if change is not None and key == change.key:
        raise StaleCheckpoint(run=run, name=change.name, expected=change.envelope.n - 1, found=_count(found))


def _count(found: pb.KeyValue | None) -> int:
    try:
        return 0 if found is None else read_envelope(found.value, found.key.decode("utf-8", "replace")).n
    except LeasekeeperError:
        return 0


def read(log: Log, name: str, until: float) -> Plan[pb.KeyValue | None]:
    """How a checkpoint stands, linearizably; None when it was never committed.

    Raises CorruptState when it is not what the record says that was written with it, or is gone, or older than what the run's
    records tell of. They are signed, where the run's are.
    """
    key = log.keys.checkpoint(name)
    known = log.account.checkpoint(key)
    request = pb.RangeRequest(key=key)
    reply: pb.RangeResponse = yield from persist(RANGE, request, now=log.ctx.now, until=until, strict=True)
    if not reply.kvs:
        if known:
            raise corrupt(key, f"it is gone, and was written with record {known}")
        return None
    found = reply.kvs[0]
    where = found.key.decode("utf-8", "replace")
    envelope = read_envelope(found.value, where)
    if envelope.seq < known:
        raise corrupt(
            key, f"it was put back: it is of record {envelope.seq}, and was written again with record {known}"
        )
    receipt = believed(log, (yield from record(log.ctx, log.keys, envelope.seq, until)))
    if not _is_of(receipt, name, envelope):
        raise corrupt(key, f"record {envelope.seq}, with which it was written, says something else")
    return found


def _is_of(receipt: Receipt, name: str, envelope: Envelope) -> bool:
    """Whether a record tells of this state of a checkpoint, or of a phase."""
    told = receipt.data.get("checkpoint") if receipt.kind == "outcome" else receipt.data
    if not isinstance(told, dict) or told.get("name") != name or told.get("n") != envelope.n:
        return False
    if receipt.kind == "phase":
        return envelope.data == {"phase": told.get("to")}
    state = (told.get("schema"), told.get("version"), told.get("min_reader"), told.get("data"))
    return state == (envelope.schema, envelope.version, envelope.min_reader, envelope.data)


def commit(log: Log, change: Change, kind: str = "checkpoint", record: bytes | None = None) -> Plan[Appended]:
    """Commit a change, with a record of it.

    Raises StaleCheckpoint when somebody else has changed it since it was read, RunFinished, RunTooLong; Fenced.
    """
    if log.head.status == "finished":
        raise RunFinished(run=log.run)
    check_length(log.run, log.head.seq, more=2)
    entry = Entry(
        Draft(kind, "", change.record if record is None else record, log.ctx.new_nonce()),
        puts=lambda seq: (change.put(seq), *change.also),
        expects=((change.key, change.mod_revision),),
        size=2 * len(change.record),
    )
    try:
        appended = yield from append(log, entry)
    except Unexpected as now:
        check_expected(change, now.key, now.found, log.run)
        raise
    change.landed(appended.seq, appended.revision)
    return appended
