"""Steps with an outside world: doubts and words about them, conflicts, drift, and what is told while a call is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leasekeeper.protocol.conduct import Gate
from leasekeeper.protocol.pointer import Pointer, read_pointer
from leasekeeper.protocol.resolve import Word, resolve
from leasekeeper.run_errors import ArgumentsChanged, Conflict, Drift, InDoubt, NotApplied, StepBusy
from leasekeeper.run_records import Answered, Observed
from tests.model.steps import Crash, Crashed, Life, Outside, Works
from tests.model.works import BY_NAME, attempt, check_records


def test_a_doubt_is_recorded_and_told_once_and_stays() -> None:
    """A16: in doubt once, in doubt in every life after it: one record, one alarm, no call."""
    works, outside = BY_NAME["bare"], Outside()
    life = Life(crash=Crash(1, "after"))
    with pytest.raises(Crashed):
        attempt(life, works, outside)
    alarms = []
    for _ in range(3):
        life.end()
        life = Life(life.world)
        with pytest.raises(InDoubt):
            attempt(life, works, outside)
        with pytest.raises(InDoubt):
            attempt(life, works, outside)
        alarms += life.alarms
    assert [(alarm.kind, alarm.step) for alarm in alarms] == [("in_doubt", "s")]
    assert [receipt.kind for receipt in life.owner.records()].count("in_doubt") == 1
    assert len(outside.requests) == 1


def resolved(life: Life, *, applied: bool, result: bytes = b"null", step: str = "s") -> None:
    """An operator's word."""
    word = Word(step=step, applied=applied, evidence=b'"looked"', result=result)
    life.owner.client.do(resolve(life.owner.client.ctx, life.owner.keys, word, life.world.now_s + 5))


@pytest.mark.parametrize("applied", [True, False])
def test_an_operators_word_goes_on(applied: bool) -> None:
    """A16: applied: the operator's result from then on; not applied: called again, with the same key."""
    works, outside = BY_NAME["bare"], Outside()
    life = Life(crash=Crash(1, "before" if not applied else "after"))
    with pytest.raises(Crashed):
        attempt(life, works, outside)
    life.end()
    life = Life(life.world)
    with pytest.raises(InDoubt):
        attempt(life, works, outside)
    resolved(life, applied=applied, result=b"42")
    assert attempt(life, works, outside) == (42 if applied else 1)
    assert len(outside.applied) == 1
    life.end()
    again = Life(life.world)
    assert attempt(again, works, outside) == (42 if applied else 1)


def test_an_operators_word_while_the_call_is_under_way() -> None:
    """The operator says that it was applied while its owner is about to record just that: one of both is recorded, and given."""
    works, outside = BY_NAME["dedupes"], Outside(dedupes=True)
    life = Life()
    calls = works.calls(outside)
    original = calls.effect

    def effect(pointer: Pointer) -> Any:
        got = original(pointer)
        stands = life.world.store.keys[life.owner.keys.step("s")]
        pointer = read_pointer(stands)
        life.world.store.put(stands.key, pointer.turned("in_doubt", 2).stored())
        resolved(life, applied=True, result=b"7")
        return got

    object.__setattr__(calls, "effect", effect)
    assert life.step(works.spec("s"), calls) == 7
    assert attempt(life, works, outside) == 7
    check_records(life)


def test_not_applied_after_an_unknown_attempt_vouches_for_nothing() -> None:
    """A18: an attempt of unknown fate, then one that surely was not applied: the key's age still counts, for the first one."""
    works, outside = BY_NAME["dedupes"], Outside(dedupes=True)
    life = Life(crash=Crash(1, "after"))
    with pytest.raises(Crashed):
        attempt(life, works, outside)
    life.end()
    life = Life(life.world)

    def refused(pointer: Pointer) -> Any:
        raise NotApplied("busy")

    calls = works.calls(outside)
    object.__setattr__(calls, "effect", refused)
    with pytest.raises(NotApplied):
        life.step(works.spec("s"), calls)
    life.end()
    life.world.now_s += 2 * 86400.0
    outside.applied.clear()  # by now the callee has forgotten the key
    late = Life(life.world)
    with pytest.raises(InDoubt):
        attempt(late, works, outside)
    assert len(outside.requests) == 1


