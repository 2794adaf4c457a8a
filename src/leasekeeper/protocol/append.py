"""The one transaction that adds to a run: records, its head, and what they change, all or nothing, under the fence.

It compares that the owner's claim stands as it was created, that the head is the one last seen, that the epoch is unchanged,
that no record stands where its records go, and what each entry expects of its own keys; where an intent is among them, also
that no halt covers the run. So a run's records follow one another without hole or fork, and nobody whose lease is over adds
to them.

Entries that come while a transaction is under way share the next one. Whoever finds nobody leading leads: sends one of what
waits, and tells the others. Whoever is interrupted leaves everything in its place, for the next to lead. A reply that was lost
is never guessed: just the same transaction is sent again, and if its first record is there, with its nonce, all of it is.

What waits as long as it takes is told of: each time that trying has come to nothing, and once when it is over.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING

from leasekeeper.protocol.delay import Delay, again
from leasekeeper.protocol.log import Appended, Built, Entry, Fenced, Line, Log, Unexpected, fail, landed
from leasekeeper.protocol.plan import TXN, Cause, Fault, Kind, Plan, Sleep, Wait, persist
from leasekeeper.protocol.refused import sort_out
from leasekeeper.protocol.transaction import build, taken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasekeeper.protocol import etcd_pb2 as pb
    from leasekeeper.protocol.halt import Halt

__all__ = ["Appended", "Entry", "Fenced", "Line", "Log", "Unexpected", "append", "learn", "patiently", "settle"]

# How long a transaction is tried before it is asked whether trying still makes sense.
SPELL_S = 10.0
SPELL_MIN_S = 0.5
# Why a transaction was refused is told by its reply, and each time something of it is settled; more often is no race.
TRIES_MAX = 100
# Between two looks at whether a full etcd takes evidence again.
FULL_S = 2.0
# How often it is looked whether another has settled what one was interrupted in.
LEARN_S = 0.05
# How often those who wait look whether somebody still leads, whether or not somebody woke them.
LOOK_ANYWAY_S = 5.0


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
    entry.since_s = log.ctx.now()
    try:
        line.join(entry)
        while not entry.settled:
            if line.lead(entry):
                yield from _serve(log, entry)
                continue
            bell = line.bell(entry)
            if not (line.lead(entry) or entry.settled):
                yield Wait((bell,), log.ctx.now() + LOOK_ANYWAY_S)
    finally:
        line.withdraw(entry)
        line.leave(entry)
        _over(log, entry.delay, entry.since_s, recorded=entry.appended is not None)
    if entry.error is not None:
        # A copy: several threads may be told the same, and each puts its own frames into what it raises.
        raise copy.copy(entry.error)
    assert entry.appended is not None
    return entry.appended


def learn(log: Log, entry: Entry, until: float) -> Plan[Appended | None]:
    """After `append` of it was interrupted: where the entry stands; None: nowhere, or it could not be learnt in time."""
    entry.until = until
    while not entry.settled and (built := log.under_way) is not None and entry in built.entries:
        if log.ctx.now() >= until:
            break
        yield from _lead_on(log, entry, until)
    return entry.appended


def settle(log: Log, until: float) -> Plan[None]:
    """See what became of what was sent last and is not answered, whoever has sent it; as far as that can be learnt in time."""
    built = log.under_way
    while built is not None and log.under_way is built and log.ctx.now() < until:
        yield from _lead_on(log, built.entries[0], until)


def _lead_on(log: Log, entry: Entry, until: float) -> Plan[None]:
    """Send on what is under way, in place of whoever was interrupted; or wait a moment for whoever does."""
    mine = Entry(entry.draft, until=until)  # stands for who leads, and in no line
    try:
        if log.line.lead(mine):
            yield from _serve(log, mine)
        else:
            yield Sleep(LEARN_S)
    finally:
        log.line.leave(mine)


def _serve(log: Log, leader: Entry) -> Plan[None]:
    """Send one transaction of what waits, until it is known what became of it, or who leads has no reason to stay."""
    known: list[Halt] = []
    before: Built | None = None
    tries = 0
    while tries < TRIES_MAX:
        built = log.under_way
        if built is None:
            if log.over is not None:
                fail(log, log.line.waiting(), log.over)
            built = build(log, taken(log.line.waiting()), known)
            if not built.entries:
                return
            log.under_way = built
        unseen, until = partial(_unseen, built), _spell_ends_at(log, built, leader)
        try:
            reply = yield from persist(TXN, built.request, now=log.ctx.now, until=until, on_unknown=unseen, strict=True)
        except Fault as fault:
            if not (yield from _goes_on(log, built, fault, leader)):
                return
            continue
        if reply.succeeded:
            landed(log, built, reply.header.revision)
        else:
            known = sort_out(log, built, before, reply)
        log.under_way = None  # the last: whoever is interrupted before it has sent again what changes nothing
        if reply.succeeded:
            return
        before = built if built.unseen else before
        tries += 1
    text = f"others write to {log.run} again and again"
    fail(log, log.line.waiting(), Fault(Kind.RETRY, text=text, operation="Txn"))


def _spell_ends_at(log: Log, built: Built, leader: Entry) -> float:
    """When it is asked whether trying still makes sense: not later than anybody wants what is sent, or who leads may stay."""
    now_s = log.ctx.now()
    wanted = [now_s + SPELL_S if entry.until is None else entry.until for entry in built.entries]
    stays = now_s + SPELL_S if leader.until is None else leader.until
    return min(now_s + SPELL_S, max(now_s + SPELL_MIN_S, min(stays, max(wanted))))


def patiently(log: Log, request: pb.TxnRequest, kind: str, step: str) -> Plan[pb.TxnResponse]:
    """Send what goes with a record of this kind and may be repeated, as long as authority can come back: its answer."""
    now = log.ctx.now
    since_s = now()
    delay: Delay | None = None
    reply: pb.TxnResponse | None = None
    try:
        while reply is None:
            try:
                reply = yield from persist(TXN, request, now=now, until=now() + SPELL_S)
            except Fault as fault:
                full = fault.cause is Cause.NO_SPACE
                if (fault.lasting and not full) or not log.alive():
                    raise
                delay = again(delay, kind=kind, step=step, fault=fault, waited_s=now() - since_s)
                log.line.delayed(delay)
                if full:
                    yield Sleep(FULL_S)
    finally:
        _over(log, delay, since_s, recorded=reply is not None)
    return reply


def _delayed(log: Log, waiting: Sequence[Entry], fault: Fault) -> None:
    """Tell of the first that waits as long as it takes; who waits only for a while is told soon enough."""
    for entry in waiting:
        if not entry.settled and entry.until is None:
            kind, step = entry.draft.kind, entry.draft.step
            waited_s = log.ctx.now() - entry.since_s
            entry.delay = again(entry.delay, kind=kind, step=step, fault=fault, waited_s=waited_s)
            log.line.delayed(entry.delay)
            return


def _over(log: Log, delay: Delay | None, since_s: float, *, recorded: bool) -> None:
    """Tell that nobody waits any more, if it was told that somebody does."""
    if delay is not None:
        log.line.delayed(delay.over("recorded" if recorded else "given_up", log.ctx.now() - since_s))


def _unseen(built: Built) -> None:
    built.unseen += 1


def _goes_on(log: Log, built: Built, fault: Fault, leader: Entry) -> Plan[bool]:
    """Whether to send on after a spell without an answer: evidence is sent as long as authority can come back.

    Also to an etcd that is full: it keeps leases alive, and a person can make room. What was surely not written is put together
    anew, without the intents: nothing is begun meanwhile.
    """
    if not built.unseen:
        log.under_way = None
    full = fault.cause is Cause.NO_SPACE
    waiting = log.line.waiting()
    if (fault.lasting and not full) or not log.alive():
        fail(log, waiting, fault)
        return False
    now_s = log.ctx.now()
    for entry in waiting:
        begins = entry.intent and not (built.unseen and entry in built.entries)
        if begins or (entry.until is not None and now_s >= entry.until):
            fail(log, (entry,), fault)
    over = leader.settled or (leader.until is not None and now_s >= leader.until)
    _delayed(log, waiting, fault)
    if over or all(entry.settled for entry in waiting):
        return False  # if anybody waits still, they lead now
    if full:
        yield Sleep(FULL_S)
    return True
