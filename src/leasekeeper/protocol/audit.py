"""What whoever takes over a run looks at before anything is added: all of its records, and what stands beside them.

Each record must carry the hash of the one before it, the head must name the last, the last must be signed as it should, the
first must name the input, and what anchors remember must be there. What the head says, and where each step stands, must follow
from the records. What is wrong with any of it ends the taking over; nothing has been written by then. Where a step stands is held
against the records when it is asked for, too (`witness`).
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.account import Account, Stand
from leasekeeper.protocol.history import Walk, checked
from leasekeeper.protocol.keys import prefix_end
from leasekeeper.protocol.plan import RANGE, Plan, persist
from leasekeeper.protocol.pointer import read_pointer
from leasekeeper.protocol.receipt import digest, glance, is_whole
from leasekeeper.protocol.vouching import vouched
from leasekeeper.run_errors import CorruptState, RunRewound, SigningKeyMissing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.head import Head
    from leasekeeper.protocol.meta import Meta
    from leasekeeper.protocol.run_keys import RunKeys
    from leasekeeper.run_records import Receipt
    from leasekeeper.signing import Keyring, SigningKey

__all__ = ["Audited", "audit", "check_latest", "corrupt", "giving_up", "gone", "out_of_step", "set_back"]

# Where steps stand, read at once; each takes some hundred bytes.
STEPS = 500
# What makes progress may go on.
PROGRESS_S = 3.0


@dataclass(frozen=True, slots=True)
class Audited:
    """The last record, the number of the first that is signed (0: none is), and what all of them say."""

    latest: Receipt
    signed_from: int
    account: Account


def audit(
    ctx: Context,
    keys: RunKeys,
    head: Head,
    meta: Meta,
    marks: Mapping[int, str],
    until: float,
    *,
    anchors: Sequence[str] = (),
) -> Plan[Audited]:
    """Over all records to the head. CorruptState for a broken chain, RunRewound for one behind its marks.

    ``anchors`` are the files of those who made the marks, for people.
    """
    known = max(marks, default=0)
    if known > head.seq:
        raise set_back(keys.name.text, head.seq, known, anchors)
    walk, account = Walk(keys), Account()
    latest: tuple[int, bytes] | None = None
    while found := (yield from walk.next_page(ctx, head.seq, until)):
        for seq, stored in found:
            if seq in marks and marks[seq] != digest(stored):
                raise set_back(keys.name.text, seq, seq, anchors)
            if seq == 1:
                _check_beginning(keys, checked(keys, seq, stored), meta)
            _take_in(keys, account, seq, stored)
        latest = found[-1]
        until = max(until, ctx.now() + PROGRESS_S)
    if latest is None or (walk.seq, walk.hash) != (head.seq, head.hash):
        raise corrupt(keys.head, f"it does not name record {walk.seq}, the last one, by its hash")
    account.end = walk.seq, walk.hash
    if why := account.contradicts(head):
        raise corrupt(keys.head, why)
    return Audited(checked(keys, *latest), walk.signed_from, account)


def _take_in(keys: RunKeys, account: Account, seq: int, stored: bytes) -> None:
    """Add a record whose hash is known to be right: most need no more than a glance."""
    plain = glance(stored)
    if plain is None:
        account.add(keys, checked(keys, seq, stored))
    else:
        account.glanced(seq, plain)


def _check_beginning(keys: RunKeys, first: Receipt, meta: Meta) -> None:
    """What the run was begun with has to be what its first record says."""
    if first.data.get("input") != digest(meta.input):
        raise corrupt(keys.meta, "its input is not the one that the first record names")
    if (first.gen, first.life) != (meta.gen, meta.life):
        raise corrupt(keys.meta, "its generation or first life is not that of the first record")


def check_latest(
    latest: Receipt, signer: SigningKey | None, ring: Keyring | None, namespace_id: str, *, signed: bool
) -> None:
    """The last record has to be signed as it should, and written here: it vouches for all before it."""
    if latest.key_id and signer is None:
        raise SigningKeyMissing(run=latest.run, key_id=latest.key_id)
    vouched(latest, ring, signed=signed)
    if latest.namespace_id != namespace_id:
        where = f"record {latest.seq} of {latest.run}"
        raise CorruptState(f"{where} was written in another environment", where=where, why="another environment")


def out_of_step(ctx: Context, keys: RunKeys, account: Account, until: float) -> Plan[CorruptState | None]:
    """What beside the records does not follow from them: where a step stands. None: nothing.

    It is damage only if nobody, as an operator, has added to the run since its head was read.
    """
    start, count = keys.steps, 0
    while True:
        request = pb.RangeRequest(key=start, range_end=prefix_end(keys.steps), limit=STEPS)
        reply: pb.RangeResponse = yield from persist(RANGE, request, now=ctx.now, until=until)
        for kv in reply.kvs:
            if not _follows(account.stand(keys.step_of(kv.key)), kv):
                return corrupt(kv.key, "it is not where the step stands by the records")
        count += len(reply.kvs)
        if not reply.more or not reply.kvs:
            break
        start = reply.kvs[-1].key + b"\0"
        until = max(until, ctx.now() + PROGRESS_S)
    if count != len(account):
        return corrupt(keys.steps, f"{count} steps stand there, and by the records {len(account)} were begun")
    return None


def _follows(stand: Stand | None, kv: pb.KeyValue) -> bool:
    """Whether a step's key says what the records say; of one that is done a glance is enough."""
    if stand is None:
        return False
    stored = kv.value
    if stand.state == "done" and b'"outcome":%d,"state":"done"' % stand.outcome in stored:
        return is_whole(stored)
    return stand.agrees(read_pointer(kv))


