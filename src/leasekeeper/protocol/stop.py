"""Where a step stops without an outcome: somebody else's effect, a doubt, a postcondition that no longer holds.

Each is recorded under the fence before anybody is told, and somebody is told once of each. What could not be told is due: the
head names it, and the next life tells it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.protocol.append import Entry, append
from leasekeeper.protocol.conduct import Alarm, Conduct, Talk, Tell
from leasekeeper.protocol.incarnation import check_room, draft, put
from leasekeeper.protocol.limits import RECORDS_MAX
from leasekeeper.protocol.outcome import joined, seen_text
from leasekeeper.protocol.receipt import Draft, plain, read_receipt
from leasekeeper.run_errors import Conflict, Drift, InDoubt, Quarantined

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasekeeper.protocol.head import Head
    from leasekeeper.protocol.incarnation import Incarnation, Spec
    from leasekeeper.protocol.pointer import Pointer
    from leasekeeper.run_records import Observed, Receipt

__all__ = ["alarm", "conflict", "doubt", "drifted", "entered"]

# What a run keeps free for records that matter more than those of its drifts, which each life may find again.
DRIFT_ROOM = 1000


def conflict(life: Incarnation, spec: Spec, pointer: Pointer, seen: Observed) -> Conduct[Conflict]:
    """Somebody else has applied it: record that. The error to raise, with the record."""
    log, key = life.log, life.log.keys.step(spec.key)
    check_room(life)
    made = draft(life, spec, "conflict", joined(args=b'"%b"' % spec.args.encode(), pre=seen_text(seen)))
    entry = Entry(
        made,
        puts=lambda seq: (put(key, pointer.turned("conflict", seq)),),
        expects=((key, pointer.mod_revision),),
        size=len(made.data),
    )
    appended = yield Talk(append(log, entry), "conflict")
    yield Tell("conflict", spec.key, spec.kind)
    receipt = read_receipt(appended.stored, f"record {appended.seq} of {log.run}")
    return Conflict(run=log.run, step=spec.key, receipt=receipt)


def doubt(life: Incarnation, spec: Spec, pointer: Pointer, why: str) -> Conduct[InDoubt]:
    """Nobody can tell what became of it: record that once, tell somebody once. The error to raise."""
    log, key = life.log, life.log.keys.step(spec.key)
    if pointer.state != "in_doubt":
        entry = Entry(
            draft(life, spec, "in_doubt", plain({"args": spec.args, "intent": pointer.intent, "why": why})),
            puts=lambda seq: (put(key, pointer.turned("in_doubt", seq)),),
            expects=((key, pointer.mod_revision),),
            change=lambda head: head.in_doubt(spec.key),
        )
        yield Talk(append(log, entry), "in_doubt")
        yield Tell("in_doubt", spec.key, spec.kind)
    if spec.key in log.head.due:
        yield from alarm(life, Alarm("in_doubt", spec.key, why, pointer.intent))
    return InDoubt(run=log.run, step=spec.key, seq=pointer.intent, why=why)


def drifted(life: Incarnation, spec: Spec, receipt: Receipt) -> Conduct[None]:
    """What was done does not hold any more: record that, tell somebody, and raise Drift unless the step accepts it."""
    log, accepted = life.log, spec.drift == "accept"
    made = draft(life, spec, "drift", plain({"accepted": accepted, "outcome": receipt.seq}))
    if log.head.seq + DRIFT_ROOM <= RECORDS_MAX:  # else it is told alone
        yield Talk(append(log, Entry(made)), "drift")
    yield Tell("drift", spec.key, spec.kind, accepted=accepted)
    if accepted:
        return
    yield Alarm("drift", spec.key, "what was done does not hold any more", receipt.seq)
    raise Drift(run=log.run, step=spec.key, seq=receipt.seq)


def entered(life: Incarnation) -> Conduct[None]:
    """What is still due when a life begins: tell what no life before could tell, and stop a run that is quarantined.

    Raises Quarantined.
    """
    log, head = life.log, life.log.head
    if head.status == "quarantined":
        if "" in head.due:
            why = f"it was begun again {head.restarts} times without a step done"
            yield from alarm(life, Alarm("quarantined", "", why, head.seq))
        raise Quarantined(run=log.run, restarts=head.restarts)
    for step in head.due:
        yield from alarm(life, Alarm("in_doubt", step, "it was not told yet", head.seq))


def alarm(life: Incarnation, told: Alarm) -> Conduct[None]:
    """Tell somebody; once that is done, it is recorded, so that no later life tells it again."""
    if (yield told):
        data = plain({"kind": told.kind})
        made = Draft("alerted", told.step, data, life.log.ctx.new_nonce())
        yield Talk(append(life.log, Entry(made, change=_told(told.step))), "alerted")


def _told(step: str) -> Callable[[Head], Head]:
    return lambda head: head.told(step)
