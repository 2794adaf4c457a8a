"""Metrics from events: what is counted, what returns to zero, and how Prometheus and OpenTelemetry spell it."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from leasekeeper import Loss, Misuse, State
from leasekeeper.observe import (
    Acquired,
    AcquireFailed,
    AlertGiven,
    BeatMissed,
    CleanupFailed,
    Dropped,
    Event,
    RecordDelayed,
    Released,
    RunEnded,
    RunOpened,
    RunQuarantined,
    StateChanged,
    StepPassed,
)
from leasekeeper.observe.metrics import METRICS, Kind, Metric, Metrics, opentelemetry, prometheus


class Sums:
    """Instruments that add up."""

    def __init__(self) -> None:
        self.sums: defaultdict[tuple[str, ...], float] = defaultdict(float)

    def add(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """Count histograms, add up the rest."""
        assert set(labels) == set(metric.labels)
        assert all(isinstance(label, str) for label in labels.values())
        key = (metric.name.removeprefix("leasekeeper."), *labels.values())
        self.sums[key] += 1 if metric.kind is Kind.HISTOGRAM else value


def acquired(claim: str = "c1") -> Acquired:
    """A lease that begins."""
    return Acquired("a/b", 7, claim, 0.25)


def turned(state: State, claim: str = "c1", reason: str = "revoked") -> StateChanged:
    """A lease that turns."""
    loss = Loss(reason, 1.0, 2.0) if state is State.LOST else None  # type: ignore[arg-type]
    return StateChanged("a/b", 7, claim, state, 5.0, loss)


ENDED = RunEnded("order/42", 7, "c1", "lost", 2.0)
RELEASED = Released("a/b", 7, "c1", 9.0, True)


def sums_of(*events: Event) -> dict[tuple[str, ...], float]:
    """What the events add up to, without zeros."""
    sums = Sums()
    metrics = Metrics(sums)
    for event in events:
        metrics(event)
    return {key: value for key, value in sums.sums.items() if value}


def test_a_life_without_trouble() -> None:
    """Acquired and released: one of each, and nothing is held any more."""
    assert sums_of(acquired()) == {("acquire.duration", "", "acquired"): 1, ("held", ""): 1}
    assert sums_of(acquired(), RELEASED) == {
        ("acquire.duration", "", "acquired"): 1,
        ("hold.duration", "", "released"): 1,
    }


@pytest.mark.parametrize(
    ("end", "word", "more"),
    [
        (turned(State.LOST), "revoked", {("lost", "", "revoked"): 1}),
        (turned(State.LOST, reason="expired"), "expired", {("lost", "", "expired"): 1}),
        (Dropped("a/b", "c1"), "dropped", {}),
        (RELEASED, "released", {}),
    ],
)
@pytest.mark.parametrize("suspended", [False, True])
def test_every_end_brings_the_gauges_back(
    end: Event, word: str, more: dict[tuple[str, ...], float], suspended: bool
) -> None:
    """However a lease ends, suspended or not, nothing counts as held or suspended afterwards."""
    events = [acquired(), *([turned(State.SUSPENDED)] if suspended else []), end]
    expected = {("acquire.duration", "", "acquired"): 1.0, ("hold.duration", "", word): 1.0, **more}
    assert sums_of(*events) == expected | ({("suspensions", ""): 1.0} if suspended else {})


def test_suspensions_come_and_go() -> None:
    """Each suspension is counted once, and is over when authority is proven again."""
    twice = sums_of(acquired(), *[turned(State.SUSPENDED), turned(State.HELD)] * 2, turned(State.SUSPENDED))
    assert twice[("suspensions", "")] == 3
    assert twice[("suspended", "")] == 1


def test_a_key_that_is_gone_is_no_suspension() -> None:
    """Held at its gate because its key is gone, a lease is about to be lost: counted as a loss, and as suspended until then."""
    gone = replace(turned(State.SUSPENDED), in_question=True)
    assert sums_of(acquired(), gone)[("suspended", "")] == 1
    assert sums_of(acquired(), gone, turned(State.LOST, reason="deleted")) == {
        ("acquire.duration", "", "acquired"): 1,
        ("hold.duration", "", "deleted"): 1,
        ("lost", "", "deleted"): 1,
    }


def test_an_end_that_is_told_first_leaves_no_gauge_behind() -> None:
    """A loss that is told before the acquisition that it ends counts as a loss, and nothing counts as held."""
    assert sums_of(turned(State.LOST), acquired()) == {
        ("lost", "", "revoked"): 1,
        ("acquire.duration", "", "acquired"): 1,
    }


def test_a_late_word_about_a_lease_that_is_over_changes_no_gauge() -> None:
    """A suspension told after the release is counted, and nothing is suspended."""
    assert ("suspended", "") not in sums_of(acquired(), RELEASED, turned(State.SUSPENDED))


def test_failures_are_counted() -> None:
    """Acquisitions that failed by their error, beats by their endpoint, clean-ups as such."""
    assert sums_of(
        AcquireFailed("a/b", "NotAcquired", 1.0), BeatMissed(1, 1, "h:1", "", 1.0), CleanupFailed("a claim", "")
    ) == {("acquire.duration", "", "NotAcquired"): 1, ("beats.missed", "h:1"): 1, ("cleanups.failed",): 1}


def test_names_are_labels_only_on_demand() -> None:
    """The label of a lease's name is what the program makes of it."""
    sums = Sums()
    metrics = Metrics(sums, name_label=lambda name: name.partition("/")[0])
    metrics(acquired())
    assert sums.sums[("held", "a")] == 1


