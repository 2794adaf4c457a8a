"""Why a transaction that adds to a run was refused: its own reply tells, and each time something of it is settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.errors import StaleToken
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import halt as halts
from leasekeeper.protocol import messages as m
from leasekeeper.protocol import run_keys
from leasekeeper.protocol.head import read_head
from leasekeeper.protocol.log import Fenced, Unexpected, fail, landed
from leasekeeper.protocol.transaction import EPOCH, EXPECTED, HALTS, HEAD, OWN, RECORD
from leasekeeper.run_errors import ILLEGIBLE, RunHalted, RunRewound

if TYPE_CHECKING:
    from leasekeeper.protocol.halt import Halt
    from leasekeeper.protocol.log import Built, Entry, Log

__all__ = ["sort_out"]


def sort_out(log: Log, built: Built, before: Built | None, reply: pb.TxnResponse) -> list[Halt]:
    """Settle what the reply settles. The halts that stand and do not cover the run.

    ``before`` is a transaction that was sent, not answered, and then refused: a copy of it may have come late, and been taken.
    """
    record = m.range_kvs(reply, RECORD)
    for sent in (built, before):
        if record and sent is not None and sent.stored and record[0].value == sent.stored[0]:
            landed(log, sent, record[0].mod_revision)
            return []
    log.over = log.over or _ended(log, reply) or _follow(log, m.range_kvs(reply, HEAD))
    if log.over is not None:
        fail(log, log.line.waiting(), log.over)
        return []
    known, at = _see_halts(log, built, reply)
    for entry in built.entries:
        for key, revision in entry.expects:
            kvs = m.range_kvs(reply, at)
            at += 1
            if (kvs[0].mod_revision if kvs else 0) != revision:
                fail(log, (entry,), Unexpected(key, kvs[0] if kvs else None))
    return known


def _see_halts(log: Log, built: Built, reply: pb.TxnResponse) -> tuple[list[Halt], int]:
    """Refuse the intents that a halt covers: the halts that stand, and where the reply goes on."""
    intents = [entry for entry in built.entries if entry.intent]
    if not intents:
        return [], EXPECTED
    known = halts.halts(m.range_kvs(reply, HALTS), run_keys.halts(log.ctx.keys))
    found = halts.covering(known, log.run)
    if found is None and m.range_count(reply, HALTS) > len(known):
        found = halts.too_many(m.range_count(reply, HALTS))
    if found is not None:
        for entry in intents:
            fail(log, (entry,), _halted(log, entry, found))
        return [], EXPECTED + 1  # intents that come meanwhile are sent as if none were known, and refused likewise
    return known, EXPECTED + 1


def _halted(log: Log, entry: Entry, found: Halt) -> RunHalted:
    return RunHalted(
        run=log.run, step=entry.draft.step, scope=found.scope, reason=found.reason, by=found.by, at_ms=found.at_ms
    )


def _ended(log: Log, reply: pb.TxnResponse) -> BaseException | None:
    """Why the owner may not add any more."""
    own = m.range_kvs(reply, OWN)
    if not own or own[0].create_revision != log.mine.create_revision:
        return Fenced(log.run)
    epoch = m.range_kvs(reply, EPOCH)
    if (epoch[0].value if epoch else None) != log.epoch.stored:
        return StaleToken(
            f"the epoch was raised: token {log.mine.token} of {log.mine.name!r} is of an older one; begin the run anew",
            resource=log.run,
            token=log.mine.token,
        )
    return None


def _follow(log: Log, kvs: list[pb.KeyValue]) -> BaseException | None:
    """Take in a head that an operator moved on; why one that went back, or cannot be read, ends everything."""
    if not kvs:
        return RunRewound(run=log.run, have=0, known=log.head.seq)
    if kvs[0].value == log.head.stored():
        return None
    try:
        found = read_head(kvs[0].value, kvs[0].key.decode())
    except ILLEGIBLE as error:
        return error
    same = found.seq == log.head.seq and found.hash == log.head.hash
    if found.gen != log.head.gen or (found.seq <= log.head.seq and not same):
        return RunRewound(run=log.run, have=found.seq, known=log.head.seq)
    log.head = found
    return None
