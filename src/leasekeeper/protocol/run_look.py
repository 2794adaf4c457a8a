"""Runs as they stand in etcd, for people: which there are, and all that is kept of one; never a ground to act on.

What cannot be read is told as such and stops nobody from seeing the rest: it is when something is broken that people look. All
that is read of one run is read at one revision, so that its parts fit together while its owner goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from leasekeeper.errors import ConfigError
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import halt as halting
from leasekeeper.protocol import messages as m
from leasekeeper.protocol import run_keys
from leasekeeper.protocol.head import Head, read_head
from leasekeeper.protocol.identity import read_identity
from leasekeeper.protocol.inspect import read_together
from leasekeeper.protocol.keys import Claim, prefix_end, read_claim, read_epoch, unescape
from leasekeeper.protocol.plan import RANGE, Cause, Fault, Plan, persist
from leasekeeper.protocol.receipt import read_receipt
from leasekeeper.protocol.run_keys import RunKeys, RunName, seq_of
from leasekeeper.run_errors import ILLEGIBLE
from leasekeeper.run_records import RunView

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.halt import Halt

__all__ = ["Compacted", "Facts", "Listed", "Pair", "beside_page", "facts", "list_page", "record_page"]

T = TypeVar("T")
Pair = tuple[bytes, bytes]
"""A key and its value."""

# Runs of a page: each takes two reads of the 128 operations that etcd takes in a transaction.
RUNS = 50
# Keys looked through at once to find the next runs; a run of more keys is jumped over.
KEYS = 200
# A record has at most 64 KiB, a reply of gRPC's at most 4 MiB by default.
RECORDS = 50
UNREADABLE = "unreadable"


class Compacted(Exception):
    """etcd has compacted the revision at which a run was being read: read it anew. Never leaves the library."""


# ---------------------------------------------------------------- which runs there are


@dataclass(frozen=True, slots=True)
class Listed:
    """One run of a list: how it stands, or why that cannot be told. ``owner`` is who owns it now.

    ``last`` is the kind of its last record where it is not finished and nobody owns it, and ``error`` the type of the error that
    ended its last life by that record; "unreadable" where that cannot be read.
    """

    run: str
    view: RunView | None
    owner: Claim | None
    why: str = ""
    last: str = ""
    error: str = ""


def list_page(
    ctx: Context, prefix: str, start: bytes | None, until: float, *, ends: bool = False
) -> Plan[tuple[list[Listed], bytes | None]]:
    """One page of the runs whose text begins with ``prefix``, in order of their keys, and where to go on.

    Each page is of one revision as far as heads and owners go; the pages together are not. With ``ends`` the last record of each
    run that is neither finished nor owned is read as well, all of a page at once.
    """
    begin = run_keys.runs(ctx.keys, prefix)
    names, start = yield from _names(ctx, begin, start or begin, until)
    known = [name for name in names if isinstance(name, RunName)]
    gets = [m.get(ctx.keys.epoch)]
    for name in known:
        gets += [m.get(RunKeys(ctx.keys, name).head), m.first_of(ctx.keys.queue(name.lease))]
    listed: list[Listed] = []
    reply = (yield from read_together(ctx, gets, until)) if known else pb.TxnResponse()
    epoch = _epoch(m.range_kvs(reply, 0))
    at = 1
    for each in names:
        if not isinstance(each, RunName):
            listed.append(Listed(each, None, None, "its key is none of a run"))
            continue
        heads, owners = m.range_kvs(reply, at), m.range_kvs(reply, at + 1)
        owner = read_claim(ctx.keys, owners[0], epoch) if owners else None
        listed.append(_listed(each, heads[0] if heads else None, owner))
        at += 2
    return (yield from _ends(ctx, listed, known, until)) if ends else listed, start


def _ends(ctx: Context, listed: list[Listed], names: Sequence[RunName], until: float) -> Plan[list[Listed]]:
    """With the last record of each that is neither finished nor owned: a page of them fits into one reply."""
    keys = {name.text: RunKeys(ctx.keys, name) for name in names}
    left = [one for one in listed if one.view is not None and one.owner is None and one.view.status == "running"]
    gets = [m.get(keys[one.run].record(one.view.seq)) for one in left if one.view is not None]
    if not gets:
        return listed
    reply = yield from read_together(ctx, gets, until)
    ended = {one.run: _ended(one, m.range_kvs(reply, index)) for index, one in enumerate(left)}
    return [ended.get(one.run, one) for one in listed]


def _ended(one: Listed, records: Sequence[pb.KeyValue]) -> Listed:
    try:
        receipt = read_receipt(records[0].value, "it") if records else None
    except ILLEGIBLE:
        receipt = None
    if receipt is None:
        return replace(one, last=UNREADABLE, error=UNREADABLE)
    kind = receipt.data.get("type") if receipt.kind == "failed" else ""
    return replace(one, last=receipt.kind, error=kind if isinstance(kind, str) else UNREADABLE)


def _names(ctx: Context, begin: bytes, start: bytes, until: float) -> Plan[tuple[list[RunName | str], bytes | None]]:
    found: list[RunName | str] = []
    end = prefix_end(begin)
    while len(found) < RUNS:
        request = pb.RangeRequest(key=start, range_end=end, limit=KEYS, keys_only=True)
        reply: pb.RangeResponse = yield from persist(RANGE, request, now=ctx.now, until=until)
        for kv in reply.kvs:
            if kv.key < start:
                continue  # of a run that was found
            if len(found) == RUNS:
                return found, start
            name, start = _run_of(ctx, kv.key)
            found.append(name)
        if not reply.more:
            return found, None
    return found, start


def _run_of(ctx: Context, key: bytes) -> tuple[RunName | str, bytes]:
    """The run that a key belongs to, and the first key behind all of its keys; of a stray key its text."""
    prefix = run_keys.runs(ctx.keys)
    text = key[len(prefix) :].decode("utf-8", "replace")
    workflow, _, rest = text.partition("/")
    run_id, inside, _ = rest.partition("/")
    try:
        name = RunName(unescape(workflow), unescape(run_id))
        if inside and name.text == f"{workflow}/{run_id}":
            return name, prefix_end(prefix + f"{name.text}/".encode())
    except ConfigError:
        pass
    return text, key + b"\0"


def _epoch(kvs: list[pb.KeyValue]) -> int:
    """The epoch's number, for claims that do not tell their own; one that cannot be read is no ground to show nothing."""
    try:
        return read_epoch(kvs).number
    except ConfigError:
        return 0


