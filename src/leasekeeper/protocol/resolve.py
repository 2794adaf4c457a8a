"""An operator's word: a step in doubt was applied, or it was not; what a step that is done returns; a quarantine is lifted.

It is a record of its own in the run's chain, with who said it and what it rests on. It does not take the fence, since the run
may have no owner; it compares head and step, so it decides what it has seen, or nothing.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from leasekeeper.errors import ConfigError, Misuse
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.head import Head, read_head
from leasekeeper.protocol.identity import Identity, known_identity
from leasekeeper.protocol.keys import read_epoch
from leasekeeper.protocol.limits import check_length
from leasekeeper.protocol.lost_result import bare_outcome
from leasekeeper.protocol.outcome import joined
from leasekeeper.protocol.plan import TXN, Fault, Kind, Plan, persist
from leasekeeper.protocol.pointer import Pointer, read_pointer
from leasekeeper.protocol.prune import pruned_up_to
from leasekeeper.protocol.receipt import Draft, Writer, digest, json_of, read_receipt, text_of
from leasekeeper.protocol.steps import step_page
from leasekeeper.run_errors import RunPruned, SigningKeyMissing

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.keys import Epoch
    from leasekeeper.protocol.run_keys import RunKeys
    from leasekeeper.run_records import Receipt
    from leasekeeper.signing import SigningKey

__all__ = ["Word", "resolve"]

TRIES_MAX = 10
OPEN_TO_WORD = ("in_doubt", "intent", "conflict")
# Steps named to somebody who asks for one that there is not.
SHOWN_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What an operator says. ``evidence`` and ``result`` are canonical JSON.

    ``result_said`` False: nothing was said of a result, and null stands for it; not enough for a step that is done already.
    ``step`` None: a quarantined run may be tried again; or, with ``rewound``, a run goes on from where it is, although somebody
    outside of etcd remembers these later records (or others), by number and hash: they are given up for lost. ``missing`` is the
    digest of a large result that was seen to be no longer where it is kept outside of etcd.
    """

    step: str | None
    applied: bool
    evidence: bytes
    result: bytes = b"null"
    result_said: bool = True
    signer: SigningKey | None = None
    rewound: tuple[tuple[int, str], ...] = ()
    missing: str = ""


@dataclass(frozen=True, slots=True)
class _Seen:
    head: Head
    head_revision: int
    pointer: Pointer
    epoch: Epoch
    tomb_revision: int
    # The outcome of which the result is nowhere; 0: the step is not done, or its result is there.
    bare: int = 0


def resolve(ctx: Context, keys: RunKeys, word: Word, until: float) -> Plan[Receipt]:
    """Record an operator's word: the record.

    Raises:
        ConfigError: there is no such run, or no such step.
        Misuse: there is nothing to resolve, or the run has an owner who may be about to do the step.
        SigningKeyMissing: the run's records are signed with another key, or with one, and there is none here.
        RunPruned: it is being removed.
    """
    for _ in range(TRIES_MAX):
        seen = yield from _look(ctx, keys, word, until)
        identity = yield from known_identity(ctx, until)
        if word.applied and seen.pointer.state == "done":
            bare = yield from bare_outcome(ctx, keys, seen.pointer.outcome, word.missing, until)
            seen = replace(seen, bare=bare)
        _check(keys, word, seen)
        if word.step is not None and not seen.pointer.mod_revision:
            raise (yield from _unknown_step(ctx, keys, word.step, until))
        receipt = yield from _say(ctx, keys, word, seen, identity, until)
        if receipt is not None:
            return receipt
    raise Fault(Kind.RETRY, text=f"others write to {keys.name} again and again", operation="Txn")


def _look(ctx: Context, keys: RunKeys, word: Word, until: float) -> Plan[_Seen]:
    gets = [m.get(keys.head), m.get(ctx.keys.epoch), m.get(keys.tomb)]
    if word.step is not None:
        gets.append(m.get(keys.step(word.step)))
    reply = yield from persist(TXN, m.read_only(gets), now=ctx.now, until=until, strict=True)
    heads, tombs, steps = (m.range_kvs(reply, index) for index in (0, 2, 3))
    if not heads:
        raise ConfigError(field="run", value=keys.name.text, expected="a run that was begun; see: leasekeeper runs ls")
    head = read_head(heads[0].value, keys.head.decode())
    if pruned_up_to(tombs[0] if tombs else None) >= head.gen:
        raise RunPruned(run=keys.name.text)
    return _Seen(
        head=head,
        head_revision=heads[0].mod_revision,
        pointer=read_pointer(steps[0] if steps else None),
        epoch=read_epoch(m.range_kvs(reply, 1)),
        tomb_revision=tombs[0].mod_revision if tombs else 0,
    )


def _other_key(run: str, head: Head, given: str) -> SigningKeyMissing:
    """The word would be signed otherwise than the run's records are."""
    if key_id := head.key_id:
        text = (
            f"records of {run} are signed with key {key_id}: set LEASEKEEPER_SIGNING_KEY_FILE to its file to say this"
        )
        if head.status != "quarantined":  # which no program takes over
            text += (
                "; or, where another key signs by now, start the program once with that one, and with the public part of"
                f" key {key_id} in the file LEASEKEEPER_TRUST_FILE, which hands the run over, and say this with the new key"
            )
        return SigningKeyMissing(text, run=run, key_id=key_id)
    text = f"records of {run} are not signed, and this program has key {given!r}: say it without a key"
    return SigningKeyMissing(text, run=run)


