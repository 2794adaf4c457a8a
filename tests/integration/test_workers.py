"""Workers of threads against a real etcd: what they begin and take, what they leave alone, and what they outlive."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

from leasekeeper import Conflict, InputChanged, Keeper, Observed, effect
from leasekeeper.errors import StopWork
from leasekeeper.runs.alert import Alert
from leasekeeper.runs.effect import Step
from leasekeeper.runs.run import Run
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.raw import RawEtcd
from tests.support import until
from tests.working import EVERY_S, Calls, kinds, main_of

pytestmark = pytest.mark.usefixtures("quick", "silent")

# ---------------------------------------------------------------- what a main may raise


class Odd(BaseException):
    """Neither an Exception nor anything of ours."""


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), Odd("odd"), StopWork("stop"), SystemExit(3), KeyboardInterrupt(), MemoryError()],
    ids=repr,
)
def test_a_worker_outlives_whatever_a_function_raises(keeper: Keeper, error: BaseException) -> None:
    """Its one thread goes on after any error, also `sys.exit`; the run is resumed after a rest, and its step is not repeated."""
    calls, raised = Calls(), threading.Event()

    def main(run: Run) -> None:
        run.do("act", calls, run.id)
        if not raised.is_set():
            raised.set()
            raise error

    keeper.begin("order", id="1", ttl=5)
    with keeper.worker({"order": main}, every=EVERY_S, ttl=5) as working:
        until(lambda: working.finished == 1)
    assert working.failed == 1
    assert calls.counts == {"1": 1}


def test_a_function_that_gives_something_to_await_finishes_nothing(
    keeper: Keeper, raw: RawEtcd, namespace: str
) -> None:
    """A plain function that returns a coroutine would finish its run undone: it fails instead."""

    async def later(run: Run) -> None:
        raise AssertionError("never awaited")

    keeper.begin("order", id="1", ttl=5)
    with keeper.worker({"order": lambda run: (run.id, later(run))[1]}, every=EVERY_S, ttl=5) as working:
        until(lambda: working.failed >= 1)
    assert "finished" not in kinds(raw, namespace, "order/1")


def test_nothing_is_begun_where_it_is_done_already(keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """A14: `begin` asks first, too, where it is told to: somebody else has applied it, so there is nothing for a worker."""
    applied = True

    @effect
    def patch(step: Step, host: str) -> None:
        raise AssertionError("never called")

    @patch.preflight
    def patched(step: Step, host: str) -> Observed:
        return Observed(host, applied=applied)

    asked: Any = {"signer": None, "ttl": 5, "ask_first": (patch, "h1")}
    with pytest.raises(Conflict):
        keeper.begin("patch", id="h1", **asked)
    assert raw.claims(namespace) == []
    assert raw.keys(f"leasekeeper/{namespace}/run/") == []
    applied = False
    assert keeper.begin("patch", id="h1", **asked)
    applied = True
    assert not keeper.begin("patch", id="h1", **asked), "once it is begun, its own records decide"


# ---------------------------------------------------------------- what a worker outlives


def test_a_lease_that_is_lost(keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """A run whose claim was deleted under its owner is done by the next attempt, which replays what was done."""
    calls, cut = Calls(), threading.Event()

    def main(run: Run) -> None:
        run.do("first", calls, "first")
        if not cut.is_set():
            cut.set()
            raw.delete(run.lease.key)
            until(lambda: run.lease.state.final)
        run.do("second", calls, "second")

    keeper.begin("order", id="1", ttl=5)
    with keeper.worker({"order": main}, every=EVERY_S, ttl=5) as working:
        until(lambda: working.finished == 1)
    assert cut.is_set()
    assert calls.counts == {"first": 1, "second": 1}


def test_an_etcd_that_is_cut_off(
    namespace: str, proxy: FaultProxy, raw: RawEtcd, caplog: pytest.LogCaptureFixture
) -> None:
    """While etcd is away no run is blamed; when it is back all go on."""
    calls = Calls()
    with Keeper(proxy.endpoint, namespace=namespace) as keeper:
        for number in range(5):
            keeper.begin("order", id=str(number), ttl=10)
        proxy.cut()
        with keeper.worker({"order": main_of(calls)}, every=EVERY_S, ttl=10) as working:
            caplog.set_level(logging.WARNING, "leasekeeper")
            until(lambda: any("could not look" in each.getMessage() for each in caplog.records))
            proxy.heal()
            until(lambda: working.finished == 5)
        assert working.failed == 0
    assert sorted(calls.counts.values()) == [1] * 5


@pytest.mark.slow
def test_an_etcd_that_is_restarted(namespace: str) -> None:
    """Killed and started again, three times, while runs are worked on: each effect is applied once, each run is finished."""
    applied = Calls()

    @effect(dedupes=True, key_ttl="1h")
    def act(step: Step, what: str) -> str:
        return applied(what) if not applied.counts[what] else what

    def main(run: Run) -> None:
        for part in "abc":
            run.do(part, act, f"{run.id}{part}")
            time.sleep(0.02)

    with EtcdServer() as etcd, Keeper(etcd.endpoint, namespace=namespace) as keeper:
        for number in range(30):
            keeper.begin("order", id=str(number), ttl=10)
        with keeper.worker({"order": main}, concurrency=4, every=EVERY_S, ttl=10) as working:
            for done in (5, 12, 20):
                until(lambda done=done: working.finished >= done)  # type: ignore[misc]
                etcd.kill()
                etcd.start()
            until(lambda: working.finished == 30)
    assert len(applied.counts) == 90
    assert set(applied.counts.values()) == {1}


# ---------------------------------------------------------------- what waits for people


def test_a_halt(keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """B15: a run under way stops at its next step; none is opened under the halt, others go on, and all go on after it."""
    calls, first = Calls(), threading.Event()

    def main(run: Run) -> None:
        run.do("first", calls, f"{run.id}1")
        first.set()
        until(lambda: halted.is_set() or run.workflow != "order")
        run.do("second", calls, f"{run.id}2")

    halted = threading.Event()
    keeper.begin("order", id="o", ttl=5)
    with keeper.worker({"order": main, "other": main}, concurrency=2, every=EVERY_S, ttl=5) as working:
        assert first.wait(30)
        keeper.halt("order/*", "wait")
        halted.set()
        keeper.begin("other", id="x", ttl=5)
        until(lambda: working.finished == 1)
        until(lambda: working.failed == 1)
        stood = kinds(raw, namespace, "order/o")
        time.sleep(20 * EVERY_S)
        assert kinds(raw, namespace, "order/o") == stood, "a halted run is not opened again and again"
        keeper.unhalt("order/*")
        until(lambda: working.finished == 2)
    assert calls.counts == {"o1": 1, "o2": 1, "x1": 1, "x2": 1}


def test_a_run_in_doubt_is_left_alone_until_it_is_resolved(keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """A16: one alert, no further call and no further record; resolved, the run is taken up again by itself."""
    calls, alerts = Calls(), list[Alert]()

    def unlucky(what: str) -> str:
        calls(what)
        raise OSError("no answer")

    def main(run: Run) -> None:
        calls(run.do("act", unlucky, run.id))

    keeper.begin("order", id="1", ttl=5)
    with keeper.worker({"order": main}, every=EVERY_S, ttl=5, alert=alerts.append) as working:
        until(lambda: alerts)
        until(lambda: working.failed == 2)
        stood = kinds(raw, namespace, "order/1")
        time.sleep(20 * EVERY_S)
        assert kinds(raw, namespace, "order/1") == stood
        assert calls.counts == {"1": 1}
        keeper.resolve("order/1", "act", applied=True, evidence="seen at the bank", result="done")
        until(lambda: working.finished == 1)
    assert calls.counts == {"1": 1, "done": 1}
    assert [each.kind for each in alerts] == ["in_doubt"]


def test_a_poison_run(keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """A25: a run that fails whenever it is tried is put aside after its budget, told once; others go on; lifted, it is done."""
    calls, alerts, cured = Calls(), list[Alert](), threading.Event()

    def main(run: Run) -> None:
        if run.id == "poison" and not cured.is_set():
            raise ValueError("again")
        run.do("act", calls, run.id)

    for name in ("poison", "a", "b"):
        keeper.begin("order", id=name, ttl=5)
    with keeper.worker({"order": main}, every=EVERY_S, ttl=5, restarts=3, alert=alerts.append) as working:
        until(lambda: alerts)
        until(lambda: working.finished == 2)
        keeper.begin("order", id="c", ttl=5)
        until(lambda: working.finished == 3)
        stood = kinds(raw, namespace, "order/poison")
        assert stood.count("opened") == 5, "begun, and so many lives as the budget allows, and the one too many"
        time.sleep(20 * EVERY_S)
        assert kinds(raw, namespace, "order/poison") == stood
        cured.set()
        keeper.resolve("order/poison", evidence="the code was mended")
        until(lambda: working.finished == 4)
    assert [each.kind for each in alerts] == ["quarantined"]
    assert calls.counts == {"poison": 1, "a": 1, "b": 1, "c": 1}


# ---------------------------------------------------------------- what it looks through


def test_what_no_run_can_have_made_is_passed_over(keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """Keys of somebody else's among the unfinished runs stop nobody: neither unreadable names nor runs that are not there."""
    for odd in ("a\x01b", "x" * 300, "", "%zz", "nobody"):
        raw.put(f"leasekeeper/{namespace}/unfinished/order/{odd}")
    calls = Calls()
    keeper.begin("order", id="1", ttl=5)
    with keeper.worker({"order": main_of(calls)}, every=EVERY_S, ttl=5) as working:
        until(lambda: working.finished == 1)
    assert working.failed == 0
    assert calls.counts == {"1": 1}


