"""Somebody is told once of each step in doubt, whatever other steps of the run come to at the same moment."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from leasekeeper import Keeper, effect
from leasekeeper.run_errors import Drift, InDoubt, Quarantined
from leasekeeper.runs.alert import Alert
from leasekeeper.runs.effect import Effect
from leasekeeper.runs.run import Run
from leasekeeper.testing import failpoints
from leasekeeper.testing.outside import records_of
from tests.support import until


class Unfinished(Exception):
    """Ends a block without ending its run."""


def doubtful() -> Effect:
    """An effect of which its postcondition never holds."""

    @effect
    def act(step: Any) -> int:
        return 1

    @act.verify
    def stands(step: Any, result: int) -> bool:
        return False

    return act


def stop_at(run: Run, step: str) -> Callable[[], None]:
    """Do a step that ends in doubt."""

    def do() -> None:
        with pytest.raises(InDoubt):
            run.do(step, doubtful())

    return do


def told_of(keeper: Keeper) -> list[str]:
    """The steps of which it is recorded that somebody was told."""
    return [record.step for record in records_of(keeper, "order", "o-1") if record.kind == "alerted"]


def test_two_steps_in_doubt_at_once(keeper: Keeper) -> None:
    """A25: the alert of one step does not stand for that of another, which was in doubt before it."""
    alerts: list[Alert] = []
    held = failpoints.pause_at("in_doubt:reply", on=keeper)
    with suppress(Unfinished), held, keeper.run("order", id="o-1", signer=None, alert=alerts.append) as run:
        thread = threading.Thread(target=stop_at(run, "a"))
        thread.start()
        assert held.wait(30)
        stop_at(run, "b")()
        held.go_on()
        thread.join(30)
        raise Unfinished
    assert sorted(alert.step for alert in alerts) == ["a", "b"]
    assert sorted(told_of(keeper)) == ["a", "b"]


def test_a_step_that_was_told_is_not_told_for_another(keeper: Keeper) -> None:
    """A25: a step in doubt that is asked for again while another one's alert is due is not told again."""
    alerts: list[Alert] = []
    held = failpoints.pause_at("in_doubt:reply", on=keeper, nth=2)
    with suppress(Unfinished), held, keeper.run("order", id="o-1", signer=None, alert=alerts.append) as run:
        stop_at(run, "a")()
        thread = threading.Thread(target=stop_at(run, "b"))
        thread.start()
        assert held.wait(30)
        stop_at(run, "a")()
        held.go_on()
        thread.join(30)
        raise Unfinished
    assert sorted(alert.step for alert in alerts) == ["a", "b"]
    assert sorted(told_of(keeper)) == ["a", "b"]


def test_the_next_life_tells_all_that_is_due(keeper: Keeper) -> None:
    """A25: what no hook could pass on is told by the next life, each step once."""
    with suppress(Unfinished), keeper.run("order", id="o-1", signer=None, alert=lambda _: False) as run:
        stop_at(run, "a")()
        stop_at(run, "b")()
        raise Unfinished
    assert told_of(keeper) == []
    alerts: list[Alert] = []
    for _ in range(2):
        with suppress(Unfinished), keeper.run("order", id="o-1", signer=None, alert=alerts.append):
            raise Unfinished
    assert [alert.step for alert in alerts] == ["a", "b"]
    assert told_of(keeper) == ["a", "b"]


def test_a_resolved_step_is_not_due_any_more(keeper: Keeper) -> None:
    """A25: an operator who decides need not be told; the other step's alert stays due."""
    with suppress(Unfinished), keeper.run("order", id="o-1", signer=None, alert=lambda _: False) as run:
        stop_at(run, "a")()
        stop_at(run, "b")()
        raise Unfinished
    keeper.resolve("order/o-1", "a", applied=True, evidence="seen", result=1, signer=None)
    alerts: list[Alert] = []
    with suppress(Unfinished), keeper.run("order", id="o-1", signer=None, alert=alerts.append):
        raise Unfinished
    assert [alert.step for alert in alerts] == ["b"]


