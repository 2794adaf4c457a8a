"""Opening a run that one owns: begin it, or take it over where the one before left it.

Whoever takes over looks first at all that there is (`leasekeeper.protocol.audit`). Only then a record says that a new life of
the run has begun, who it is, and after whom. What the exit of the one before was, nobody asks: a crash is the only way a life
ends that is counted on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leasekeeper.errors import ConfigError, StaleToken
from leasekeeper.fencing import split_token
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.account import Account
from leasekeeper.protocol.append import Entry, Fenced, Log, append
from leasekeeper.protocol.audit import audit, check_latest, corrupt, gone, out_of_step
from leasekeeper.protocol.head import Head, read_head
from leasekeeper.protocol.identity import Identity, known_identity, the_identity
from leasekeeper.protocol.keys import read_epoch
from leasekeeper.protocol.meta import Meta, meta_body, read_meta
from leasekeeper.protocol.plan import RANGE, TXN, Fault, Kind, Plan, persist
from leasekeeper.protocol.prune import pruned_up_to
from leasekeeper.protocol.receipt import (
    FIRST_PREV,
    Draft,
    Writer,
    digest,
    plain,
    seal,
)
from leasekeeper.protocol.whereabouts import pieces
from leasekeeper.run_errors import (
    CorruptState,
    InputChanged,
    RunPruned,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leasekeeper.protocol.append import Line
    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.guarded import Ownership
    from leasekeeper.protocol.keys import Epoch
    from leasekeeper.protocol.run_keys import RunKeys
    from leasekeeper.signing import Keyring, SigningKey

__all__ = ["Opened", "Opening", "open_run"]

TRIES_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What somebody brings who opens a run.

    ``input`` is canonical JSON of what the run is to work on; None: whatever it was begun with. ``life`` is a new number and
    ``facts`` say who this is. ``signer`` signs what is added; ``ring`` are the keys by which others may have signed. ``marks``
    are numbers of records with the hashes that somebody outside of etcd remembers, ``anchors`` the files that keep them.
    ``budget`` bounds how often it is begun again without a step done.
    """

    life: str
    facts: Mapping[str, Any]
    input: bytes | None = None
    gen: int | None = None
    signer: SigningKey | None = None
    ring: Keyring | None = None
    marks: Mapping[int, str] = field(default_factory=dict)
    anchors: tuple[str, ...] = ()
    budget: int = 10
    adopt_unsigned: bool = False


@dataclass(slots=True)
class Opened:
    """A run that is owned: its log, and what it was begun with."""

    log: Log
    identity: Identity
    meta: Meta
    fresh: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    # The one that the owner's token is of; the context's may be another a moment later, when others of this process learn of it.
    epoch: Epoch
    meta: pb.KeyValue | None
    head: pb.KeyValue | None
    tomb: pb.KeyValue | None


def open_run(
    ctx: Context,
    keys: RunKeys,
    mine: Ownership,
    opening: Opening,
    *,
    line: Line,
    alive: Callable[[], bool],
    until: float,
) -> Plan[Opened]:
    """Begin a run or take it over. One that is finished or quarantined is only read; a quarantined one is for its caller to stop.

    Raises:
        Fenced: the claim is gone.
        InputChanged, RunPruned, CorruptState, RunRewound, SigningKeyMissing: why it cannot go on.
        Fault: etcd cannot be asked.
    """
    for _ in range(TRIES_MAX):
        seen = yield from _look(ctx, keys, mine, until)
        if seen.meta is None and seen.head is None:
            gen = _generation(keys, opening, seen.tomb)
            if opening.marks:
                raise (yield from pieces(ctx, keys, until)) or gone(keys.name.text, max(opening.marks), opening.anchors)
            # Only now: of a namespace that was lost as a whole, nothing is made anew before its runs are given up.
            identity = yield from the_identity(ctx, until)
            log, meta = _begun(ctx, keys, mine, opening, identity, gen, seen.epoch, line, alive)
            if (yield from _begin(log, meta, opening, until)):
                return Opened(log, identity, read_meta(meta, keys.meta.decode()), True)
        else:
            identity = yield from known_identity(ctx, until)
            opened = yield from _take_over(
                ctx, keys, mine, opening, identity, seen, line=line, alive=alive, until=until
            )
            if opened is not None:
                return opened
    raise Fault(Kind.RETRY, text=f"others write to {keys.name} again and again", operation="Txn")


