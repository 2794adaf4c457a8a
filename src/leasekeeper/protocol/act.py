"""Intent, gate, call, postcondition, outcome: the part of a step in which something happens.

Rules, each a function of its own so that it can be examined, and replaced in a copy to show that it matters:

* `believes`: what an effect returned is an outcome only once its postcondition holds.
* `fresh`: what a preflight saw counts for a while only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasekeeper.error_words import halted_by
from leasekeeper.errors import Misuse, StaleToken, StopWork, shown
from leasekeeper.protocol import outcome as outcomes
from leasekeeper.protocol.append import Entry, Fenced, Unexpected, append, learn
from leasekeeper.protocol.checkpoint import Change, check_expected
from leasekeeper.protocol.conduct import Conduct, Gate, Invoke, Talk, Tell
from leasekeeper.protocol.doubt import Verdict
from leasekeeper.protocol.incarnation import check_room, draft, put
from leasekeeper.protocol.late import leave_late
from leasekeeper.protocol.limits import believe, space
from leasekeeper.protocol.plan import Fault, Kind, Plan, Sleep
from leasekeeper.protocol.pointer import read_pointer
from leasekeeper.protocol.receipt import plain
from leasekeeper.protocol.recorded import outcome_of
from leasekeeper.protocol.stop import conflict, doubt
from leasekeeper.run_errors import Conflict, CorruptState, NotApplied, RunHalted, RunRewound, StaleCheckpoint
from leasekeeper.run_records import Observed

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasekeeper.protocol.append import Log
    from leasekeeper.protocol.head import Head
    from leasekeeper.protocol.incarnation import Calls, Incarnation, Spec
    from leasekeeper.protocol.pointer import Pointer
    from leasekeeper.protocol.receipt import Draft

__all__ = ["READ_S", "TRIES_MAX", "act", "holds", "intend", "observe", "record_outcome"]

# How often a step looks again because others changed where it stands.
TRIES_MAX = 20
# How often a preflight may have grown old before the call is made.
PREFLIGHTS_MAX = 5
# What else ends a run while a call is under way; what came of the call is not to be lost with it.
OVER = (CorruptState, RunRewound, StaleToken)
READ_S = 10.0
# How long it is tried to record that a call was not made, once its caller was interrupted.
INTERRUPTED_S = 2.0
# Between two looks at a postcondition that may still come true.
SETTLE_S = 0.2


def believes(ok: object) -> bool:
    """Whether a postcondition holds: nothing but True says so."""
    return ok is True


def fresh(age_s: float, max_age_s: float) -> bool:
    """Whether what a preflight saw so long ago still counts."""
    return age_s <= max_age_s


def observe(life: Incarnation, spec: Spec, calls: Calls, pointer: Pointer) -> Conduct[tuple[Observed | None, float]]:
    """What the preflight sees, and when it was asked."""
    asked_s = life.log.ctx.now()
    if calls.preflight is None:
        return None, asked_s
    preflight, handle = calls.preflight, calls.handle(pointer)
    seen = yield Invoke(lambda: preflight(handle), "preflight")
    if not isinstance(seen, Observed):
        raise Misuse(f"the preflight of step {spec.key!r} returned {type(seen).__name__}: expected an Observed")
    return seen, asked_s


def intend(life: Incarnation, spec: Spec, pointer: Pointer, seen: Observed | None, *, alone: bool) -> Conduct[Pointer]:
    """Record what is about to be done; ``alone`` as for `act`. Who is interrupted in it has called nothing: that is recorded."""
    log, key = life.log, life.log.keys.step(spec.key)
    check_room(life)
    now_s = log.ctx.now()
    if not life.space.holds(now_s, log.head.size):
        found = yield Talk(space(log.ctx, life.quota, now_s + READ_S), "space")
        life.space = believe(found, now_s, log.head.size)
    kind = "before" if spec.kind == "memo" else "intent"
    made = draft(life, spec, kind, outcomes.intent_text(spec, pointer, seen))
    entry = Entry(
        made,
        puts=lambda seq: (put(key, pointer.begun(seq)),),
        expects=((key, pointer.mod_revision),),
        change=lambda head: head.settled(spec.key),
        intent=True,
        size=len(made.data),
    )
    try:
        appended = yield Talk(append(log, entry), kind)
    except RunHalted as halted:
        age_s = log.ctx.wall() - halted.at_ms / 1000 if halted.at_ms else None
        yield Tell("halted", spec.key, spec.kind, halt_s=age_s, why=halted_by(halted.scope, halted.reason, halted.by))
        raise
    except (Exception, StopWork, GeneratorExit):
        raise
    except BaseException as error:
        landed = yield Talk(learn(log, entry, log.ctx.now() + INTERRUPTED_S), kind)
        if landed is not None:
            begun = outcomes.moved(pointer.begun(landed.seq), landed.revision)
            yield from _raised(life, spec, begun, error, applied=False if alone else None, asking="preflight")
        raise
    return outcomes.moved(pointer.begun(appended.seq), appended.revision)


@dataclass(frozen=True, slots=True)
class Again:
    """Why a step may be called once more: what the preflight saw, and what `judge` makes of that at any later moment."""

    seen: Observed | None
    judge: Callable[[Observed | None], tuple[Verdict, str]]


def act(
    life: Incarnation,
    spec: Spec,
    calls: Calls,
    pointer: Pointer,
    seen_s: float,
    *,
    alone: bool,
    again: Again | None = None,
) -> Conduct[Any]:
    """The gate, the call, the postcondition, the outcome; the intent is recorded.

    ``alone``: surely no earlier attempt was applied. Otherwise that this one was not says nothing of the step, and ``again`` is
    why it may be called.
    """
    now = life.log.ctx.now
    seen_s, applied = yield from _ready(life, spec, calls, pointer, seen_s, alone=alone, again=again)
    if applied is not None:
        return (yield from adopt(life, spec, calls, pointer, applied))
    handle = calls.handle(pointer)
    began_s = now()
    yield Tell("called", spec.key, spec.kind, repeated=pointer.attempts > 1, window_s=began_s - seen_s)
    try:
        result = yield Invoke(lambda: calls.effect(handle), "effect")
    except NotApplied as error:
        yield from _last_word(calls, handle)
        yield from _raised(life, spec, pointer, error, applied=False if alone else None)
        raise
    except (Exception, StopWork) as error:
        yield from _last_word(calls, handle)
        yield from _raised(life, spec, pointer, error, applied=None)
        raise
    took_ms = int((now() - began_s) * 1000)
    result, about = outcomes.taken_apart(result)
    try:
        held = calls.verify is None or (yield from holds(life, spec, calls, handle, result))
    except (Exception, StopWork) as error:
        yield from _raised(life, spec, pointer, error, applied=None, asking="verify")
        raise
    if not held:
        raise (yield from doubt(life, spec, pointer, "the effect returned, and its postcondition does not hold"))
    post = "unverified" if calls.verify is None else "verified"
    return (yield from record_outcome(life, spec, calls, pointer, result, post=post, ms=took_ms, about=about))


def adopt(life: Incarnation, spec: Spec, calls: Calls, pointer: Pointer, seen: Observed) -> Conduct[Any]:
    """It was applied by the life before; what the preflight found is its result."""
    if calls.verify is not None and not (yield from holds(life, spec, calls, calls.handle(pointer), seen.value)):
        raise (yield from doubt(life, spec, pointer, "it was applied, and its postcondition does not hold"))
    yield Tell("adopted", spec.key, spec.kind)
    post = "observed" if calls.verify is None else "verified"
    return (yield from record_outcome(life, spec, calls, pointer, seen.value, post=post, adopted=True))


def _ready(
    life: Incarnation, spec: Spec, calls: Calls, pointer: Pointer, seen_s: float, *, alone: bool, again: Again | None
) -> Conduct[tuple[float, Observed | None]]:
    """Until the call may be made; see `_come_to_the_gate`.

    What fails before the first call, or is interrupted, surely applied nothing: that is recorded, so that nobody is in doubt.
    """
    try:
        if life.drained and life.anchor is not None:
            yield Invoke(life.anchor, "anchor")
        return (yield from _come_to_the_gate(life, spec, calls, pointer, seen_s, again))
    except (Conflict, StopWork, GeneratorExit):
        raise  # it is recorded; or nothing can be any more
    except BaseException as error:  # also Ctrl-C, and a cancelled task that has waited here for its lease
        yield from _raised(life, spec, pointer, error, applied=False if alone else None, asking="preflight")
        raise


def _come_to_the_gate(
    life: Incarnation, spec: Spec, calls: Calls, pointer: Pointer, seen_s: float, again: Again | None
) -> Conduct[tuple[float, Observed | None]]:
    """Until authority is proven and the preflight, if there is one, is fresh: when it was asked.

    And what it saw, if it sees by now that an earlier attempt was applied, which arrived late: then there is nothing to call.
    """
    now = life.log.ctx.now
    seen = again.seen if again is not None else None
    for _ in range(PREFLIGHTS_MAX):
        yield Gate(spec.need_s)
        if calls.preflight is None or fresh(now() - seen_s, spec.preflight_max_age_s):
            # The gate may have taken its time: a key has grown older meanwhile, and the world may not be sure any more.
            verdict, why = again.judge(seen) if again is not None else (Verdict.CALL, "")
            if verdict is Verdict.STOP:
                raise (yield from doubt(life, spec, pointer, why))
            return seen_s, None
        seen, seen_s = yield from observe(life, spec, calls, pointer)
        if seen is not None and seen.applied:
            if pointer.attempts <= 1:
                raise (yield from conflict(life, spec, pointer, seen))
            return seen_s, seen
    raise Misuse(
        f"the preflight of step {spec.key!r} is older than preflight_max_age={spec.preflight_max_age_s:g} s whenever the call"
        " is to be made: make it faster, or allow more"
    )


def holds(life: Incarnation, spec: Spec, calls: Calls, handle: Any, result: Any) -> Conduct[bool]:
    """Whether the postcondition holds; asked again for ``settle_s``, for worlds that show things late."""
    verify = calls.verify
    assert verify is not None
    until_s = life.log.ctx.now() + spec.settle_s
    while not believes((yield Invoke(lambda: verify(handle, result), "verify"))):
        if life.log.ctx.now() >= until_s:
            return False
        yield Talk(_pause(), "settle")
    return True


def _pause() -> Plan[None]:
    yield Sleep(SETTLE_S)


def _last_word(calls: Calls, handle: Any) -> Conduct[None]:
    """Leave what a call had got so far; a note more or less changes nothing."""
    plan = calls.last_word(handle)
    if plan is not None:
        try:
            yield Talk(plan, "note")
        except (Exception, StopWork):  # noqa: BLE001 - what the call raised is what counts
            return


def _raised(
    life: Incarnation,
    spec: Spec,
    pointer: Pointer,
    error: BaseException,
    *,
    applied: bool | None,
    asking: str = "effect",
) -> Conduct[None]:
    """Leave what was raised; by itself it says nothing of what happened, unless it is known that nothing did."""
    log, key = life.log, life.log.keys.step(spec.key)
    data = plain({"applied": applied, "asking": asking, "intent": pointer.intent, **outcomes.error_text(error)})
    made = draft(life, spec, "raised", data)
    turned = pointer if applied is None else pointer.turned("cleared")
    # Who was interrupted wants to end.
    until = None if isinstance(error, (Exception, StopWork)) else log.ctx.now() + INTERRUPTED_S
    entry = Entry(made, puts=lambda _: (put(key, turned),), expects=((key, pointer.mod_revision),), until=until)
    try:
        yield Talk(append(log, entry), "raised")
    except Unexpected:
        pass  # an operator has decided meanwhile
    except (Fenced, Fault):
        yield from _late(log, pointer, made)
    except OVER:
        yield from _late(log, pointer, made)
        raise


def record_outcome(
    life: Incarnation,
    spec: Spec,
    calls: Calls,
    pointer: Pointer,
    result: Any,
    *,
    post: str,
    ms: int = 0,
    adopted: bool = False,
    about: bytes = b"null",
) -> Conduct[Any]:
    """Record what a step came to, and give back what was recorded; evidence lands as long as authority can come back.

    A checkpoint that cannot go with it is told after it has landed: what happened has happened.
    """
    log = life.log
    told = outcomes.encode(result, spec.key)
    change, refused = _change(log, calls, told)

    def made() -> Draft:
        record = b"null" if change is None else change.record
        data = outcomes.outcome_text(
            spec, pointer, told, post=post, adopted=adopted, ms=ms, about=about, checkpoint=record
        )
        return draft(life, spec, "outcome", data)

    try:
        yield from outcomes.store(life, spec.key, told, 0 if change is None else len(change.record))
        try:
            other = yield from _land(life, spec, pointer, made(), change)
        except StaleCheckpoint as error:
            change, refused = None, error
            other = yield from _land(life, spec, pointer, made(), change)
    except (Fenced, Fault, *OVER):
        yield from _late(log, pointer, made())
        raise
    if not adopted:
        yield Tell("done", spec.key, spec.kind, took_s=ms / 1000)
    if life.anchor is not None:
        yield Invoke(life.anchor, "anchor")
    if refused is not None:
        raise refused
    if other is None:
        return outcomes.returned(told, log.run, spec.key)
    receipt = yield Talk(outcome_of(log, spec.key, other, log.ctx.now() + READ_S), "find")
    return (yield from outcomes.value_of(life, receipt))


def _change(log: Log, calls: Calls, told: outcomes.Told) -> tuple[Change | None, Exception | None]:
    """The checkpoint's change that goes with a result, or why there is none."""
    if calls.checkpoint is None or told.text is None:
        return None, None
    try:
        change: object = calls.checkpoint(json.loads(told.text))
        if not isinstance(change, Change) or change.key != log.keys.checkpoint(change.name):
            raise Misuse(f"commit returned {shown(change)}: expected the change() of a checkpoint of run {log.run}")
        return change, None
    except Exception as error:  # noqa: BLE001 - it is raised once the outcome has landed
        return None, error