@pytest.mark.parametrize("working", [True, False])
def test_a_doubt_is_one_line_of_the_log(keeper: Keeper, caplog: pytest.LogCaptureFixture, working: bool) -> None:
    """A25: who reads warnings and errors reads of it once, all that is to be said, whether there is a worker or not."""
    caplog.set_level(logging.INFO, "leasekeeper")
    if working:
        assert keeper.begin("order", id="o-1", signer=None)
        with keeper.worker({"order": lambda run: run.do("a", doubtful())}, every=0.05, signer=None) as worker:
            until(lambda: worker.failed == 1)
    else:
        with pytest.raises(InDoubt), keeper.run("order", id="o-1", signer=None) as run:
            run.do("a", doubtful())
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith("in doubt: run order/o-1, step a, record ")
    assert "; the effect returned, and its postcondition does not hold; " in line
    assert "to go on: leasekeeper runs explain order/o-1; if it was applied: " in line
    assert "; if it was not: leasekeeper runs resolve order/o-1 a --not-applied --evidence TEXT" in line
    told = [record.getMessage() for record in caplog.records if "in doubt" in record.getMessage()]
    assert len(told) == 3, "who reads more reads that of the step, and how the life ended"
    assert [text for text in told if "runs resolve" in text] == [line], "what to type stands there once"


def test_a_quarantine_is_one_line_of_the_log(keeper: Keeper, caplog: pytest.LogCaptureFixture) -> None:
    """A25: the same of a run that was put aside."""
    caplog.set_level(logging.INFO, "leasekeeper")
    for _ in range(2):
        with suppress(Unfinished, Quarantined), keeper.run("order", id="o-1", signer=None, restarts=1):
            raise Unfinished
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    with pytest.raises(Quarantined), keeper.run("order", id="o-1", signer=None, restarts=1):
        raise Unfinished
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith("quarantined: run order/o-1, record ")


@pytest.mark.parametrize("accepted", [False, True])
def test_a_drift_is_one_line_of_the_log(keeper: Keeper, caplog: pytest.LogCaptureFixture, accepted: bool) -> None:
    """A25: the same of a drift, whose facts are attributes of that line for logs in JSON; one that is accepted is a warning."""
    good = [True]
    made = effect(drift="accept" if accepted else "raise")(lambda step: 1)
    made.verify(lambda step, result: good[0])
    with suppress(Unfinished), keeper.run("order", id="o-1", signer=None) as run:
        run.do("a", made)
        raise Unfinished
    good[0] = False
    caplog.set_level(logging.INFO, "leasekeeper")
    with nullcontext() if accepted else pytest.raises(Drift), keeper.run("order", id="o-1", signer=None) as run:
        run.do("a", made)
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.levelno == (logging.WARNING if accepted else logging.ERROR)
    told = [record.__dict__.get(f"alert_{name}") for name in ("kind", "run", "step", "seq")]
    assert told == ([None] * 4 if accepted else ["drift", "order/o-1", "a", 3])


@pytest.mark.parametrize("dies", [True, False])
def test_a_worker_tells_what_is_due(keeper: Keeper, dies: bool) -> None:
    """A25: a run in doubt of which nobody was told, for the hook failed or its owner died before, is opened to tell it; once."""
    alerts: list[Alert] = []

    def hook(alert: Alert) -> bool:
        alerts.append(alert)
        return dies or len(alerts) > 1

    with failpoints.raise_at("alerted:send", OSError("struck"), on=keeper) if dies else nullcontext():
        assert keeper.begin("order", id="o-1", signer=None)
        worker = keeper.worker({"order": lambda run: run.do("a", doubtful())}, every=0.05, signer=None, alert=hook)
        with worker:
            until(lambda: told_of(keeper) == ["a"])
            time.sleep(2.5)  # longer than a failed run is left alone
    assert [alert.step for alert in alerts] == ["a", "a"]
    assert told_of(keeper) == ["a"]


def test_a_worker_tells_a_quarantine_that_is_due(keeper: Keeper) -> None:
    """A25: the same of a run that was put aside."""
    alerts: list[Alert] = []

    def hook(alert: Alert) -> bool:
        alerts.append(alert)
        return len(alerts) > 1

    def fails(run: Run) -> None:
        raise RuntimeError

    assert keeper.begin("order", id="o-1", signer=None)
    with keeper.worker({"order": fails}, every=0.05, signer=None, restarts=1, alert=hook):
        until(lambda: told_of(keeper) == [""])
    assert [alert.kind for alert in alerts] == ["quarantined", "quarantined"]