def set_back(run: str, have: int, known: int, anchors: Sequence[str] = ()) -> RunRewound:
    """That etcd ends with record ``have`` of a run, or goes on after it otherwise, and an anchor remembers ``known``."""
    of = f" ({', '.join(anchors)})" if anchors else ""
    if have < known:
        what = (
            f"etcd has run {run} up to record {have}, and an anchor{of} remembers record {known}: an older backup was restored,"
            " or the end was cut off: put it back if you can"
        )
    else:
        what = (
            f"record {known} of {run} in etcd is another than the one that an anchor{of} remembers: it was written anew after an"
            " older backup was restored, or changed: find out which of the two is to hold"
        )
    return RunRewound(
        f"{what}; {giving_up(run, anchors)}, then start the program again", run=run, have=have, known=known
    )


def gone(run: str, known: int, anchors: Sequence[str] = ()) -> RunRewound:
    """That nothing of a run is there, and an anchor remembers record ``known``."""
    of = f" ({', '.join(anchors)})" if anchors else ""
    return RunRewound(
        f"etcd has nothing of run {run}, of which an anchor{of} remembers record {known}: it was deleted or pruned, or an older"
        " backup was restored: put it back if you can; else see first that the namespace's identity is the one of then"
        " (`leasekeeper doctor` tells its number), since idempotency keys come from it: with another one all is applied again;"
        f" {giving_up(run, anchors)}, then begin it again",
        run=run,
        have=0,
        known=known,
    )


def giving_up(run: str, anchors: Sequence[str]) -> str:
    """How what is lost of a run is given up, in the words of an error that ends in it."""
    options = [word for file in anchors or ("FILE",) for word in ("--accept-rewind", shlex.quote(file))]
    name = shlex.quote(run)
    words = [*options, "--evidence", "TEXT"]
    words = [*words, "--", name] if run.startswith("-") else [name, *words]
    return f"or look what was lost had done, and give it up: `leasekeeper runs resolve {' '.join(words)}`"


def corrupt(key: bytes, why: str) -> CorruptState:
    """That a key cannot be trusted, and why."""
    where = key.decode("utf-8", "replace")
    return CorruptState(f"{where} cannot be trusted: {why}", where=where, why=why)