def _land(
    life: Incarnation, spec: Spec, pointer: Pointer, made: Draft, change: Change | None
) -> Conduct[Pointer | None]:
    """Append the outcome; where an operator has decided meanwhile that it was applied, what stands there instead."""
    log, key = life.log, life.log.keys.step(spec.key)
    for _ in range(TRIES_MAX):
        if not log.alive():
            raise Fenced(log.run)
        try:
            appended = yield Talk(append(log, _outcome(made, key, pointer, spec.key, change)), "outcome")
        except Unexpected as now:
            check_expected(change, now.key, now.found, log.run)
            pointer = read_pointer(now.found)
            if pointer.state == "done":
                return pointer
        else:
            if change is not None:
                change.landed(appended.seq, appended.revision)
            return None
    raise Fault(Kind.RETRY, text=f"others change step {spec.key!r} again and again", operation="Txn")


def _outcome(made: Draft, key: bytes, pointer: Pointer, step: str, change: Change | None) -> Entry:
    done = pointer.turned
    expects: tuple[tuple[bytes, int], ...] = ((key, pointer.mod_revision),)
    size = len(made.data)
    if change is None:
        return Entry(made, lambda seq: (put(key, done("done", seq)),), expects, _one_more(step), size=size)
    expects = (*expects, (change.key, change.mod_revision))

    def puts(seq: int) -> tuple[Any, ...]:
        return put(key, done("done", seq)), change.put(seq), *change.also

    return Entry(made, puts, expects, _one_more(step), size=2 * size)


def _one_more(step: str) -> Callable[[Head], Head]:
    return lambda head: head.settled(step).one_more()


def _late(log: Log, pointer: Pointer, made: Draft) -> Conduct[None]:
    try:
        yield Talk(leave_late(log, pointer.intent, made), "late")
    except Fault:
        pass  # a hint, no more