def passed(what: str, **more: object) -> StepPassed:
    """Something that became of a step."""
    return StepPassed("order/42", "charge", "do", what, **more)  # type: ignore[arg-type]


OF_RUNS: list[tuple[Event, dict[tuple[str, ...], float]]] = [
    (RunOpened("order/42", 7, "c1", "resumed", 2), {("runs.opened", "order", "resumed"): 1}),
    (RunEnded("order/42", 7, "c1", "finished", 1.5), {("runs.ended", "order", "finished"): 1}),
    (RunQuarantined("order/42", 11), {("runs.quarantined", "order"): 1}),
    (passed("called", window_s=0.1), {("calls", "order", "do"): 1, ("call.window", "order", "do"): 1}),
    (
        passed("called", repeated=True),
        {("calls", "order", "do"): 1, ("calls.repeated", "order", "do"): 1, ("call.window", "order", "do"): 1},
    ),
    (passed("done", took_s=2.0), {("call.duration", "order", "do"): 1}),
    (passed("replayed"), {("calls.saved", "order", "do", "replayed"): 1}),
    (passed("adopted"), {("calls.saved", "order", "do", "adopted"): 1}),
    (passed("conflict"), {("conflicts", "order"): 1}),
    (passed("drift"), {("drifts", "order"): 1}),
    (passed("in_doubt"), {("doubts", "order"): 1}),
    (passed("halted"), {("halts.met", "order"): 1}),
    (passed("halted", halt_s=0.2), {("halts.met", "order"): 1, ("halt.delay", "order"): 1}),
    (AlertGiven("order/42", "charge", "in_doubt", True), {("alerts", "in_doubt", "passed_on"): 1}),
    (AlertGiven("order/42", "", "quarantined", False), {("alerts", "quarantined", "failed"): 1}),
]


@pytest.mark.parametrize(("event", "sums"), OF_RUNS, ids=lambda value: type(value).__name__)
def test_runs_are_counted(event: Event, sums: dict[tuple[str, ...], float]) -> None:
    """A15, A16, B16: what became of runs and steps is counted by workflow, and by nothing that is without number."""
    assert sums_of(event) == sums


