"""The one transaction that adds to a run: records, its head, and what they change, all or nothing, under the fence.

It compares that the owner's claim stands as it was created, that the head is the one last seen, that the epoch is unchanged,
that no record stands where its records go, and what each entry expects of its own keys; where an intent is among them, also
that no halt covers the run. So a run's records follow one another without hole or fork, and nobody whose lease is over adds
to them.

Entries that come while a transaction is under way share the next one. Whoever finds nobody leading leads: takes what waits,
sends it, and tells the others. A reply that was lost is never guessed: just the same transaction is sent again, and if its
first record is there, with its nonce, all of it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from leasekeeper.errors import StaleToken
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import halt as halts
from leasekeeper.protocol import messages as m
from leasekeeper.protocol import run_keys
from leasekeeper.protocol.head import Head, read_head
from leasekeeper.protocol.plan import TXN, Fault, Kind, Plan, Signal, Wait, persist
from leasekeeper.protocol.receipt import digest
from leasekeeper.run_errors import RunHalted, RunRewound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.guarded import Ownership
    from leasekeeper.protocol.halt import Halt
    from leasekeeper.protocol.keys import Epoch
    from leasekeeper.protocol.receipt import Draft, Writer
    from leasekeeper.protocol.run_keys import RunKeys

__all__ = ["Appended", "Entry", "Fenced", "Line", "Log", "Unexpected", "append"]

# etcd takes 128 operations and as many compares per transaction by default; an entry has at most three of either.
ENTRIES_MAX = 32
BATCH_MAX_BYTES = 512 * 1024
# How long a transaction is tried before it is asked whether trying still makes sense.
SPELL_S = 10.0
# Why a transaction was refused is told by its reply, and each time something of it is settled; more often is no race.
TRIES_MAX = 100


class Fenced(Exception):
    """The claim is gone: somebody else may own the run. Never leaves the library."""


class Unexpected(Exception):
    """A key that an entry writes is not as expected; ``found`` is how it stands, None: not at all. Never leaves the library."""

    def __init__(self, key: bytes, found: pb.KeyValue | None) -> None:
        super().__init__(key)
        self.key = key
        self.found = found


@dataclass(frozen=True, slots=True)
class Appended:
    """Where an entry stands, and the revision that put it there."""

    seq: int
    revision: int
    stored: bytes


def _as_it_is(head: Head) -> Head:
    return head


@dataclass(slots=True, eq=False)
class Entry:
    """What somebody wants added: a record and what it changes.

    ``puts`` gives, for the record's number, the further puts; ``expects`` names keys and the revisions of their last change
    (0: not there); ``change`` is what becomes of the head. An ``intent`` is refused where a halt covers the run.
    """

    draft: Draft
    puts: Callable[[int], tuple[pb.RequestOp, ...]] = lambda _: ()
    expects: tuple[tuple[bytes, int], ...] = ()
    change: Callable[[Head], Head] = _as_it_is
    intent: bool = False
    size: int = 0
    bell: Signal | None = None
    appended: Appended | None = None
    error: BaseException | None = None

    @property
    def settled(self) -> bool:
        """Whether it is known what became of it."""
        return self.appended is not None or self.error is not None


class Line(Protocol):
    """Those who wait to add to one run. Every method returns at once and may be called from any thread."""

    def join(self, entry: Entry) -> None:
        """Stand at the end."""
        ...

    def withdraw(self, entry: Entry) -> None:
        """Stand in it no longer; nothing happens to one that was taken."""
        ...

    def lead(self) -> bool:
        """Become the one that sends, unless somebody is."""
        ...

    def leave(self) -> None:
        """Lead no longer, and wake the first that waits."""
        ...

    def take(self, entries_max: int, bytes_max: int) -> list[Entry]:
        """The first that wait, at least one if there is any."""
        ...

    def bell(self, entry: Entry) -> Signal:
        """A new signal for an entry; set when it is settled, or when it may lead."""
        ...

    def ring(self, entry: Entry) -> None:
        """Set it."""
        ...


@dataclass(slots=True, eq=False)
class Log:
    """A run that is owned: all that adding to it takes. ``head`` and ``mod_revision`` are compared, never trusted.

    ``alive`` tells whether authority can still come back; ``over`` is why nothing can be added any more.
    """

    ctx: Context
    keys: RunKeys
    mine: Ownership
    writer: Writer
    epoch: Epoch
    line: Line
    alive: Callable[[], bool]
    head: Head
    mod_revision: int
    over: BaseException | None = None
    under_way: _Built | None = None
    prepared: dict[bool, pb.TxnRequest] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """The run's text."""
        return self.keys.name.text


