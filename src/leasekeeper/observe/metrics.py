"""Metrics of leases and runs, for Prometheus, OpenTelemetry, or instruments of your own.

::

    from leasekeeper import observe
    from leasekeeper.observe import metrics

    observe.add(metrics.Metrics(metrics.prometheus()))

===================================  ==========  ==================  ===================================================
metric                               kind        labels              what it tells
===================================  ==========  ==================  ===================================================
``leasekeeper.acquire.duration``     histogram   name, outcome       how long acquiring took, and what came of it:
                                                                     ``acquired`` or the error's name
``leasekeeper.hold.duration``        histogram   name, end           how long a lease was held until it was ``released``,
                                                                     ``dropped`` or lost, by the reason of the loss
``leasekeeper.held``                 gauge       name                leases held now, the suspended ones too
``leasekeeper.suspended``            gauge       name                leases whose work is held at the gate now
``leasekeeper.suspensions``          counter     name                how often that began for want of heartbeats
``leasekeeper.lost``                 counter     name, reason        leases lost
``leasekeeper.beats.missed``         counter     endpoint            heartbeats late or failed
``leasekeeper.cleanups.failed``      counter                         keys left to run out with their lease
``leasekeeper.runs.opened``          counter     workflow, how       lives of runs that began: ``begun``, ``resumed``, or
                                                                     ``read``, of one that was finished before
``leasekeeper.runs.ended``           counter     workflow, how       lives that ended: ``finished``, ``failed``, ``halted``,
                                                                     ``in_doubt``, ``lost``, ``left``, ``read``
``leasekeeper.runs.quarantined``     counter     workflow            runs put aside
``leasekeeper.calls``                counter     workflow, kind      effects (``do``) and memos that were called
``leasekeeper.calls.repeated``       counter     workflow, kind      of those, not for the first time
``leasekeeper.calls.saved``          counter     workflow, kind,     calls not made: ``replayed`` from the record, or
                                                 how                 ``adopted`` because the outside world shows the effect
``leasekeeper.call.window``          histogram   workflow, kind      from the preflight, or else the asking, to the call
``leasekeeper.call.duration``        histogram   workflow, kind      how long calls took whose outcome is recorded
``leasekeeper.conflicts``            counter     workflow            steps that somebody else had applied
``leasekeeper.drifts``               counter     workflow            steps whose postcondition no longer holds
``leasekeeper.doubts``               counter     workflow            steps of which nobody can tell what became of them
``leasekeeper.halts.met``            counter     workflow            steps that a halt kept from being begun
``leasekeeper.halt.delay``           histogram   workflow            from a halt to the first step that it kept from being
                                                                     begun, in lives under way; by two wall clocks
``leasekeeper.runs.delayed``         gauge       workflow            runs with a record that cannot be written for now, as
                                                                     where etcd is full: who waits for it waits
``leasekeeper.alerts``               counter     kind, outcome       alerts ``passed_on`` or ``failed``
===================================  ==========  ==================  ===================================================

Prometheus spells them ``leasekeeper_acquire_duration_seconds`` and ``leasekeeper_lost_total``. The label ``name`` is empty
unless `Metrics` is told how to make one: names may be without number, and labels must not be. No label tells a run or a step;
``workflow`` tells the first hundred workflows that it sees, and ``other`` for further ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from leasekeeper.clock import boottime
from leasekeeper.errors import Misuse
from leasekeeper.observe.holds import Holds
from leasekeeper.observe.instruments import Kind, Metric
from leasekeeper.observe.of_runs import METRICS_OF_RUNS, OfRuns
from leasekeeper.protocol.authority import State
from leasekeeper.runtime.events import (
    Acquired,
    AcquireFailed,
    BeatMissed,
    CleanupFailed,
    Dropped,
    Released,
    StateChanged,
)

if TYPE_CHECKING:
    from leasekeeper.runtime.events import Event

__all__ = ["METRICS", "Instruments", "Kind", "Metric", "Metrics", "opentelemetry", "prometheus"]


ACQUIRE = Metric("leasekeeper.acquire.duration", Kind.HISTOGRAM, ("name", "outcome"), "How long acquiring took")
HOLD = Metric("leasekeeper.hold.duration", Kind.HISTOGRAM, ("name", "end"), "How long leases were held")
HELD = Metric("leasekeeper.held", Kind.GAUGE, ("name",), "Leases held now")
SUSPENDED = Metric("leasekeeper.suspended", Kind.GAUGE, ("name",), "Leases whose work is held at the gate now")
SUSPENSIONS = Metric("leasekeeper.suspensions", Kind.COUNTER, ("name",), "How often work was held at the gate")
LOST = Metric("leasekeeper.lost", Kind.COUNTER, ("name", "reason"), "Leases lost")
MISSED = Metric("leasekeeper.beats.missed", Kind.COUNTER, ("endpoint",), "Heartbeats late or failed")
CLEANUPS = Metric("leasekeeper.cleanups.failed", Kind.COUNTER, (), "Keys left to run out with their lease")

METRICS = (ACQUIRE, HOLD, HELD, SUSPENDED, SUSPENSIONS, LOST, MISSED, CLEANUPS, *METRICS_OF_RUNS)
"""Every metric there is."""

# From one round trip to a working day.
BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0, 28800.0)


class Instruments(Protocol):
    """Where the numbers go: one method, called from any thread; it must be quick."""

    def add(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """Count ``value`` up (COUNTER), move by it (GAUGE), or record it (HISTOGRAM)."""
        ...


@dataclass(slots=True)
class _Held:
    label: str
    began_s: float
    suspended: bool = False


class Metrics:
    """An observer that keeps the metrics of this module.

    Args:
        instruments: `prometheus()`, `opentelemetry()`, or your own.
        name_label: makes the label of a lease's name; it must give few different ones. Default: always "".
    """

    def __init__(self, instruments: Instruments, *, name_label: Callable[[str], str] | None = None) -> None:
        self._instruments = instruments
        self._label = name_label or (lambda _: "")
        self._holds: Holds[_Held] = Holds()
        self._of_runs = OfRuns(self._add)

    def __call__(self, event: Event) -> None:
        """Take one event in."""
        match event:
            case Acquired():
                self._acquired(event)
            case AcquireFailed():
                self._add(ACQUIRE, event.waited_s, name=self._label(event.name), outcome=event.error)
            case Released():
                self._ended(event.claim, "released")
            case Dropped():
                self._ended(event.claim, "dropped")
            case StateChanged(state=State.LOST):
                reason = event.loss.reason if event.loss is not None else "unknown"
                self._add(LOST, 1, name=self._label(event.name), reason=reason)
                self._ended(event.claim, reason)
            case StateChanged():
                self._turned(event)
            case BeatMissed():
                self._add(MISSED, 1, endpoint=event.endpoint)
            case CleanupFailed():
                self._add(CLEANUPS, 1)
            case _:
                self._of_runs(event)

    def _add(self, metric: Metric, value: float, **labels: str) -> None:
        self._instruments.add(metric, value, labels)

    def _acquired(self, event: Acquired) -> None:
        label = self._label(event.name)
        self._add(ACQUIRE, event.waited_s, name=label, outcome="acquired")
        if self._holds.begin(event.claim, _Held(label, boottime())):
            self._add(HELD, 1, name=label)

    def _ended(self, claim: str, end: str) -> None:
        hold = self._holds.end(claim)
        if hold is None:
            return
        self._add(HELD, -1, name=hold.label)
        self._add(HOLD, boottime() - hold.began_s, name=hold.label, end=end)
        if hold.suspended:
            self._add(SUSPENDED, -1, name=hold.label)

    def _turned(self, event: StateChanged) -> None:
        suspended = event.state is State.SUSPENDED
        if suspended and not event.in_question:  # a loss is counted as such
            self._add(SUSPENSIONS, 1, name=self._label(event.name))
        hold = self._holds.get(event.claim)
        if hold is not None and hold.suspended is not suspended:
            hold.suspended = suspended
            self._add(SUSPENDED, 1 if suspended else -1, name=hold.label)


# ---------------------------------------------------------------- Prometheus


class _Prometheus:
    """Keeps the metrics in a registry of prometheus_client."""

    def __init__(self, registry: Any, buckets_s: tuple[float, ...]) -> None:
        import prometheus_client as client

        made: dict[Metric, Any] = {}
        for metric in METRICS:
            name = metric.name.replace(".", "_")
            if metric.kind is Kind.HISTOGRAM:
                name += "_seconds"
                made[metric] = client.Histogram(name, metric.about, metric.labels, registry=registry, buckets=buckets_s)
            else:
                kind = client.Counter if metric.kind is Kind.COUNTER else client.Gauge
                made[metric] = kind(name, metric.about, metric.labels, registry=registry)
        self._made = made

    def add(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """Count, move or record."""
        one = self._made[metric].labels(**labels) if labels else self._made[metric]
        if metric.kind is Kind.HISTOGRAM:
            one.observe(value)
        else:
            one.inc(value)


def prometheus(registry: Any = None, *, buckets_s: tuple[float, ...] = BUCKETS_S) -> Instruments:
    """Instruments in a registry of ``prometheus_client``; None: its default one. Call it once per registry.

    Raises Misuse when the package is not installed.
    """
    try:
        import prometheus_client
    except ImportError as error:
        raise Misuse("metrics for Prometheus need the package prometheus-client") from error
    return _Prometheus(prometheus_client.REGISTRY if registry is None else registry, buckets_s)


# ---------------------------------------------------------------- OpenTelemetry


class _OpenTelemetry:
    """Keeps the metrics in a meter of OpenTelemetry."""

    def __init__(self, meter: Any) -> None:
        make = {
            Kind.COUNTER: (meter.create_counter, "1", "add"),
            Kind.GAUGE: (meter.create_up_down_counter, "1", "add"),
            Kind.HISTOGRAM: (meter.create_histogram, "s", "record"),
        }
        self._take: dict[Metric, Callable[[float, Mapping[str, str]], None]] = {}
        for metric in METRICS:
            create, unit, method = make[metric.kind]
            self._take[metric] = getattr(create(metric.name, unit=unit, description=metric.about), method)

    def add(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """Count, move or record."""
        self._take[metric](value, labels)


def opentelemetry(meter_provider: Any = None) -> Instruments:
    """Instruments in a meter of OpenTelemetry; None: that of the global provider.

    Raises Misuse when ``opentelemetry-api`` is not installed.
    """
    try:
        from opentelemetry import metrics as otel
    except ImportError as error:
        raise Misuse("metrics for OpenTelemetry need the package opentelemetry-api") from error
    provider = otel.get_meter_provider() if meter_provider is None else meter_provider
    return _OpenTelemetry(provider.get_meter("leasekeeper"))