def _check(keys: RunKeys, word: Word, seen: _Seen) -> None:
    key_id = word.signer.key_id if word.signer is not None else ""
    if seen.head.key_id != key_id:
        raise _other_key(keys.name.text, seen.head, key_id)
    check_length(keys.name.text, seen.head.seq, more=2)
    if word.step is None:
        if seen.head.status != "quarantined" and not word.rewound:
            raise Misuse(f"run {keys.name} is {seen.head.status}, not quarantined: there is nothing to lift")
        return
    if not seen.pointer.mod_revision:
        return  # which there are instead, etcd has to be asked
    if seen.bare and not word.result_said:
        raise Misuse(
            f"step {word.step!r} of run {keys.name} is done, and its result is not there: say what it returns from now on"
            " (--result JSON; null, if nothing); that is for good"
        )
    if seen.head.status == "finished" and not seen.bare:
        raise Misuse(f"run {keys.name} is finished, and waits for no step: there is nothing to resolve")
    if seen.pointer.state not in OPEN_TO_WORD and not seen.bare:
        raise Misuse(f"step {word.step!r} of run {keys.name} is {seen.pointer.state}: there is nothing to resolve")


def _unknown_step(ctx: Context, keys: RunKeys, step: str, until: float) -> Plan[ConfigError]:
    """That a run has no such step, and which it has."""
    found, _ = yield from step_page(ctx, keys, None, until)
    names = [f"{view.key!r} ({view.state})" for view in sorted(found, key=lambda view: view.state not in OPEN_TO_WORD)]
    more = [f"and {len(names) - SHOWN_MAX} more"] if len(names) > SHOWN_MAX else []
    known = f": {', '.join((*names[:SHOWN_MAX], *more))}" if names else ", and there is none yet"
    return ConfigError(field="step", value=step, expected=f"a step that run {keys.name} has begun{known}")


def _say(
    ctx: Context, keys: RunKeys, word: Word, seen: _Seen, identity: Identity, until: float
) -> Plan[Receipt | None]:
    """Write it; None when something has changed meanwhile: look again."""
    writer = Writer(
        workflow=keys.name.workflow,
        id=keys.name.id,
        gen=seen.head.gen,
        namespace_id=identity.uuid,
        token=0,
        claim="",
        holder=ctx.holder,
        life=(ctx.new_nonce() + ctx.new_nonce())[:32],
        key=word.signer,
    )
    seq, at_ms = seen.head.seq + 1, int(ctx.wall() * 1000)
    draft = Draft("resolved", word.step or "", _data(word, seen, ctx), ctx.new_nonce())
    stored = writer.seal(draft, seq=seq, prev=seen.head.hash, at_ms=at_ms)
    head = _turned(word, bare=seen.bare > 0)(seen.head).after(seq, digest(stored), at_ms, len(stored))
    puts = [m.put(keys.record(seq), stored), m.put(keys.head, head.stored())]
    compares = [m.unchanged(keys.head, seen.head_revision), m.epoch_is(ctx.keys.epoch, seen.epoch)]
    compares += [m.absent(keys.record(seq)), m.unchanged(keys.tomb, seen.tomb_revision)]
    if word.step is not None:
        key = keys.step(word.step)
        compares.append(m.unchanged(key, seen.pointer.mod_revision))
        turned = seen.pointer.turned("done", seq) if word.applied else seen.pointer.turned("cleared")
        puts.append(m.put(key, turned.stored()))
    queue = ctx.keys.queue(keys.name.lease)
    if seen.pointer.state == "intent" and word.step is not None:
        compares.append(m.queue_empty(queue))
    request = pb.TxnRequest(
        compare=compares, success=puts, failure=(m.get(keys.record(seq)), m.get(keys.head), m.first_of(queue))
    )
    reply = yield from persist(TXN, request, now=ctx.now, until=until, strict=True)
    there = m.range_kvs(reply, 0)
    if reply.succeeded or (there and there[0].value == stored):
        return read_receipt(stored, keys.record(seq).decode())
    same_head = [kv.mod_revision for kv in m.range_kvs(reply, 1)] == [seen.head_revision]
    if same_head and seen.pointer.state == "intent" and m.range_kvs(reply, 2):
        raise Misuse(
            f"run {keys.name} has an owner, and step {word.step!r} may be under way: wait until it has ended or is in doubt,"
            f" or end the owner's process (who it is: leasekeeper show {shlex.quote(keys.name.lease)}) and say it again once"
            " the lease is free; a halt ends nothing that was begun"
        )
    return None


def _data(word: Word, seen: _Seen, ctx: Context) -> bytes:
    pointer = seen.pointer
    instead = {"instead": b"%d" % seen.bare} if seen.bare else {}
    return joined(
        applied=b"true" if word.applied else b"false",
        args=b'"%b"' % pointer.args.encode(),
        by=text_of(ctx.holder).encode(),
        evidence=word.evidence,
        rewound=json_of([{"hash": hash_, "seq": seq} for seq, hash_ in word.rewound]),
        intent=b"%d" % pointer.intent,
        result=word.result,
        **instead,
    )


def _turned(word: Word, *, bare: bool) -> Callable[[Head], Head]:
    step = word.step
    if word.rewound:  # what was lost says nothing of how the run stands by the records that are there
        return lambda head: head
    if step is None:
        return lambda head: head._replace(status="in_doubt" if head.doubts else "running", restarts=0).told("")
    if word.applied and not bare:
        return lambda head: head.settled(step).one_more()
    return lambda head: head.settled(step)._replace(restarts=0)