def _listed(name: RunName, head: pb.KeyValue | None, owner: Claim | None) -> Listed:
    if head is None:
        return Listed(name.text, None, owner, "it has no head")
    now, why = _head(head.value, head.key.decode("utf-8", "replace"))
    if now is None:
        return Listed(name.text, None, owner, why)
    view = RunView(
        run=name.text,
        workflow=name.workflow,
        id=name.id,
        gen=now.gen,
        status=now.status,
        seq=now.seq,
        token=now.token,
        holder=now.holder,
        at_ms=now.at_ms,
        steps_done=now.done,
        in_doubt=now.doubts,
        restarts=now.restarts,
        owner=(owner.holder or "?") if owner is not None else "",
    )
    return Listed(name.text, view, owner)


def _head(stored: bytes, where: str) -> tuple[Head | None, str]:
    try:
        return read_head(stored, where), ""
    except ILLEGIBLE as error:
        return None, f"its head cannot be trusted: {error.why}"


# ---------------------------------------------------------------- all of one run


@dataclass(frozen=True, slots=True)
class Facts:
    """What is kept of a run beside its records, at ``revision``; stored bytes, None where there are none.

    ``now`` is the head as it reads; where it does not, ``head_why`` says why. ``namespace_id`` is the namespace's own number, ""
    for one that has none, or none that can be read. ``halts`` are those that cover the run.
    """

    name: RunName
    revision: int = 0
    meta: bytes | None = None
    head: bytes | None = None
    tomb: bytes | None = None
    namespace_id: str = ""
    owner: Claim | None = None
    halts: tuple[Halt, ...] = ()
    now: Head | None = None
    head_why: str = ""

    @property
    def known(self) -> bool:
        """Whether anything is kept of the run but what its records say."""
        return self.meta is not None or self.head is not None