def test_not_applied_of_the_only_attempt_is_tried_again() -> None:
    """An effect that says that nothing happened is called again in the next attempt, whatever is declared of it."""
    works, outside = BY_NAME["bare"], Outside()
    life = Life()
    calls = works.calls(outside)

    def refused(pointer: Pointer) -> Any:
        raise NotApplied("busy")

    object.__setattr__(calls, "effect", refused)
    for _ in range(2):
        with pytest.raises(NotApplied):
            life.step(works.spec("s"), calls)
    assert attempt(life, works, outside) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_interrupted_before_the_call_leaves_no_doubt(error: type[BaseException]) -> None:
    """Interrupted between intent and call, as while waiting at the gate: nothing was applied, and the next attempt just calls."""
    works, outside = Works("grown old", asks=True), Outside()
    life = Life()
    spec = works.spec("s")
    object.__setattr__(spec, "preflight_max_age_s", -1.0)
    asked: list[int] = []
    calls = works.calls(outside)
    original = calls.preflight
    assert original is not None

    def preflight(pointer: Pointer) -> Any:
        asked.append(pointer.attempts)
        if len(asked) == 2:
            raise error
        return original(pointer)

    object.__setattr__(calls, "preflight", preflight)
    with pytest.raises(error):
        life.step(spec, calls)
    assert asked == [0, 1]
    assert outside.requests == []
    assert attempt(life, BY_NAME["asks"], outside) == 1


def test_somebody_elses_effect_is_a_conflict_ever_after() -> None:
    """A14: applied already, and not by this run: recorded, not called, and said again by each life."""
    works, outside = BY_NAME["asks"], Outside()
    life = Life()
    outside.applied.append("theirs")
    calls = works.calls(outside)
    object.__setattr__(calls, "preflight", lambda pointer: Observed("theirs", applied=True))
    for _ in range(2):
        with pytest.raises(Conflict) as told:
            life.step(works.spec("s"), calls)
        assert told.value.receipt is not None
        assert told.value.receipt.data["pre"]["value"] == "theirs"
        life.end()
        life = Life(life.world)
    assert outside.requests == []
    kinds = [receipt.kind for receipt in life.owner.records()]
    assert kinds.count("conflict") == 1
    assert "intent" not in kinds


def test_other_arguments_under_one_key() -> None:
    """C23: a key stands for one set of arguments, done or begun, in this life or the next."""
    works, outside = BY_NAME["dedupes"], Outside(dedupes=True)
    life = Life()
    attempt(life, works, outside)
    for _ in range(2):
        with pytest.raises(ArgumentsChanged):
            life.step(works.spec("s", "b" * 64), works.calls(outside))
        life.end()
        life = Life(life.world, Crash(2, "before"))
    assert len(outside.requests) == 1
    with pytest.raises(Crashed):
        life.step(works.spec("t"), works.calls(outside))
    life.end()
    life = Life(life.world)
    with pytest.raises(ArgumentsChanged):
        life.step(works.spec("t", "b" * 64), works.calls(outside))


def test_a_postcondition_that_does_not_hold_any_more() -> None:
    """A33: a replay whose postcondition is true no more is Drift, recorded; nothing is called again."""
    works, outside = BY_NAME["probe"], Outside()
    life = Life()
    attempt(life, works, outside)
    outside.applied.clear()
    for _ in range(2):
        with pytest.raises(Drift):
            attempt(life, works, outside)
    kinds = [receipt.kind for receipt in life.owner.records()]
    assert kinds.count("drift") == 2
    assert len(outside.requests) == 1


def test_a_postcondition_that_never_held_is_a_doubt() -> None:
    """B12: the effect returned, and nothing of it is there: no outcome, but a doubt."""
    works, outside = BY_NAME["probe"], Outside()
    life = Life()
    calls = works.calls(outside)
    object.__setattr__(calls, "verify", lambda pointer, result: "yes, as it seems")
    with pytest.raises(InDoubt):
        life.step(works.spec("s"), calls)
    assert "outcome" not in [receipt.kind for receipt in life.owner.records()]