def _look(ctx: Context, keys: RunKeys, mine: Ownership, until: float) -> Plan[_Seen]:
    gets = (
        m.get(mine.key, keys_only=True),
        m.get(ctx.keys.epoch),
        m.get(keys.meta),
        m.get(keys.head),
        m.get(keys.tomb),
    )
    reply = yield from persist(TXN, m.read_only(gets), now=ctx.now, until=until, strict=True)
    own = m.range_kvs(reply, 0)
    if not own or own[0].create_revision != mine.create_revision:
        raise Fenced(mine.name)
    epoch = read_epoch(m.range_kvs(reply, 1))
    if epoch.number != split_token(mine.token)[0] or epoch.stored != ctx.epoch.stored:
        raise StaleToken(
            f"the epoch was raised: token {mine.token} of {mine.name!r} is of an older one; begin the run anew",
            resource=mine.name,
            token=mine.token,
        )
    meta, head, tomb = (m.range_kvs(reply, index) for index in (2, 3, 4))
    return _Seen(epoch, meta[0] if meta else None, head[0] if head else None, tomb[0] if tomb else None)


# ---------------------------------------------------------------- a new run


def _begun(
    ctx: Context,
    keys: RunKeys,
    mine: Ownership,
    opening: Opening,
    identity: Identity,
    gen: int,
    epoch: Epoch,
    line: Line,
    alive: Callable[[], bool],
) -> tuple[Log, bytes]:
    body = {
        "at": int(ctx.wall() * 1000),
        "by": ctx.holder,
        "gen": gen,
        "id": keys.name.id,
        "life": opening.life,
        "v": 1,
        "wf": keys.name.workflow,
    }
    meta = seal(meta_body(body, opening.input), None)
    head = Head(gen=gen)
    return _log(ctx, keys, mine, opening, identity, head, epoch, line, alive), meta


def _generation(keys: RunKeys, opening: Opening, tomb: pb.KeyValue | None) -> int:
    gone = pruned_up_to(tomb)
    if gone and (opening.gen is None or opening.gen <= gone):
        raise RunPruned(run=keys.name.text)
    return opening.gen or 1


def _check_generation(keys: RunKeys, head: Head, opening: Opening, tomb: pb.KeyValue | None) -> None:
    """RunPruned when what is there is being removed; ConfigError when another generation is asked for."""
    if head.gen <= pruned_up_to(tomb):
        raise RunPruned(run=keys.name.text)
    if opening.gen not in (None, head.gen):
        raise ConfigError(field="generation", value=opening.gen, expected=f"{head.gen}, as the run that is there")


def _log(
    ctx: Context,
    keys: RunKeys,
    mine: Ownership,
    opening: Opening,
    identity: Identity,
    head: Head,
    epoch: Epoch,
    line: Line,
    alive: Callable[[], bool],
) -> Log:
    writer = Writer(
        workflow=keys.name.workflow,
        id=keys.name.id,
        gen=head.gen,
        namespace_id=identity.uuid,
        token=mine.token,
        claim=opening.facts["claim"],
        holder=ctx.holder,
        life=opening.life,
        key=opening.signer,
    )
    signed_from = head.seq + 1 if writer.key_id else 0
    return Log(ctx, keys, mine, writer, epoch, line, alive, head, ring=opening.ring, signed_from=signed_from)


def _begin(log: Log, meta: bytes, opening: Opening, until: float) -> Plan[bool]:
    """Write the first record; False when somebody was faster, or something has changed: look again."""
    ctx, keys = log.ctx, log.keys
    at_ms = int(ctx.wall() * 1000)
    stored = log.writer.seal(
        _opened(ctx, opening, None, 0, opening.input or b"null"), seq=1, prev=FIRST_PREV, at_ms=at_ms
    )
    head = _owned_by(log, log.head.after(1, digest(stored), at_ms, len(stored)), opening, 0)
    request = pb.TxnRequest(
        compare=(
            m.created_at(log.mine.key, log.mine.create_revision),
            m.epoch_is(ctx.keys.epoch, log.epoch),
            m.absent(keys.meta),
            m.absent(keys.head),
            m.absent(keys.record(1)),
        ),
        success=(
            m.put(keys.meta, meta),
            m.put(keys.record(1), stored),
            m.put(keys.head, head.stored()),
            m.put(keys.unfinished, b""),
        ),
        failure=(m.get(keys.record(1)), m.get(keys.head), m.get(ctx.keys.epoch)),
    )
    reply = yield from persist(TXN, request, now=ctx.now, until=until, strict=True)
    first = m.range_kvs(reply, 0)
    if reply.succeeded or (first and first[0].value == stored):
        log.head, log.account = head, Account((1, head.hash))
        return True
    if first and not m.range_kvs(reply, 1):
        raise corrupt(keys.head, "it is not there, and records of the run are")
    return False


