"""What stops a run: too many records, a full etcd, its end, a halt; and what an operator says."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from leasekeeper import (
    ConfigError,
    Conflict,
    Keeper,
    Misuse,
    NotApplied,
    Observed,
    QuotaReserved,
    RunFinished,
    RunHalted,
    RunTooLong,
    SigningKeyMissing,
    effect,
)
from leasekeeper.protocol import limits
from leasekeeper.runs.effect import Step
from leasekeeper.signing import HmacKey
from tests.effects import Effect, ends_with
from tests.raw import RawEtcd

# ---------------------------------------------------------------- too much


def test_a_run_that_is_too_long(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """RunTooLong comes before an intent, while its outcome and the run's end still fit; what is done is still found."""
    monkeypatch.setattr(limits, "RECORDS_MAX", 12)
    made = Effect()
    with keeper.run("order", id="1", signer=None) as run:
        with ends_with(RunTooLong) as told:
            for number in range(20):
                run.do(f"s{number}", made)
        assert told.value.most == 12
        done = len(made.calls)
        assert 3 <= done <= 5
        assert run.do("s0", made) == 1
        assert len(made.calls) == done
    with ends_with(RunFinished), keeper.run("order", id="1", signer=None) as run:
        assert run.do("s1", made) == 1
        run.do("new", made)


@pytest.mark.parametrize("sees", [None, True])
def test_a_finished_run_is_not_opened_again_by_a_step_left_open(
    keeper: Keeper, raw: RawEtcd, sees: bool | None
) -> None:
    """A memo whose exception was swallowed is not put in doubt, nor adopted, once the run is finished: no worker would see it."""
    seen: list[bool | None] = [None]

    @effect()
    def mail(step: Step) -> None:
        raise OSError("no answer")

    @mail.preflight
    def mailed(step: Step) -> Observed:
        return Observed(applied=seen[0])

    with keeper.run("order", id="1", signer=None) as run, pytest.raises(OSError, match="no answer"):
        run.memo("mail", mail)
    seen[0] = sees
    with ends_with(RunFinished), keeper.run("order", id="1", signer=None) as run:
        revision = raw.revision()
        try:
            run.memo("mail", mail)
        finally:
            assert raw.revision() == revision
            assert run._life.log.head.status == "finished"


def test_a_quota_that_is_reached(keeper: Keeper) -> None:
    """Where etcd is as full as it may be, no step is begun; a step that is done is still found."""
    made = Effect()
    with ends_with(KeyError), keeper.run("order", id="1", signer=None) as run:
        run.do("s", made)
        raise KeyError
    with keeper.run("order", id="1", signer=None, quota=1) as run:
        assert run.do("s", made) == 1
        with pytest.raises(QuotaReserved) as told:
            run.do("t", made)
        assert told.value.quota == 1
        assert [step.key for step in run.steps()] == ["s"]
    assert len(made.calls) == 1


# ---------------------------------------------------------------- an operator's word


def test_a_run_that_is_finished_takes_no_word_on_a_step(keeper: Keeper, raw: RawEtcd) -> None:
    """A memo that was given up has no answer in a finished run, and nobody will ask for one: nothing is added after the end."""
    with keeper.run("order", id="1", signer=None) as run, pytest.raises(ValueError, match="x"):
        run.memo("asked", _fail)
    revision = raw.revision()
    for applied in (True, False):
        with pytest.raises(Misuse, match="is finished, and waits for no step"):
            keeper.resolve("order/1", "asked", applied=applied, evidence="looked", signer=None)
    assert raw.revision() == revision


