"""Spans from events: when they begin and end, whose children they are, and which are errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from leasekeeper import Loss, Misuse, State
from leasekeeper.observe import (
    Acquired,
    AcquireFailed,
    Dropped,
    Event,
    Released,
    RunEnded,
    RunOpened,
    StateChanged,
    StepPassed,
)
from leasekeeper.observe.tracing import Tracing


class Traces:
    """A tracer provider that remembers the spans that ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.observer = Tracing(self.provider)

    def tell(self, *events: Event) -> None:
        """Tell the observer."""
        for event in events:
            self.observer(event)

    def spans(self) -> dict[str, ReadableSpan]:
        """The spans that ended, by name."""
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest.fixture
def traces() -> Iterator[Traces]:
    """Tracing with a provider of its own."""
    one = Traces()
    yield one
    one.provider.shutdown()


ACQUIRED = Acquired("a/b", 7, "c1", 1.5)
RELEASED = Released("a/b", 7, "c1", 9.0, True)
LOST = StateChanged("a/b", 7, "c1", State.LOST, 10.0, Loss("revoked", 1.0, 10.0))


def attribute(span: ReadableSpan, name: str) -> object:
    """One attribute of a span."""
    return (span.attributes or {}).get(f"leasekeeper.{name}")


def test_acquiring_and_holding_are_siblings(traces: Traces) -> None:
    """Both spans are children of the one that was current at the acquisition; the first lasted as long as acquiring did."""
    tracer = traces.provider.get_tracer("test")
    with tracer.start_as_current_span("work") as work:
        traces.tell(ACQUIRED)
    traces.tell(RELEASED)
    spans = traces.spans()
    acquire, hold = spans["leasekeeper.acquire"], spans["leasekeeper.hold"]
    for span in (acquire, hold):
        assert span.parent is not None
        assert span.parent.span_id == work.get_span_context().span_id
        assert (attribute(span, "name"), attribute(span, "token"), attribute(span, "claim")) == ("a/b", 7, "c1")
        assert span.status.status_code is StatusCode.UNSET
    assert acquire.end_time is not None
    assert acquire.start_time is not None
    assert acquire.end_time - acquire.start_time >= 1_500_000_000
    assert attribute(hold, "end") == "released"


def test_a_failed_acquisition_is_an_error(traces: Traces) -> None:
    """Nothing is held, and the span says which error it was."""
    traces.tell(AcquireFailed("a/b", "NotAcquired", 2.0))
    (span,) = traces.spans().values()
    assert (span.name, attribute(span, "error")) == ("leasekeeper.acquire", "NotAcquired")
    assert span.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize(("end", "word"), [(LOST, "revoked"), (Dropped("a/b", "c1"), "dropped")])
def test_a_bad_end_is_an_error(traces: Traces, end: Event, word: str) -> None:
    """A lease that is lost or dropped ends its span as an error; suspensions before that are events in it."""
    traces.tell(ACQUIRED, StateChanged("a/b", 7, "c1", State.SUSPENDED, 5.0, None))
    traces.tell(StateChanged("a/b", 7, "c1", State.HELD, 0.1, None), end)
    hold = traces.spans()["leasekeeper.hold"]
    assert hold.status.status_code is StatusCode.ERROR
    assert attribute(hold, "end") == word
    assert [event.name for event in hold.events] == ["SUSPENDED", "HELD"]


def test_an_end_that_is_told_first_ends_the_span_too(traces: Traces) -> None:
    """A loss told before its acquisition leaves no span open."""
    traces.tell(LOST, ACQUIRED)
    assert set(traces.spans()) == {"leasekeeper.acquire", "leasekeeper.hold"}


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OpenTelemetry tracing is Misuse that says what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(Misuse, match="opentelemetry-api"):
        Tracing()


OPENED = RunOpened("order/42", 7, "c1", "resumed", 1)
CALLED = StepPassed("order/42", "charge", "do", "called", True, 0.5, claim="c1")


@pytest.mark.parametrize(
    ("end", "error"), [("finished", False), ("left", False), ("failed", True), ("in_doubt", True), ("lost", True)]
)
def test_a_life_of_a_run_is_a_span(traces: Traces, end: str, error: bool) -> None:
    """It tells which life it is, what became of each step, and how it ended; nothing is left of it afterwards."""
    traces.tell(OPENED, CALLED, RunEnded("order/42", 7, "c1", end, 1.0), CALLED)  # type: ignore[arg-type]
    span = traces.spans()["leasekeeper.run"]
    assert [attribute(span, name) for name in ("run", "token", "how", "end")] == ["order/42", 7, "resumed", end]
    (called,) = span.events
    assert (called.name, (called.attributes or {})["leasekeeper.window_s"]) == ("called", 0.5)
    assert (span.status.status_code is StatusCode.ERROR) is error


def test_a_run_whose_lease_was_dropped_has_ended(traces: Traces) -> None:
    """A run that nobody left properly has a span all the same."""
    traces.tell(OPENED, Dropped("run/order/42", "c1"))
    assert attribute(traces.spans()["leasekeeper.run"], "end") == "dropped"
