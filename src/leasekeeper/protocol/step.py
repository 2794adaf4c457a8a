"""A step: what is about to be done is recorded before it is done, and what came of it after.

Theory of operation
===================

1. Is an outcome recorded? Its bytes are decoded (on the first time, too: both give equal values), the postcondition is asked
   again, and the effect is not called.
2. The preflight asks the outside world. Is it applied already, and not by this run: a conflict, and no call.
3. The **intent** is recorded, in one transaction under the fence, and not under a halt. It fixes the idempotency key, once.
4. The gate; the preflight once more if it has grown old; the call.
5. The postcondition is asked; the **outcome** is recorded, under the fence, and not stopped by a halt: evidence must land.

Whoever finds an intent without an outcome does not guess (`doubt`): it asks the outside world.

A step that was never begun costs two transactions. Whether it was begun is not asked where the records do not say so: its intent
compares that no key of the step is there, and is refused with what stands there. Nothing is done on either alone: where a step's
key and the records do not say the same (`witness`), one of them was changed by other hands, and that is CorruptState.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leasekeeper.errors import Misuse
from leasekeeper.protocol.act import READ_S, TRIES_MAX, Again, act, adopt, holds, intend, observe
from leasekeeper.protocol.append import Unexpected
from leasekeeper.protocol.conduct import Conduct, Talk, Tell
from leasekeeper.protocol.doubt import Verdict, decide
from leasekeeper.protocol.history import record
from leasekeeper.protocol.incarnation import the_key
from leasekeeper.protocol.outcome import value_of
from leasekeeper.protocol.plan import Fault, Kind
from leasekeeper.protocol.pointer import ABSENT, Pointer, read_pointer
from leasekeeper.protocol.recorded import outcome_of
from leasekeeper.protocol.stop import conflict, doubt, drifted
from leasekeeper.protocol.witness import agreed, catch_up, check_intent, is_agreed
from leasekeeper.run_errors import ArgumentsChanged, Conflict, RunFinished, StepBusy
from leasekeeper.run_records import Observed, Receipt

if TYPE_CHECKING:
    from leasekeeper.protocol.incarnation import Calls, Incarnation, Spec

__all__ = ["do", "same_arguments"]


def same_arguments(recorded: str, given: str) -> bool:
    """Whether a step was recorded with these arguments: its key stands for one set of them."""
    return recorded == given


def do(life: Incarnation, spec: Spec, calls: Calls) -> Conduct[Any]:
    """Do a step, or give back what it came to: the value of its recorded outcome.

    Raises:
        ArgumentsChanged, Conflict, Drift, InDoubt, RunFinished, RunHalted, StepBusy: see `leasekeeper.run_errors`.
        Fenced: the claim is gone.
        whatever the effect raised: it may have been applied; the next time it is in doubt.
    """
    mine = object()
    try:
        # One step of the interpreter: of two threads one finds the other's.
        if life.busy.setdefault(spec.key, mine) is not mine:
            raise StepBusy(run=life.log.run, step=spec.key)
        if life.leaving:  # asked after one counts as under way: whoever leaves looks the other way round
            raise Misuse(f"step {spec.key!r} is not begun: the block of run {life.log.run} is being left")
        return (yield from _do(life, spec, calls))
    finally:
        if life.busy.get(spec.key) is mine:
            del life.busy[spec.key]


def _do(life: Incarnation, spec: Spec, calls: Calls) -> Conduct[Any]:
    log = life.log
    pointer = ABSENT
    if log.account.behind(log.head):
        yield Talk(catch_up(log, log.ctx.now() + READ_S), "find")
    stand = log.account.stand(spec.key)
    if stand is not None or log.head.status == "finished":
        found = yield Talk(life.recorded.find(log, spec.key, log.ctx.now() + READ_S), "find")
        if not isinstance(found, Receipt):
            pointer = found
        elif stand is not None and (stand.state, stand.outcome) == ("done", found.seq):
            return (yield from _replayed(life, spec, calls, found))
    for _ in range(TRIES_MAX):
        if not is_agreed(log, spec.key, pointer):
            pointer = yield Talk(agreed(log, spec.key, log.ctx.now() + READ_S), "find")
        try:
            if not pointer.mod_revision:
                return (yield from _first(life, spec, calls))
            return (yield from _again(life, spec, calls, pointer))
        except Unexpected as now:
            pointer = read_pointer(now.found)
    raise Fault(Kind.RETRY, text=f"others change step {spec.key!r} again and again", operation="Txn")


def _first(life: Incarnation, spec: Spec, calls: Calls) -> Conduct[Any]:
    """A step that nobody has begun, as far as is known: what is written compares that."""
    pointer = Pointer(
        kind=spec.kind,
        args=spec.args,
        idem=the_key(life, spec.key),
        effect=spec.effect,
        at_ms=int(life.log.ctx.wall() * 1000),
    )
    seen, seen_s = yield from observe(life, spec, calls, pointer)
    if seen is not None and seen.applied:
        raise (yield from conflict(life, spec, pointer, seen))
    pointer = yield from intend(life, spec, pointer, seen, alone=True)
    return (yield from act(life, spec, calls, pointer, seen_s, alone=True))


def _again(life: Incarnation, spec: Spec, calls: Calls, pointer: Pointer) -> Conduct[Any]:
    """A step that was begun before: done, stopped, or begun and nobody knows."""
    log = life.log
    if not same_arguments(pointer.args, spec.args):
        raise ArgumentsChanged(run=log.run, step=spec.key, recorded=pointer.args, given=spec.args)
    if pointer.kind != spec.kind:
        raise _other_kind(log.run, spec, pointer)
    if pointer.state == "done":
        receipt = yield Talk(outcome_of(log, spec.key, pointer, log.ctx.now() + READ_S), "find")
        return (yield from _replayed(life, spec, calls, receipt))
    if pointer.state == "conflict":
        receipt = yield Talk(record(log.ctx, log.keys, pointer.outcome, log.ctx.now() + READ_S), "find")
        raise Conflict(run=log.run, step=spec.key, receipt=receipt)
    if log.head.status == "finished":
        # To record a doubt would open it again, and no worker would find it: it is not in their list any more.
        raise RunFinished(run=log.run)
    said = yield Talk(check_intent(log, spec.key, pointer, the_key(life, spec.key), log.ctx.now() + READ_S), "find")
    spec = as_it_was_sent(spec, said)
    seen, seen_s = yield from observe(life, spec, calls, pointer)
    verdict, why = _judge(life, spec, pointer, seen)
    if verdict is Verdict.STOP:
        raise (yield from doubt(life, spec, pointer, why))
    if verdict is Verdict.ADOPT:
        assert seen is not None
        return (yield from adopt(life, spec, calls, pointer, seen))
    alone, found = pointer.state == "cleared", pointer
    pointer = yield from intend(life, spec, pointer, seen, alone=alone)
    again = None if alone else Again(seen, lambda seen: _judge(life, spec, found, seen))
    return (yield from act(life, spec, calls, pointer, seen_s, alone=alone, again=again))


def _other_kind(run: str, spec: Spec, pointer: Pointer) -> ArgumentsChanged:
    text = (
        f"step {spec.key!r} of {run} was begun by {pointer.kind}(), and is asked for by {spec.kind}(): ask for it as before, or"
        " give this one another step key"
    )
    return ArgumentsChanged(text, run=run, step=spec.key, recorded=pointer.args, given=spec.args)


def as_it_was_sent(spec: Spec, said: dict[str, Any]) -> Spec:
    """The step as its callee was told of it: a key that was sent to one which forgets sooner, or at all, is as old as it is.

    ``said`` is what the last intent records, empty where there is none.
    """
    if "dedupes" not in spec.helps or not said:
        return spec
    if "dedupes" not in str(said.get("helps")).split():
        return replace(spec, helps=spec.helps - {"dedupes"})
    sent_s = said.get("key_ttl_s")
    return replace(spec, key_ttl_s=min(spec.key_ttl_s, float(sent_s))) if isinstance(sent_s, int) else spec


def _judge(life: Incarnation, spec: Spec, pointer: Pointer, seen: Observed | None) -> tuple[Verdict, str]:
    if pointer.state == "cleared" and not (seen is not None and seen.applied):
        return Verdict.CALL, "an operator, or the effect itself, has said that it was not applied"
    # By the older of the two: the key of a step says it, and the record of its first intent.
    stand = life.log.account.stand(spec.key)
    since_ms = min(pointer.at_ms, stand.since_ms) if stand is not None and stand.since_ms else pointer.at_ms
    age_s = life.log.ctx.wall() - since_ms / 1000
    verdict, why = decide(spec.helps, seen, age_s=age_s, key_ttl_s=spec.key_ttl_s, memo=spec.kind == "memo")
    if pointer.state == "in_doubt" and verdict is Verdict.CALL:
        # Somebody was told, and may be about to say what they have seen: it must not change meanwhile.
        return Verdict.STOP, "it is in doubt, and nobody has said yet what became of it"
    return verdict, why


def _replayed(life: Incarnation, spec: Spec, calls: Calls, receipt: Receipt) -> Conduct[Any]:
    """What is recorded, if its postcondition still holds."""
    recorded = str(receipt.data.get("args"))
    if not same_arguments(recorded, spec.args):
        raise ArgumentsChanged(run=life.log.run, step=spec.key, recorded=recorded, given=spec.args)
    result = yield from value_of(life, receipt)
    yield Tell("replayed", spec.key, spec.kind)
    if calls.verify is None or spec.verify == "recorded":
        return result
    handle = calls.handle(Pointer(kind=spec.kind, args=spec.args, idem=the_key(life, spec.key), attempts=0))
    if not (yield from holds(life, spec, calls, handle, result)):
        yield from drifted(life, spec, receipt)
    return result