def test_more_runs_than_a_look_takes_in(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks go on where the last one ended, so that runs behind many others are found as well."""
    from leasekeeper.protocol import unfinished

    monkeypatch.setattr(unfinished, "PAGE", 3)
    monkeypatch.setattr(unfinished, "LOOK_MAX", 5)
    calls = Calls()
    for number in range(20):
        keeper.begin("order", id=f"{number:03}", ttl=5)
        keeper.begin("mail", id=f"m{number:03}", ttl=5)

    def main(run: Run) -> None:
        if run.workflow == "order" and run.id < "012":
            raise ValueError("in the way")
        run.do("act", calls, run.id)

    with keeper.worker({"order": main, "mail": main}, concurrency=2, every=EVERY_S, ttl=5, restarts=1000) as working:
        until(lambda: working.finished == 28)
    assert set(calls.counts.values()) == {1}


def test_a_run_that_was_finished_meanwhile(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at a run and its lease somebody else may have finished it: its function is not called again."""
    calls, tried = Calls(), threading.Event()
    acquire = keeper.try_acquire

    def late(name: str, **more: Any) -> Any:
        if name == "run/order/1" and not tried.is_set():
            with keeper.run("order", id="1", ttl=5) as run:
                run.do("act", calls, "by somebody else")
            tried.set()
        return acquire(name, **more)

    keeper.begin("order", id="1", ttl=5)
    monkeypatch.setattr(keeper, "try_acquire", late)
    with keeper.worker({"order": main_of(calls)}, every=EVERY_S, ttl=5) as working:
        assert tried.wait(30.0)
        time.sleep(5 * EVERY_S)
    assert (working.finished, working.failed) == (0, 0)
    assert calls.counts == {"by somebody else": 1}


# ---------------------------------------------------------------- beginning runs


def test_eight_who_begin_one_run(etcd: EtcdServer, namespace: str, raw: RawEtcd) -> None:
    """Of eight keepers that begin the same run at once one is told that it was new, and it was begun once."""
    keepers = [Keeper(etcd.endpoint, namespace=namespace) for _ in range(8)]
    told: list[Any] = []
    try:
        for name in map(str, range(10)):
            ready = threading.Barrier(8)

            def race(keeper: Keeper, name: str = name, ready: threading.Barrier = ready) -> None:
                ready.wait(30.0)
                told.append((name, keeper.begin("order", id=name, input={"cents": 5}, ttl=5)))

            racers = [threading.Thread(target=race, args=(keeper,), daemon=True) for keeper in keepers]
            for racer in racers:
                racer.start()
            for racer in racers:
                racer.join(30.0)
            assert sorted(new for each, new in told if each == name) == [False] * 7 + [True]
            assert kinds(raw, namespace, f"order/{name}") == ["opened"]
            assert not keepers[0].begin("order", id=name, input={"cents": 5})
            with pytest.raises(InputChanged):
                keepers[1].begin("order", id=name, input={"cents": 6})
    finally:
        for each in keepers:
            each.close()


def test_who_comes_late_opens_nothing(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch, raw: RawEtcd, namespace: str
) -> None:
    """A run that somebody else has begun between the look and the lease gets no further life by `begin`; its lease is free."""
    acquire = keeper.try_acquire

    def late(name: str, **more: Any) -> Any:
        monkeypatch.setattr(keeper, "try_acquire", acquire)
        assert keeper.begin("order", id="1", ttl=5)
        return acquire(name, **more)

    monkeypatch.setattr(keeper, "try_acquire", late)
    assert not keeper.begin("order", id="1", ttl=5)
    assert kinds(raw, namespace, "order/1") == ["opened"]
    assert raw.claims(namespace) == []