@pytest.mark.parametrize("name", ["dedupes", "probe", "all of it", "memo"])
def test_what_is_in_doubt_is_not_called_before_somebody_has_said(name: str) -> None:
    """A16: also where it could be called again: the operator who was told looks at a world that nobody changes meanwhile."""
    works, outside = BY_NAME[name], Outside(dedupes=True)
    life = Life()
    calls = works.calls(outside)
    asked: list[str] = []
    object.__setattr__(calls, "effect", lambda pointer: asked.append(pointer.idem))
    object.__setattr__(calls, "verify", lambda pointer, result: False)
    for _ in range(3):
        with pytest.raises(InDoubt):
            life.step(works.spec("s"), calls)
    assert len(asked) == 1
    resolved(life, applied=False)
    with pytest.raises(InDoubt):
        life.step(works.spec("s"), calls)
    assert len(asked) == 2
    assert asked[0] == asked[1]


class SlowGate(Life):
    """A life that waits at the gate, for authority that is missing meanwhile, until something else has happened."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def _perform(self, operation: Any) -> Any:
        if isinstance(operation, Gate):
            self.meanwhile()
        return super()._perform(operation)


def test_a_key_that_grows_too_old_at_the_gate_is_not_sent() -> None:
    """A18: young enough when it was decided on, and not any more when the gate passes: the callee may have forgotten it."""
    works, outside = BY_NAME["dedupes"], Outside(dedupes=True)
    life = Life(crash=Crash(1, "after"))
    with pytest.raises(Crashed):
        attempt(life, works, outside)
    life.end()
    slow = SlowGate(life.world)
    slow.meanwhile = lambda: wall.__setitem__(0, 2 * 86400.0)
    wall, clock = [0.0], slow.owner.log.ctx.wall
    slow.owner.log.ctx.wall = lambda: clock() + wall[0]
    with pytest.raises(InDoubt):
        attempt(slow, works, outside)
    assert len(outside.requests) == 1


def test_a_world_that_is_not_sure_any_more_at_the_gate_is_not_believed() -> None:
    """A15, A17: a "not applied" has grown old at the gate; asked anew the preflight cannot tell, and nothing is called."""
    works, outside = BY_NAME["probe"], Outside()
    life = Life(crash=Crash(2, "before"))
    with pytest.raises(Crashed):
        attempt(life, works, outside)
    life.end()
    slow = SlowGate(life.world)
    calls = works.calls(outside)
    answers = [False, None]
    object.__setattr__(calls, "preflight", lambda pointer: Observed(None, applied=answers.pop(0)))
    now, passed = slow.owner.log.ctx.now, [0.0]
    slow.owner.log.ctx.now = lambda: now() + passed[0]
    slow.meanwhile = lambda: passed.__setitem__(0, 9.0)
    with pytest.raises(InDoubt):
        slow.step(works.spec("s"), calls)
    assert outside.requests == []


def test_one_step_at_a_time_under_one_key() -> None:
    """StepBusy: while a step is under way, another with its key is refused, and none once it has ended, however it did."""
    works, outside = BY_NAME["bare"], Outside()
    life = Life()
    calls = works.calls(outside)
    inner: list[BaseException] = []

    def effect(pointer: Pointer) -> Any:
        try:
            attempt(life, works, outside)
        except StepBusy as busy:
            inner.append(busy)
        return outside.apply(pointer.idem)

    object.__setattr__(calls, "effect", effect)
    assert life.step(works.spec("s"), calls) == 1
    assert len(inner) == 1
    assert not life.incarnation.busy
    assert attempt(life, works, outside, "other") == 2


def test_what_is_told_of_an_answer_cannot_undo_it() -> None:
    """A result with something about it that is no JSON: the step is done all the same, and the record says why it is not told."""
    life = Life()
    works, outside = BY_NAME["bare"], Outside()
    calls = works.calls(outside)
    object.__setattr__(calls, "effect", lambda pointer: Answered(outside.apply(pointer.idem), {"usage": object()}))
    assert life.step(works.spec("s"), calls) == 1
    assert life.owner.records()[-1].data["about"]["refused"]
