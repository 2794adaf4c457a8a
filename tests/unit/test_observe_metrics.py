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
    BeatMissed,
    CleanupFailed,
    Dropped,
    Event,
    Released,
    StateChanged,
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


EVERYTHING: list[Event] = [
    acquired(),
    acquired("c2"),
    turned(State.SUSPENDED, "c2"),
    turned(State.LOST),
    AcquireFailed("a/b", "Unavailable", 1.0),
    BeatMissed(1, 1, "h:1", "", 1.0),
    CleanupFailed("a claim", ""),
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
