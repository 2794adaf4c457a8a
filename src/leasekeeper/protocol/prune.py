"""Pruning: a finished run that was exported is removed from etcd, and a tombstone keeps its id from being used again in silence.

In this order, so that it can end anywhere and be begun again:

1. The export is held against the head: it ends with just this record, has each large value that is kept in etcd, and is signed
   where the run is. The records in etcd are looked at once more: what was damaged since is not removed without a word.
2. The **tombstone** is put, by compare with the head, and while nobody owns the run. From then on nobody opens it.
3. Everything of the run but head and first facts is deleted, at most 100 keys a transaction, each by compare with head and
   tombstone. Nothing can be added meanwhile: a finished run takes no record.
4. Head and first facts go last, together, and only when nothing else is left. So as long as anything of the run is there, its
   head says which run it was, and another generation cannot begin among what is left of it.

The tombstone is kept for as long as the callees of the run remember its idempotency keys. After that it can be swept: a run of
the same id would then make the same keys, and nobody remembers them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasekeeper.error_words import filled
from leasekeeper.errors import ConfigError, Misuse
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol import run_keys
from leasekeeper.protocol.chain import ChainCheck
from leasekeeper.protocol.head import Head, read_head
from leasekeeper.protocol.keys import prefix_end
from leasekeeper.protocol.plan import RANGE, TXN, Fault, Kind, Plan, persist
from leasekeeper.protocol.receipt import plain, seal, unsealed
from leasekeeper.protocol.run_look import record_page
from leasekeeper.run_errors import ILLEGIBLE, CorruptState

if TYPE_CHECKING:
    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.run_keys import RunKeys

__all__ = ["Exported", "Pruned", "Tomb", "prune", "pruned_up_to", "read_tomb", "sweep"]

FORMAT = 1
# Keys that are deleted in a transaction; etcd takes 128 operations by default.
DELETES_MAX = 100
TRIES_MAX = 10
# As long as keys go, it goes on.
PROGRESS_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What an export holds, once it was verified: up to which record of which generation.

    ``key_ttl_s`` is the longest time for which a callee of the run remembers an idempotency key, 0 for none. ``left_out`` are
    the digests of large values that its records name and that are not in the file: they are kept elsewhere, if at all.
    ``key_id`` names the key that signed the file as a whole, "" for none.
    """

    run: str
    gen: int
    seq: int
    hash: str
    key_ttl_s: int = 0
    left_out: frozenset[str] = frozenset()
    key_id: str = ""


