"""Workers against a real etcd: whom they tell of a run that stopped, and that they leave it alone until something has changed."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import AsyncKeeper, Conflict, Keeper, Observed, effect, observe
from leasekeeper.observe import AlertGiven
from leasekeeper.protocol import epoch
from leasekeeper.runs import pool
from leasekeeper.runs.alert import Alert
from leasekeeper.runs.anchor import FileAnchor
from leasekeeper.runs.effect import Effect, Step
from leasekeeper.runs.run import Run
from leasekeeper.testing import EtcdServer
from tests.raw import RawEtcd
from tests.support import until
from tests.working import EVERY_S, Calls, kinds

pytestmark = pytest.mark.usefixtures("quick")
LOOKS = 20


def made_by_others() -> Effect:
    """An effect that somebody else has applied."""

    @effect
    def make(step: Step) -> str:
        raise AssertionError("never called")

    @make.preflight
    def look(step: Step) -> Observed:
        return Observed({"by": "somebody"}, applied=True)

    return make


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged at ERROR."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_conflict_is_told_and_left_alone(
    keeper: Keeper, raw: RawEtcd, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A14 A16: one alert and one line, no further life; an operator's word, and the run goes on by itself."""
    calls, alerts, events, make = Calls(), list[Alert](), list[Any](), made_by_others()

    def main(run: Run) -> None:
        calls(run.do("make", make))

    observe.add(events.append)
    keeper.begin("order", id="1", ttl=5)
    try:
        with keeper.worker({"order": main}, every=EVERY_S, ttl=5, restarts=2, alert=alerts.append) as working:
            until(lambda: alerts)
            stood = kinds(raw, namespace, "order/1")
            time.sleep(LOOKS * EVERY_S)
            assert kinds(raw, namespace, "order/1") == stood == ["opened", "opened", "conflict", "failed"]
            assert (working.failed, len(alerts)) == (1, 1)
            keeper.resolve("order/1", "make", applied=True, evidence="it is ours after all", result="made")
            until(lambda: working.finished == 1)
    finally:
        observe.remove(events.append)
    (alert,) = alerts
    assert (alert.kind, alert.run, alert.step, alert.seq) == ("conflict", "order/1", "make", 3)
    assert alert.command == "leasekeeper runs explain order/1"
    assert alert.holder == keeper._core.ctx.holder
    assert errors(caplog) == [alert.line]
    given = [event for event in events if isinstance(event, AlertGiven)]
    assert given == [AlertGiven("order/1", "make", "conflict", True)]
    assert calls.counts == {"made": 1}


def test_a_conflict_that_the_program_takes_as_an_answer(keeper: Keeper) -> None:
    """A14: a function that catches it and goes on has decided: nobody is told, and its run is finished."""
    alerts, make = list[Alert](), made_by_others()

    def main(run: Run) -> None:
        with pytest.raises(Conflict):
            run.do("make", make)

    keeper.begin("order", id="1", ttl=5)
    with keeper.worker({"order": main}, every=EVERY_S, ttl=5, alert=alerts.append) as working:
        until(lambda: working.finished == 1)
    assert alerts == []