def facts(ctx: Context, keys: RunKeys, until: float) -> Plan[Facts]:
    """What is kept of a run beside its records. Never fails on what is stored there."""
    first: pb.RangeResponse = yield from persist(RANGE, pb.RangeRequest(key=keys.head), now=ctx.now, until=until)
    revision = first.header.revision

    def of(key: bytes, end: bytes = b"", limit: int = 0, *, oldest: bool = False) -> Plan[list[pb.KeyValue]]:
        sort = pb.RangeRequest.CREATE if oldest else pb.RangeRequest.KEY
        order = pb.RangeRequest.ASCEND if oldest else pb.RangeRequest.NONE
        request = pb.RangeRequest(
            key=key, range_end=end, limit=limit, revision=revision, sort_order=order, sort_target=sort
        )
        reply = yield from _at_its_revision(ctx, request, until)
        return list(reply.kvs)

    meta, tomb = (yield from of(keys.meta)), (yield from of(keys.tomb))
    queue, halts = ctx.keys.queue(keys.name.lease), run_keys.halts(ctx.keys)
    owners = yield from of(queue, prefix_end(queue), 1, oldest=True)
    epoch = _epoch((yield from of(ctx.keys.epoch)))
    standing = halting.halts((yield from of(halts, prefix_end(halts), halting.HALTS_MAX)), halts)
    now, why = (None, "it has no head")
    if first.kvs:
        now, why = _head(first.kvs[0].value, keys.head.decode())
    return Facts(
        name=keys.name,
        revision=revision,
        meta=meta[0].value if meta else None,
        head=first.kvs[0].value if first.kvs else None,
        tomb=tomb[0].value if tomb else None,
        namespace_id=_namespace_id((yield from of(run_keys.identity(ctx.keys)))),
        owner=read_claim(ctx.keys, owners[0], epoch) if owners else None,
        halts=tuple(each for each in standing if halting.covers(each.scope, keys.name.text)),
        now=now,
        head_why=why,
    )


def _at_its_revision(ctx: Context, request: pb.RangeRequest, until: float) -> Plan[pb.RangeResponse]:
    try:
        reply: pb.RangeResponse = yield from persist(RANGE, request, now=ctx.now, until=until)
    except Fault as fault:
        if fault.cause is Cause.COMPACTED:
            raise Compacted from None
        raise
    return reply


def _namespace_id(kvs: list[pb.KeyValue]) -> str:
    """The namespace's number; its secret goes nowhere."""
    try:
        return read_identity(kvs[0].value, "the identity").uuid if kvs else ""
    except ILLEGIBLE:
        return ""


def record_page(
    ctx: Context, keys: RunKeys, start: bytes | None, revision: int, until: float
) -> Plan[tuple[list[tuple[int, bytes]], bytes | None]]:
    """One page of a run's records at ``revision``: the number of each one's place (0: none) and its bytes; where to go on."""
    found, start = yield from _page(ctx, keys.records, start, revision, until, lambda kv: (seq_of(kv.key), kv.value))
    return found, start


def beside_page(
    ctx: Context, prefix: bytes, start: bytes | None, revision: int, until: float
) -> Plan[tuple[list[Pair], bytes | None]]:
    """One page of the keys below a prefix of a run: its steps, checkpoints or late evidence; where to go on."""
    found, start = yield from _page(ctx, prefix, start, revision, until, lambda kv: (kv.key, kv.value))
    return found, start


def _page(
    ctx: Context,
    prefix: bytes,
    start: bytes | None,
    revision: int,
    until: float,
    read: Callable[[pb.KeyValue], T],
) -> Plan[tuple[list[T], bytes | None]]:
    request = pb.RangeRequest(key=start or prefix, range_end=prefix_end(prefix), limit=RECORDS, revision=revision)
    reply = yield from _at_its_revision(ctx, request, until)
    return [read(kv) for kv in reply.kvs], reply.kvs[-1].key + b"\0" if reply.more and reply.kvs else None
