"""What observers are told of runs, by a real etcd: every event once, and the numbers that come of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from leasekeeper import AsyncKeeper, InDoubt, Keeper, Observed, Quarantined, RunHalted, effect, observe
from leasekeeper.observe import AlertGiven, RunEnded, RunOpened, RunQuarantined, StepPassed, metrics
from leasekeeper.runs.effect import Step
from leasekeeper.testing import EtcdServer


@effect(dedupes=True, key_ttl="1h")
def charge(step: Step, cents: int) -> int:
    """An effect that may be repeated."""
    return cents


def unlucky() -> int:
    """An effect that nobody can tell anything about."""
    raise OSError("the line is dead")


@pytest.fixture
def told() -> Iterator[list[object]]:
    """What observers are told of runs."""
    events: list[object] = []

    def listen(event: object) -> None:
        if isinstance(event, StepPassed | RunOpened | RunEnded | RunQuarantined | AlertGiven):
            events.append(event)

    observe.add(listen)
    yield events
    observe.remove(listen)


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    """Metrics as Prometheus keeps them, of this test alone."""
    made = CollectorRegistry()
    measure = metrics.Metrics(metrics.prometheus(made))
    observe.add(measure)
    yield made
    observe.remove(measure)


def words(events: list[object]) -> list[str]:
    """The events in short."""
    return [str(getattr(each, "what", None) or getattr(each, "how", None) or type(each).__name__) for each in events]


def test_two_lives_of_a_run(etcd: EtcdServer, namespace: str, told: list[object]) -> None:
    """B16: begun, called, done, failed; then resumed, replayed and finished: each told once, by the claim of its life."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        with pytest.raises(TypeError), keeper.run("order", id="42", ttl=5) as run:
            run.do("charge", charge, 5) + "no number"
        with keeper.run("order", id="42", ttl=5) as run:
            run.do("charge", charge, 5)
        with keeper.run("order", id="42", ttl=5) as run:
            run.do("charge", charge, 5)
    assert words(told) == [
        *("begun", "called", "done", "failed"),
        *("resumed", "replayed", "finished"),
        *("read", "replayed", "read"),
    ]
    assert len({getattr(each, "claim", "") for each in told}) == 3
    assert all(getattr(each, "run", "") == "order/42" for each in told)


def test_the_same_under_asyncio(etcd: EtcdServer, namespace: str, told: list[object]) -> None:
    """What is told of a run, and of one that is only begun, does not depend on how it is run."""

    async def lives() -> None:
        async with AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper:
            assert await keeper.begin("order", id="42", ttl=5)
            assert not await keeper.begin("order", id="42", ttl=5)
            async with keeper.run("order", id="42", ttl=5) as run:
                await run.do("charge", charge, 5)

    asyncio.run(lives())
    assert words(told) == ["begun", "left", "resumed", "called", "done", "finished"]


def test_what_stops_a_run_is_counted(
    etcd: EtcdServer, namespace: str, told: list[object], registry: CollectorRegistry
) -> None:
    """A16: a doubt, its alert and a quarantine are numbers, each counted once however often the run is tried."""
    heard: list[str] = []
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        for _ in range(3):
            with (
                pytest.raises((OSError, InDoubt)),
                keeper.run("pay", id="1", ttl=5, alert=lambda a: heard.append(a.kind)) as run,
            ):
                run.do("charge", unlucky)
        for _ in range(4):
            with pytest.raises((OSError, Quarantined)), keeper.run("pay", id="2", ttl=5, restarts=1, alert=fails):
                raise OSError("again")
    assert heard == ["in_doubt"]
    value = registry.get_sample_value
    assert value("leasekeeper_doubts_total", {"workflow": "pay"}) == 1
    assert value("leasekeeper_runs_quarantined_total", {"workflow": "pay"}) == 1
    assert value("leasekeeper_alerts_total", {"kind": "in_doubt", "outcome": "passed_on"}) == 1
    assert value("leasekeeper_runs_ended_total", {"workflow": "pay", "how": "in_doubt"}) == 2
    failed = value("leasekeeper_alerts_total", {"kind": "quarantined", "outcome": "failed"})
    assert failed is not None
    assert failed >= 1, "an alert that could not be passed on is given again"


def fails(alert: object) -> bool:
    """A hook that cannot tell anybody."""
    return False


def test_the_window_can_be_read(etcd: EtcdServer, namespace: str, registry: CollectorRegistry) -> None:
    """A15: the time from the preflight to the call is a histogram, from which a p99 can be read."""

    @effect(probe=True)
    def put(step: Step, name: str) -> str:
        return name

    @put.preflight
    def is_put(step: Step, name: str) -> Observed:
        return Observed(None, applied=False)

    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.run("copy", id="1", ttl=5) as run:
        for number in range(20):
            run.do(f"s{number}", put, "x")
    labels = {"workflow": "copy", "kind": "do"}
    assert registry.get_sample_value("leasekeeper_call_window_seconds_count", labels) == 20
    assert registry.get_sample_value("leasekeeper_call_window_seconds_bucket", {**labels, "le": "+Inf"}) == 20
    total = registry.get_sample_value("leasekeeper_call_window_seconds_sum", labels)
    assert total is not None
    assert total > 0, "the intent lies between"


def test_the_time_from_a_halt_to_its_effect(etcd: EtcdServer, namespace: str, told: list[object]) -> None:
    """B15: a run under way tells how long after the halt it met it; one that is begun under the halt tells no such time."""
    halted = threading.Event()
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:

        def goes_on() -> None:
            with keeper.run("order", id="42", ttl=5) as run:
                for number in range(10_000):
                    run.do(f"s{number}", charge, 5)

        def until_halted() -> None:
            with pytest.raises(RunHalted) as caught:
                goes_on()
            assert caught.value.at_ms > 0
            halted.set()

        thread = threading.Thread(target=until_halted, name="leasekeeper-test", daemon=True)
        thread.start()
        while "done" not in words(told):
            assert thread.is_alive()
        keeper.halt("order/*", "stop")
        assert halted.wait(30.0)
        with pytest.raises(RunHalted), keeper.run("order", id="43", ttl=5) as run:
            run.do("charge", charge, 5)
    met = [each for each in told if isinstance(each, StepPassed) and each.what == "halted"]
    assert [each.run for each in met] == ["order/42", "order/43"]
    assert met[0].halt_s is not None
    assert 0 <= met[0].halt_s < 30
    assert met[1].halt_s is None
    assert [each.how for each in told if isinstance(each, RunEnded)] == ["halted", "halted"]