def delayed(how: str, in_a_row: int = 1) -> RecordDelayed:
    """A record that waits, or its end."""
    return RecordDelayed("order/42", "s", "outcome", how, in_a_row, 2.0, "full", "c1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("events", "delayed_now"),
    [
        ((delayed("waits"),), 1),
        ((delayed("waits"), delayed("waits", 2), delayed("waits")), 1),
        ((delayed("waits"), delayed("recorded")), 0),
        ((delayed("waits"), delayed("given_up"), ENDED, delayed("recorded")), 0),
        ((delayed("waits"), ENDED), 0),
        ((ENDED, delayed("waits"), delayed("waits", 2), delayed("given_up", 2)), 0),
        ((delayed("recorded"),), 0),
    ],
)
def test_runs_that_wait_for_a_record_are_a_gauge(events: tuple[Event, ...], delayed_now: int) -> None:
    """A run counts once however often it is told, and no more once its record or its life is over, in whatever order."""
    assert sums_of(*events).get(("runs.delayed", "order"), 0) == delayed_now


def test_workflows_are_labels_up_to_a_bound() -> None:
    """A program that makes names of workflows out of anything gets a hundred labels, and one for the rest."""
    found = sums_of(*(RunOpened(f"w{number}/1", 7, "c", "begun", 0) for number in range(1000)))
    assert len(found) == 101
    assert found[("runs.opened", "other", "begun")] == 900


EVERYTHING: list[Event] = [
    *(event for event, _ in OF_RUNS),
    acquired(),
    acquired("c2"),
    turned(State.SUSPENDED, "c2"),
    turned(State.LOST),
    AcquireFailed("a/b", "Unavailable", 1.0),
    BeatMissed(1, 1, "h:1", "", 1.0),
    CleanupFailed("a claim", ""),
    replace(delayed("waits"), claim="c3"),
]


def test_prometheus() -> None:
    """Every metric shows up in an exposition, with its unit and suffix; durations fall into buckets."""
    registry = CollectorRegistry()
    metrics = Metrics(prometheus(registry, buckets_s=(0.1, 1.0)))
    for event in EVERYTHING:
        metrics(event)
    text = generate_latest(registry).decode()
    for line in [
        'leasekeeper_acquire_duration_seconds_bucket{le="1.0",name="",outcome="acquired"} 2.0',
        'leasekeeper_acquire_duration_seconds_count{name="",outcome="Unavailable"} 1.0',
        'leasekeeper_hold_duration_seconds_count{end="revoked",name=""} 1.0',
        'leasekeeper_held{name=""} 1.0',
        'leasekeeper_suspended{name=""} 1.0',
        'leasekeeper_suspensions_total{name=""} 1.0',
        'leasekeeper_lost_total{name="",reason="revoked"} 1.0',
        'leasekeeper_beats_missed_total{endpoint="h:1"} 1.0',
        "leasekeeper_cleanups_failed_total 1.0",
        'leasekeeper_calls_saved_total{how="replayed",kind="do",workflow="order"} 1.0',
        'leasekeeper_call_window_seconds_bucket{kind="do",le="0.1",workflow="order"} 2.0',
        'leasekeeper_halt_delay_seconds_count{workflow="order"} 1.0',
        'leasekeeper_runs_delayed{workflow="order"} 1.0',
        'leasekeeper_alerts_total{kind="in_doubt",outcome="passed_on"} 1.0',
    ]:
        assert line in text.splitlines()


def test_opentelemetry() -> None:
    """Every metric reaches a reader of OpenTelemetry under its own name and unit."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    metrics = Metrics(opentelemetry(provider))
    for event in EVERYTHING:
        metrics(event)
    data = reader.get_metrics_data()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    assert scope.scope.name == "leasekeeper"
    found = {metric.name: metric for metric in scope.metrics}
    assert set(found) == {metric.name for metric in METRICS}
    assert {found[metric.name].unit for metric in METRICS if metric.kind is Kind.HISTOGRAM} == {"s"}
    (held,) = found["leasekeeper.held"].data.data_points
    assert getattr(held, "value", None) == 1
    provider.shutdown()


@pytest.mark.parametrize(("make", "package"), [(prometheus, "prometheus_client"), (opentelemetry, "opentelemetry")])
def test_a_missing_package_is_named(make: object, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instruments whose package is not installed are Misuse that says which one it is."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Misuse, match=r"prometheus-client|opentelemetry-api"):
        make()  # type: ignore[operator]