@dataclass(slots=True, eq=False)
class _Built:
    """A transaction as it was sent; sent again, it is this very one."""

    entries: list[Entry]
    stored: list[bytes]
    first: int
    head: Head
    request: pb.TxnRequest
    unseen: int = 0


def append(log: Log, entry: Entry) -> Plan[Appended]:
    """Add an entry: where it stands.

    Raises:
        Fenced: the claim is gone. Nothing was written.
        Unexpected: a key is not as the entry expected. Nothing was written.
        RunHalted: a halt covers the run; intents only. Nothing was written.
        RunRewound, StaleToken, CorruptState: the run's head went back, or the epoch was raised, or cannot be trusted.
        Fault: etcd cannot be asked, and what was not an intent has no authority any more that could come back.
    """
    line = log.line
    line.join(entry)
    try:
        while not entry.settled:
            if not line.lead():
                bell = line.bell(entry)
                if not line.lead():
                    if not entry.settled:
                        yield Wait((bell,), None)
                    continue
            try:
                yield from _serve(log)
            finally:
                line.leave()
    except BaseException:
        line.withdraw(entry)
        if line.lead():
            line.leave()  # it may have been its turn to lead: pass that on
        raise
    if entry.error is not None:
        raise entry.error
    assert entry.appended is not None
    return entry.appended


def _serve(log: Log) -> Plan[None]:
    """Send one transaction of what waits, until it is known what became of each entry."""
    built = log.under_way
    entries = log.line.take(ENTRIES_MAX, BATCH_MAX_BYTES) if built is None else built.entries
    known: list[Halt] = []
    for _ in range(TRIES_MAX):
        if built is None:
            entries = [entry for entry in entries if not entry.settled]
            if log.over is not None:
                _fail(log, entries, log.over)
            if not entries or log.over is not None:
                return
            built = log.under_way = _build(log, entries, known)
        try:
            reply = yield from _send(log, built)
        except Fault as fault:
            if not built.unseen:
                log.under_way = None
            _fail(log, built.entries, fault)
            return
        log.under_way = None
        if reply.succeeded:
            _landed(log, built, reply.header.revision)
            return
        known = _sort_out(log, built, reply)
        built = None
    _fail(log, entries, Fault(Kind.RETRY, text=f"others write to {log.run} again and again", operation="Txn"))


def _send(log: Log, built: _Built) -> Plan[pb.TxnResponse]:
    """Until it is answered. Evidence is sent as long as authority can come back; an intent that surely did not arrive is not."""
    ctx = log.ctx

    def unseen() -> None:
        built.unseen += 1

    while True:
        try:
            reply: pb.TxnResponse = yield from persist(
                TXN, built.request, now=ctx.now, until=ctx.now() + SPELL_S, on_unknown=unseen, strict=True
            )
        except Fault as fault:
            waits = built.unseen or not all(entry.intent for entry in built.entries)
            if fault.lasting or not waits or not log.alive():
                raise
        else:
            return reply


def _build(log: Log, entries: list[Entry], known: Sequence[Halt]) -> _Built:
    keys, head = log.keys, log.head
    at_ms = int(log.ctx.wall() * 1000)
    first = head.seq + 1
    request = _begun(log, first, intent=any(entry.intent for entry in entries), known=known)
    compares, puts, gets = request.compare, request.success, request.failure
    all_stored = []
    for entry in entries:
        seq = head.seq + 1
        stored = log.writer.seal(entry.draft, seq=seq, prev=head.hash, at_ms=at_ms)
        head = entry.change(head.after(seq, digest(stored), at_ms, len(stored)))
        where = keys.record(seq)
        compares.append(m.absent(where))
        puts.append(m.put(where, stored))
        puts.extend(entry.puts(seq))
        for key, revision in entry.expects:
            compares.append(_unchanged(key, revision))
            gets.append(m.get(key))
        all_stored.append(stored)
    puts.append(m.put(keys.head, head.stored()))
    return _Built(entries, all_stored, first, head, request)