def test_there_is_nothing_to_resolve(keeper: Keeper, raw: RawEtcd) -> None:
    """An operator's word about a run or step that is not there, or is not in doubt, is refused and changes nothing."""
    with ends_with(KeyError), keeper.run("order", id="1", signer=None) as run:
        run.do("done", Effect())
        with pytest.raises(NotApplied):
            run.do("cleared", _refuse)
        with pytest.raises(ValueError, match="x"):
            run.do("intent", _fail)
        revision = raw.revision()
        cases: list[tuple[dict[str, Any], type[BaseException]]] = [
            ({"run": "order/2", "step": "s", "applied": True}, ConfigError),
            ({"run": "order/1", "step": "nobody", "applied": True}, ConfigError),
            ({"run": "order/1", "step": "done", "applied": False}, Misuse),
            ({"run": "order/1", "step": "cleared", "applied": False}, Misuse),
            # Its owner is there, and may be about to call it.
            ({"run": "order/1", "step": "intent", "applied": True}, Misuse),
            ({"run": "order/1"}, Misuse),
            ({"run": "order/1", "step": "intent"}, ConfigError),
            ({"run": "order/1", "applied": True}, ConfigError),
        ]
        for case, error in cases:
            with pytest.raises(error):
                keeper.resolve(**case, evidence="looked", signer=None)
        for evidence in (None, "", {}, [], object()):
            with pytest.raises(ConfigError):
                keeper.resolve("order/1", "intent", applied=True, evidence=evidence, signer=None)
        with pytest.raises(ConfigError):
            keeper.resolve("order/1", "intent", applied=True, evidence="x", result=object(), signer=None)
        with pytest.raises(SigningKeyMissing):
            keeper.resolve("order/1", "intent", applied=True, evidence="x", signer=HmacKey("k1", b"0123456789abcdef"))
        assert raw.revision() == revision
        raise KeyError
    assert (
        keeper.resolve("order/1", "intent", applied=True, evidence="looked", result=[7], signer=None).kind == "resolved"
    )
    with keeper.run("order", id="1", signer=None) as run:
        assert run.do("intent", _fail) == [7]


def _refuse() -> None:
    raise NotApplied("busy")


def _fail() -> None:
    raise ValueError("x")


def test_a_conflict_is_resolved(keeper: Keeper) -> None:
    """Somebody else's effect, accepted by an operator as the step's own: done, with the operator's result."""

    @effect
    def patch(step: Step) -> int:
        raise AssertionError("called")

    patch.preflight(lambda step: Observed(None, applied=True))
    with ends_with(Conflict), keeper.run("order", id="1", signer=None) as run:
        run.do("s", patch)
    keeper.resolve("order/1", "s", applied=True, evidence={"ticket": 7}, result="theirs", signer=None)
    with keeper.run("order", id="1", signer=None) as run:
        assert run.do("s", patch) == "theirs"


# ---------------------------------------------------------------- halts


@pytest.mark.parametrize("scope", ["*", "order/*", "order/1"])
def test_no_intent_after_the_revision_of_a_halt(keeper: Keeper, raw: RawEtcd, namespace: str, scope: str) -> None:
    """B15: of threads that begin steps as fast as they can, none begins after the halt's revision; what was begun is recorded."""
    halted: list[BaseException] = []
    begun = threading.Event()

    def work(index: int) -> None:
        number = 0
        try:
            while True:
                run.do(f"s{index}-{number}", lambda: 1)
                number += 1
                begun.set()
        except RunHalted as error:
            halted.append(error)

    with keeper.run("order", id="1", signer=None) as run, keeper.run("other", id="1", signer=None) as other:
        threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(8)]
        for thread in threads:
            thread.start()
        assert begun.wait(30)
        revision = keeper.halt(scope, "enough")
        for thread in threads:
            thread.join(30)
        assert len(halted) == 8
        root = f"leasekeeper/{namespace}/run/order/1/"
        intents = [key for key in raw.keys(root + "r/") if b'"kind":"intent"' in key.value]
        outcomes = [key for key in raw.keys(root + "r/") if b'"kind":"outcome"' in key.value]
        assert intents
        assert max(key.create_revision for key in intents) < revision
        assert len(intents) == len(outcomes)
        if scope == "*":
            with pytest.raises(RunHalted):
                other.do("s", lambda: 1)
        else:
            assert other.do("s", lambda: 1) == 1
        assert keeper.unhalt(scope)
        assert not keeper.unhalt(scope)
        assert run.do("on", lambda: 1) == 1


def test_what_was_begun_before_a_halt_is_recorded_after_it(keeper: Keeper, caplog: pytest.LogCaptureFixture) -> None:
    """B15: evidence lands under a halt, and so do states; only beginning is stopped. Who is stopped is told by whom, and why."""

    def slow() -> int:
        keeper.halt("order/*", "stop")
        return 7

    with ends_with(RunHalted) as told, keeper.run("order", id="1", signer=None) as run:
        assert run.do("s", slow) == 7
        assert run.do("s", slow) == 7
        run.checkpoint("state", dict).commit(a=1)
        run.do("t", slow)
    assert (told.value.scope, told.value.reason, told.value.step) == ("order/*", "stop", "t")
    assert told.value.by
    said = f"{told.value.by} has halted 'order/*', because: stop"
    assert str(told.value) == f"step t of order/1 was not begun: {said}; to lift it: `leasekeeper unhalt 'order/*'`"
    assert f"run order/1, step 't': halted: {said}" in caplog.messages