def _owned_by(log: Log, head: Head, opening: Opening, restarts: int) -> Head:
    return head._replace(
        token=log.mine.token,
        holder=log.ctx.holder,
        life=opening.life,
        restarts=restarts,
        key_id=log.writer.key_id,
    )


def _opened(ctx: Context, opening: Opening, previous: Head | None, restarts: int, given: bytes) -> Draft:
    before = None if previous is None else {"life": previous.life, "token": f"{previous.token:019d}"}
    facts = {name: value for name, value in opening.facts.items() if name != "claim"}
    return Draft(
        "opened",
        "",
        plain({**facts, "input": digest(given), "previous": before, "restarts": restarts}),
        ctx.new_nonce(),
    )


# ---------------------------------------------------------------- one that was begun before


def _take_over(
    ctx: Context,
    keys: RunKeys,
    mine: Ownership,
    opening: Opening,
    identity: Identity,
    seen: _Seen,
    *,
    line: Line,
    alive: Callable[[], bool],
    until: float,
) -> Plan[Opened | None]:
    """Take it over; None when an operator has added to it meanwhile: look again."""
    for kv, key in ((seen.meta, keys.meta), (seen.head, keys.head)):
        if kv is None:
            where = key.decode()
            raise CorruptState(f"{where} is gone, and the run was begun", where=where, why="it is not there")
    assert seen.meta is not None
    assert seen.head is not None
    meta = read_meta(seen.meta.value, keys.meta.decode())
    head = read_head(seen.head.value, keys.head.decode())
    _check_generation(keys, head, opening, seen.tomb)
    if opening.input is not None and opening.input != meta.input:
        raise InputChanged(run=keys.name.text, recorded=digest(meta.input), given=digest(opening.input))
    audited = yield from audit(ctx, keys, head, meta, opening.marks, until, anchors=opening.anchors)
    latest = audited.latest
    signed = bool(head.key_id or audited.signed_from)
    check_latest(latest, opening.signer, opening.ring, identity.uuid, signed=signed)
    if not signed and opening.signer is not None and not opening.adopt_unsigned:
        raise _unsigned(keys)
    if (wrong := (yield from out_of_step(ctx, keys, audited.account, until))) is not None:
        if (yield from _moved(ctx, keys, seen.head, until)):
            return None
        raise wrong
    log = _log(ctx, keys, mine, opening, identity, head, seen.epoch, line, alive)
    log.account = audited.account
    log.signed_from = audited.signed_from or log.signed_from
    opened = Opened(log, identity, meta, False)
    if head.status in ("finished", "quarantined"):
        return opened
    if latest.key_id != log.writer.key_id:
        yield from append(log, _rotated(log, latest.key_id, opening))
    restarts = head.restarts + 1
    entry = Entry(
        _opened(ctx, opening, head, restarts, meta.input),
        puts=lambda _: (m.put(keys.unfinished, b""),),
        change=lambda now: _owned_by(log, now, opening, restarts),
    )
    yield from append(log, entry)
    if restarts > opening.budget:
        yield from append(log, _quarantined(log, restarts))
    return opened


def _unsigned(keys: RunKeys) -> CorruptState:
    why = "its records are not signed, and a key that signs is given"
    return CorruptState(
        f"run {keys.name} cannot be trusted: {why}; if it was begun without a key, open it once with adopt_unsigned=True",
        where=keys.name.text,
        why=why,
    )


def _moved(ctx: Context, keys: RunKeys, seen: pb.KeyValue, until: float) -> Plan[bool]:
    """Whether the head is another than it was."""
    reply = yield from persist(RANGE, pb.RangeRequest(key=keys.head), now=ctx.now, until=until, strict=True)
    return [kv.mod_revision for kv in reply.kvs] != [seen.mod_revision]


def _rotated(log: Log, before: str, opening: Opening) -> Entry:
    public = getattr(getattr(opening.signer, "public", None), "raw", b"").hex()
    data = plain({"from": before, "public": public, "to": log.writer.key_id})
    return Entry(Draft("rotated", "", data, log.ctx.new_nonce()))


def _quarantined(log: Log, restarts: int) -> Entry:
    data = plain({"restarts": restarts})
    draft = Draft("quarantined", "", data, log.ctx.new_nonce())
    return Entry(draft, change=lambda head: head._replace(status="quarantined", due=(*head.due, "")))