def _begun(log: Log, first: int, *, intent: bool, known: Sequence[Halt]) -> pb.TxnRequest:
    """What every transaction compares, and reads when it is refused. What repeats is prepared once."""
    prepared = log.prepared.get(intent)
    if prepared is None:
        prepared = log.prepared[intent] = _prepared(log, intent=intent)
    request = pb.TxnRequest()
    request.CopyFrom(prepared)
    request.compare[1].mod_revision = log.mod_revision
    request.failure[3].request_range.key = log.keys.record(first)
    if known:
        request.compare[3].CopyFrom(halts.no_others(run_keys.halts(log.ctx.keys), known))
    return request


def _prepared(log: Log, *, intent: bool) -> pb.TxnRequest:
    keys = log.keys
    compares = [_owned(log), _unchanged(keys.head, 0), _same_epoch(log)]
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


def _unchanged(key: bytes, mod_revision: int) -> pb.Compare:
    kinds = pb.Compare
    return kinds(result=kinds.EQUAL, target=kinds.MOD, key=key, mod_revision=mod_revision)


def _landed(log: Log, built: _Built, revision: int) -> None:
    log.head, log.mod_revision = built.head, revision
    for index, entry in enumerate(built.entries):
        entry.appended = Appended(built.first + index, revision, built.stored[index])
        log.line.ring(entry)


def _fail(log: Log, entries: Sequence[Entry], error: BaseException) -> None:
    for entry in entries:
        if not entry.settled:
            entry.error = error
            log.line.ring(entry)


def _sort_out(log: Log, built: _Built, reply: pb.TxnResponse) -> list[Halt]:
    """Why a transaction was refused: settle what that settles. The halts that stand and do not cover the run."""
    record = m.range_kvs(reply, 3)
    if record and record[0].value == built.stored[0]:
        _landed(log, built, record[0].mod_revision)  # an earlier attempt, whose reply was lost
        return []
    if (over := _ended(log, reply)) is not None:
        log.over = over
        _fail(log, built.entries, over)
        return []
    _follow(log, m.range_kvs(reply, 2))
    if log.over is not None:
        _fail(log, built.entries, log.over)
        return []
    known, at = _see_halts(log, built, reply)
    for entry in built.entries:
        for key, revision in entry.expects:
            kvs = m.range_kvs(reply, at)
            at += 1
            if (kvs[0].mod_revision if kvs else 0) != revision:
                _fail(log, (entry,), Unexpected(key, kvs[0] if kvs else None))
    return known


def _see_halts(log: Log, built: _Built, reply: pb.TxnResponse) -> tuple[list[Halt], int]:
    """Refuse the intents that a halt covers: the halts that stand, and where the reply goes on."""
    if not any(entry.intent for entry in built.entries):
        return [], 4
    known = halts.halts(m.range_kvs(reply, 4), run_keys.halts(log.ctx.keys))
    if (found := halts.covering(known, log.run)) is not None:
        for entry in built.entries:
            if entry.intent:
                _fail(log, (entry,), _halted(log, entry, found))
    return known, 5


def _ended(log: Log, reply: pb.TxnResponse) -> BaseException | None:
    """Why the owner may not add any more."""
    own = m.range_kvs(reply, 0)
    if not own or own[0].create_revision != log.mine.create_revision:
        return Fenced(log.run)
    epoch = m.range_kvs(reply, 1)
    if (epoch[0].value if epoch else None) != log.epoch.stored:
        return StaleToken(
            f"the epoch was raised: token {log.mine.token} of {log.mine.name!r} is of an older one; begin the run anew",
            resource=log.run,
            token=log.mine.token,
        )
    return None


def _follow(log: Log, kvs: list[pb.KeyValue]) -> None:
    """Take in a head that an operator moved on; one that went back ends everything."""
    if not kvs:
        log.over = RunRewound(run=log.run, have=0, known=log.head.seq)
        return
    if kvs[0].mod_revision == log.mod_revision:
        return
    try:
        found = read_head(kvs[0].value, kvs[0].key.decode())
    except Exception as error:  # noqa: BLE001 - CorruptState: whoever waits is told
        log.over = error
        return
    same = found.seq == log.head.seq and found.hash == log.head.hash
    if found.gen != log.head.gen or (found.seq <= log.head.seq and not same):
        log.over = RunRewound(run=log.run, have=found.seq, known=log.head.seq)
        return
    log.head, log.mod_revision = found, kvs[0].mod_revision


def _halted(log: Log, entry: Entry, found: Halt) -> RunHalted:
    return RunHalted(run=log.run, step=entry.draft.step, scope=found.scope, reason=found.reason, by=found.by)