@dataclass(frozen=True, slots=True)
class Tomb:
    """What is left of a pruned run. ``keep_until_ms`` and ``at_ms`` are by the wall clock of who pruned it."""

    gen: int
    seq: int
    hash: str
    keep_until_ms: int
    by: str
    at_ms: int
    mod_revision: int = 0

    def stored(self) -> bytes:
        """Its bytes in etcd."""
        body = {
            "at": self.at_ms,
            "by": self.by,
            "gen": self.gen,
            "hash": self.hash,
            "keep_until": self.keep_until_ms,
            "seq": self.seq,
            "v": FORMAT,
        }
        return seal(plain(body), None)


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was pruned: a run up to record ``seq``, ``deleted`` keys of it this time; its id is kept until ``keep_until_ms``."""

    run: str
    gen: int
    seq: int
    deleted: int
    keep_until_ms: int


def read_tomb(kv: pb.KeyValue) -> Tomb:
    """A tombstone; CorruptState for what was not written as one."""
    where = kv.key.decode("utf-8", "replace")
    body, _, _ = unsealed(kv.value, where, "tombstone", FORMAT)
    numbers = [body.get(name) for name in ("gen", "seq", "keep_until", "at", "v")]
    texts = [body.get(name) for name in ("hash", "by")]
    whole = all(type(each) is int and each >= 0 for each in numbers) and all(isinstance(each, str) for each in texts)
    if not whole or body["v"] != FORMAT:
        raise CorruptState(f"{where} cannot be trusted: it is no tombstone", where=where, why="it is no tombstone")
    return Tomb(body["gen"], body["seq"], body["hash"], body["keep_until"], body["by"], body["at"], kv.mod_revision)


def pruned_up_to(kv: pb.KeyValue | None) -> int:
    """The last generation of a run that was pruned, by its tombstone; 0: none was."""
    return 0 if kv is None else read_tomb(kv).gen


@dataclass(frozen=True, slots=True)
class _Seen:
    head: Head | None
    head_revision: int
    tomb: Tomb | None
    owned: bool


def prune(ctx: Context, keys: RunKeys, exported: Exported, until: float, *, damaged: bool = False) -> Plan[Pruned]:
    """Remove a finished run, or what an earlier attempt has left of it.

    ``damaged``: also where its records in etcd are not what was exported, which may show who has changed them.

    Raises:
        ConfigError: there is no such run, or the export is not of all that there is.
        Misuse: the run is not finished, or somebody owns it.
        CorruptState: head or tombstone cannot be trusted, or the records in etcd are not what was exported.
        Fault: etcd cannot be asked. Nothing is lost; do it again.
    """
    for _ in range(TRIES_MAX):
        seen = yield from _look(ctx, keys, until)
        if seen.head is None and seen.tomb is None:
            expected = "a run that is there; see: leasekeeper runs ls"
            raise ConfigError(field="run", value=keys.name.text, expected=expected)
        _check_exported(keys, seen, exported)
        if not _is_buried(seen):
            _check_ended(keys, seen)
            _check_signed(keys, seen, exported)
            yield from _check_blobs(ctx, keys, exported, until)
            if not damaged and not (yield from _check_records(ctx, keys, seen, until)):
                continue
            yield from _bury(ctx, keys, seen, exported, until)
            continue
        deleted = yield from _clear(ctx, keys, seen, until)
        if deleted is not None:
            assert seen.tomb is not None
            return Pruned(keys.name.text, exported.gen, exported.seq, deleted, seen.tomb.keep_until_ms)
    raise Fault(Kind.RETRY, text=f"others write to {keys.name} again and again", operation="Txn")


def _look(ctx: Context, keys: RunKeys, until: float) -> Plan[_Seen]:
    gets = (m.get(keys.head), m.get(keys.tomb), m.first_of(ctx.keys.queue(keys.name.lease)))
    reply = yield from persist(TXN, m.read_only(gets), now=ctx.now, until=until, strict=True)
    heads, tombs, owners = (m.range_kvs(reply, index) for index in range(3))
    head = read_head(heads[0].value, keys.head.decode()) if heads else None
    tomb = read_tomb(tombs[0]) if tombs else None
    return _Seen(head, heads[0].mod_revision if heads else 0, tomb, bool(owners))


def _is_buried(seen: _Seen) -> bool:
    """Whether the tombstone is that of what is there, or nothing is there any more."""
    return seen.tomb is not None and (seen.head is None or seen.tomb.gen >= seen.head.gen)


def _check_exported(keys: RunKeys, seen: _Seen, exported: Exported) -> None:
    there = seen.head or seen.tomb
    assert there is not None
    if exported.run != keys.name.text or (exported.gen, exported.seq, exported.hash) != (
        there.gen,
        there.seq,
        there.hash,
    ):
        told = f"{exported.run}, generation {exported.gen}, up to record {exported.seq}"
        expected = (
            f"an export of {keys.name.text}, generation {there.gen}, up to record {there.seq} of hash {there.hash}"
        )
        raise ConfigError(field="exported", value=told, expected=expected)


def _check_ended(keys: RunKeys, seen: _Seen) -> None:
    if seen.head is not None and seen.head.status != "finished":
        raise Misuse(f"run {keys.name} is {seen.head.status}, not finished: only finished runs are pruned")
    if seen.owned:
        raise Misuse(f"run {keys.name} has an owner, who may be reading it: wait until its lease is free")


def _check_signed(keys: RunKeys, seen: _Seen, exported: Exported) -> None:
    """Once the run is gone from etcd only its footer's signature shows that a signed run's export was not cut off."""
    if seen.head is not None and seen.head.key_id and not exported.key_id:
        told = f"an export of {keys.name.text} that is not signed"
        expected = (
            f"a signed one, as the run's records are, by key {seen.head.key_id!r}: set LEASEKEEPER_SIGNING_KEY_FILE and"
            " export it again"
        )
        raise ConfigError(field="exported", value=told, expected=expected)


def _check_blobs(ctx: Context, keys: RunKeys, exported: Exported, until: float) -> Plan[None]:
    """A large value that a record names and that is in etcd must be in the export, too."""
    prefix = f"{keys.root}blob/".encode()
    start = prefix
    while True:
        request = pb.RangeRequest(key=start, range_end=prefix_end(prefix), limit=1, keys_only=True)
        reply: pb.RangeResponse = yield from persist(RANGE, request, now=ctx.now, until=until)
        if not reply.kvs:
            return
        found = reply.kvs[0].key[len(prefix) :].partition(b"/")[0]
        start = prefix_end(prefix + found + b"/")
        digest = found.decode("utf-8", "replace")
        if digest in exported.left_out:
            expected = f"an export with the large value {digest}: leasekeeper runs export {keys.name}"
            raise ConfigError(field="exported", value=f"an export of {keys.name} without it", expected=expected)


def _check_records(ctx: Context, keys: RunKeys, seen: _Seen, until: float) -> Plan[bool]:
    """The export is good, so what is wrong with the records in etcd is lost with them: a person has to want that.

    False: somebody else has begun to remove them meanwhile.
    """
    assert seen.head is not None
    check = ChainCheck(head=(seen.head.seq, seen.head.hash), run=(keys.name.workflow, keys.name.id), gen=seen.head.gen)
    start: bytes | None = None
    while True:
        until = max(until, ctx.now() + PROGRESS_S)
        page, start = yield from record_page(ctx, keys, start, 0, until)
        for seq, stored in page:
            check.feed(seq, stored)
        if start is None:
            break
    verdict = check.close()
    if verdict.ok:
        return True
    again = yield from _look(ctx, keys, until)
    if again.head_revision != seen.head_revision or _is_buried(again):
        return False
    why = (
        f"its records in etcd were damaged since they were exported, which would be gone with them: {verdict.why}; look first:"
        f" {filled('leasekeeper runs verify RUN --export FILE', run=keys.name.text)}; to remove it all the same: --damaged"
    )
    raise CorruptState(f"run {keys.name}: {why}", where=keys.name.text, why=why)


def _bury(ctx: Context, keys: RunKeys, seen: _Seen, exported: Exported, until: float) -> Plan[None]:
    now_ms = int(ctx.wall() * 1000)
    before = seen.tomb.keep_until_ms if seen.tomb is not None else 0
    tomb = Tomb(
        gen=exported.gen,
        seq=exported.seq,
        hash=exported.hash,
        keep_until_ms=max(before, now_ms + 1000 * exported.key_ttl_s),
        by=ctx.holder,
        at_ms=now_ms,
    )
    compares = (
        m.unchanged(keys.head, seen.head_revision),
        m.unchanged(keys.tomb, seen.tomb.mod_revision if seen.tomb is not None else 0),
        m.queue_empty(ctx.keys.queue(keys.name.lease)),
    )
    request = pb.TxnRequest(compare=compares, success=(m.put(keys.tomb, tomb.stored()),))
    yield from persist(TXN, request, now=ctx.now, until=until, strict=True)  # whatever it says, look again


def _clear(ctx: Context, keys: RunKeys, seen: _Seen, until: float) -> Plan[int | None]:
    """Delete all that is left: how many keys; None when something has changed meanwhile."""
    assert seen.tomb is not None
    guard = (m.unchanged(keys.head, seen.head_revision), m.unchanged(keys.tomb, seen.tomb.mod_revision))
    deleted: int = 0
    while True:
        until = max(until, ctx.now() + PROGRESS_S)  # what makes progress may go on
        left = yield from _left(ctx, keys, until)
        last = not left
        if last and seen.head is None:
            return deleted
        compares = (*guard, *_nothing_else(keys)) if last else guard
        going = [keys.head, keys.meta, keys.unfinished] if last else left
        request = pb.TxnRequest(compare=compares, success=[m.delete(key) for key in going])
        reply = yield from persist(TXN, request, now=ctx.now, until=until, strict=True)
        if not reply.succeeded:
            return None  # or a reply was lost, and all was deleted by then: the next look tells
        deleted += sum(int(each.response_delete_range.deleted) for each in reply.responses)
        if last:
            return deleted


def _left(ctx: Context, keys: RunKeys, until: float) -> Plan[list[bytes]]:
    """The first keys of the run, without its head and its first facts."""
    root = keys.root.encode()
    request = pb.RangeRequest(key=root, range_end=prefix_end(root), limit=DELETES_MAX + 2, keys_only=True)
    reply: pb.RangeResponse = yield from persist(RANGE, request, now=ctx.now, until=until)
    return [kv.key for kv in reply.kvs if kv.key not in (keys.head, keys.meta)][:DELETES_MAX]


def _nothing_else(keys: RunKeys) -> list[pb.Compare]:
    """True when nothing of the run is there but its head and first facts: over an empty range etcd compares as 0."""
    root = keys.root.encode()
    bounds = (root, keys.head, keys.head + b"\0", keys.meta, keys.meta + b"\0", prefix_end(root))
    pairs = zip(bounds[::2], bounds[1::2], strict=True)
    kinds = pb.Compare
    return [
        kinds(result=kinds.EQUAL, target=kinds.CREATE, key=key, range_end=end, create_revision=0) for key, end in pairs
    ]


# ---------------------------------------------------------------- tombstones


def sweep(ctx: Context, start: bytes | None, until: float) -> Plan[tuple[int, int, bytes | None]]:
    """Remove one page of the tombstones whose time is over: how many went, how many stay, and where to go on.

    One that cannot be read stays, and so does one whose run is still being removed.
    """
    prefix = run_keys.tombs(ctx.keys)
    request = pb.RangeRequest(key=start or prefix, range_end=prefix_end(prefix), limit=DELETES_MAX)
    reply: pb.RangeResponse = yield from persist(RANGE, request, now=ctx.now, until=until)
    gone, now_ms = 0, ctx.wall() * 1000
    for kv in reply.kvs:
        try:
            over = read_tomb(kv).keep_until_ms <= now_ms
        except ILLEGIBLE:
            over = False
        if over:
            root = f"{ctx.keys.root}run/".encode() + kv.key[len(prefix) :] + b"/"
            delete = pb.TxnRequest(
                compare=(m.unchanged(kv.key, kv.mod_revision), m.queue_empty(root)), success=(m.delete(kv.key),)
            )
            done = yield from persist(TXN, delete, now=ctx.now, until=until, strict=True)
            gone += done.succeeded
    return gone, len(reply.kvs) - gone, reply.kvs[-1].key + b"\0" if reply.more and reply.kvs else None