def test_a_hook_that_fails_is_asked_again(keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """A16: whatever the hook raises, the worker goes on, and tells it again later without trying the run."""
    asked: list[str] = []
    make = made_by_others()

    def hook(alert: Alert) -> bool:
        asked.append(threading.current_thread().name)
        if len(asked) == 1:
            raise SystemExit(3)
        return len(asked) > 2

    keeper.begin("order", id="1", ttl=5)
    with keeper.worker({"order": lambda run: run.do("make", make)}, every=EVERY_S, ttl=5, alert=hook) as working:
        until(lambda: len(asked) == 3)
        time.sleep(LOOKS * EVERY_S)
        assert len(asked) == 3
        keeper.begin("order", id="2", ttl=5)
        until(lambda: len(asked) == 4)
    assert working.failed == 2
    assert kinds(raw, namespace, "order/1").count("opened") == 2
    assert all(name.startswith("leasekeeper-worker-") for name in asked), "never on a thread that beats"


def set_back(keeper: Keeper, raw: RawEtcd, namespace: str, anchor: FileAnchor) -> None:
    """A run whose last records are gone from etcd, and an anchor that knows them."""

    def life(steps: int) -> None:
        with suppress(KeyError), keeper.run("order", id="1", ttl=5, anchors=[anchor]) as run:
            for number in range(steps):
                run.do(f"s{number}", str, number)
            raise KeyError

    life(1)
    prefix = f"leasekeeper/{namespace}/run/"
    before = [(kv.key, kv.value) for kv in raw.keys(prefix)]
    life(3)
    for kv in raw.keys(prefix):
        raw.delete(kv.key)
    for key, value in before:
        raw.put(key, value)


def test_a_run_that_was_set_back_is_told_and_left_alone(
    keeper: Keeper,
    raw: RawEtcd,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A16: one alert and one line, and its lease is not taken again; what is lost is given up, and it goes on by itself."""
    monkeypatch.setattr(pool, "REST_MAX_S", 600.0)
    anchor, alerts, calls = FileAnchor(tmp_path / "anchor"), list[Alert](), Calls()
    set_back(keeper, raw, namespace, anchor)

    def main(run: Run) -> None:
        calls(run.do("after", str, 1))

    asked: Any = {"every": EVERY_S, "ttl": 5, "anchors": [anchor], "alert": alerts.append}
    with keeper.worker({"order": main}, **asked) as working:
        until(lambda: alerts)
        time.sleep(LOOKS * EVERY_S)
        assert (working.failed, len(alerts)) == (1, 1)
        keeper.resolve("order/1", evidence="looked at the bank", accept_rewind=[anchor])
        until(lambda: working.finished == 1)
    assert (alerts[0].kind, alerts[0].run) == ("rewound", "order/1")
    assert errors(caplog) == [alerts[0].line]
    assert calls.counts == {"1": 1}


def test_an_etcd_that_was_set_back_is_told_once(
    namespace: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A30: it concerns every run, so it is one line of the worker's and no run's failure; after the bump all go on."""
    with EtcdServer(fsync=False) as own, Keeper(own.endpoint, namespace=namespace) as keeper:
        for number in range(5):
            keeper.begin("order", id=str(number), ttl=5)
        own.snapshot(tmp_path / "snapshot")
        for number in range(20):
            keeper.acquire(f"n{number}", ttl=5).release()
        own.restore(tmp_path / "snapshot")
        with keeper.worker({"order": lambda run: None}, concurrency=2, every=EVERY_S, ttl=5) as working:
            until(lambda: errors(caplog))
            time.sleep(LOOKS * EVERY_S)
            (line,) = errors(caplog)
            assert line.startswith("a worker can take no run: ")
            assert "leasekeeper epoch bump" in line
            with Keeper(own.endpoint, namespace=namespace) as operator:
                operator._core.run(epoch.bump(operator._core.ctx, operator._core.until()))
            until(lambda: working.finished == 5)
        assert working.failed == 0
        assert errors(caplog) == [line]


def test_halted_runs_are_named_in_the_log(keeper: Keeper, caplog: pytest.LogCaptureFixture) -> None:
    """B15: a worker that meets nothing but halted runs says who halted them and why, once."""
    caplog.set_level(logging.INFO, "leasekeeper")
    keeper.halt("order/*", "the bank is closed")
    keeper.begin("order", id="1", ttl=5)
    keeper.begin("order", id="2", ttl=5)
    with keeper.worker({"order": lambda run: None}, every=EVERY_S, ttl=5) as working:
        until(lambda: any("leaves runs alone" in record.getMessage() for record in caplog.records))
        time.sleep(LOOKS * EVERY_S)
        keeper.unhalt("order/*")
        until(lambda: working.finished == 2)
    told = [record.getMessage() for record in caplog.records if "leaves runs alone" in record.getMessage()]
    by = keeper._core.ctx.holder
    assert told == [f"a worker leaves runs alone: 'order/*' was halted by {by}: the bank is closed"]


def test_under_asyncio_the_hook_is_beside_the_loop(etcd: EtcdServer, namespace: str, raw: RawEtcd) -> None:
    """A16: the same under asyncio: told once, in a thread that is not the loop's, which goes on meanwhile; then left alone."""
    told, let_go, make = list[tuple[str, Alert]](), threading.Event(), made_by_others()
    done: list[str] = []

    def hook(alert: Alert) -> None:
        told.append((threading.current_thread().name, alert))
        assert let_go.wait(30)

    async def main(run: Any) -> None:
        if run.id == "1":
            await run.do("make", make)
        done.append(run.id)

    async def work() -> None:
        async with AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper:
            await keeper.begin("order", id="1", ttl=5)
            async with keeper.worker({"order": main}, concurrency=2, every=EVERY_S, ttl=5, alert=hook):
                await reached(lambda: told)
                await keeper.begin("order", id="2", ttl=5)
                await reached(lambda: done == ["2"])
                let_go.set()
                await asyncio.sleep(LOOKS * EVERY_S)
                await keeper.resolve("order/1", "make", applied=True, evidence="ours", result="made")
                await reached(lambda: done == ["2", "1"])

    asyncio.run(asyncio.wait_for(work(), 60.0))
    ((thread, alert),) = told
    assert (thread, alert.kind) == ("leasekeeper-alarm", "conflict")
    assert kinds(raw, namespace, "order/1").count("conflict") == 1


async def reached(predicate: Callable[[], object]) -> None:
    """Poll until it is true; the test's own bound ends it."""
    while not predicate():  # noqa: ASYNC110 - nobody sets an event for what a test looks at
        await asyncio.sleep(0.02)
