"""Spans for OpenTelemetry: ``leasekeeper.acquire``, ``leasekeeper.hold`` and ``leasekeeper.run``.

::

    from leasekeeper import observe
    from leasekeeper.observe import tracing

    observe.add(tracing.Tracing())

Both are children of the span that was current where the lease was acquired. ``acquire`` lasts as long as the acquiring did and
is an error when nothing came of it. ``hold`` lasts from the acquisition to the release; each suspension and each new proof is
an event in it, and it is an error when the lease was lost or dropped. Attributes: ``leasekeeper.name``, ``leasekeeper.token``,
``leasekeeper.claim``, and at the end ``leasekeeper.end`` (``released``, ``dropped`` or the reason of the loss).

``run`` is one life of a run: a child of what was current where it was opened, with an event for each thing that became of a step
(``called``, ``done``, ``replayed`` …). Attributes: ``leasekeeper.run``, ``leasekeeper.token``, ``leasekeeper.claim``,
``leasekeeper.how`` it began, ``leasekeeper.restarts``, and ``leasekeeper.end``; an error unless it was finished, read or left.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from leasekeeper.errors import Misuse
from leasekeeper.observe.holds import Holds
from leasekeeper.protocol.authority import State
from leasekeeper.runtime.events import (
    Acquired,
    AcquireFailed,
    Dropped,
    Released,
    RunEnded,
    RunOpened,
    StateChanged,
    StepPassed,
)

if TYPE_CHECKING:
    from leasekeeper.runtime.events import Event

__all__ = ["Tracing"]

GOOD_ENDS = ("finished", "read", "left")


class Tracing:
    """An observer that makes spans with a tracer of ``tracer_provider``; None: of the global provider.

    Raises Misuse when ``opentelemetry-api`` is not installed.
    """

    def __init__(self, tracer_provider: Any = None) -> None:
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise Misuse("tracing needs the package opentelemetry-api") from error
        self._trace = trace
        self._tracer = trace.get_tracer("leasekeeper", tracer_provider=tracer_provider)
        self._holds: Holds[Any] = Holds()
        self._runs: Holds[Any] = Holds()

    def __call__(self, event: Event) -> None:
        """Take one event in."""
        match event:
            case Acquired():
                self._acquired(event)
            case AcquireFailed():
                span = self._span("acquire", event.name, {"error": event.error}, began_s=event.waited_s)
                span.set_status(self._trace.StatusCode.ERROR, event.error)
                span.end()
            case Released():
                self._ended(event.claim, "released")
            case Dropped():
                self._ended(event.claim, "dropped", "dropped without a release")
                self._run_ended(event.claim, "dropped")
            case RunOpened() | RunEnded() | StepPassed():
                self._of_run(event)
            case StateChanged(state=State.LOST):
                reason = event.loss.reason if event.loss is not None else "unknown"
                self._ended(event.claim, reason, f"lost: {reason}")
            case StateChanged():
                span = self._holds.get(event.claim)
                if span is not None:
                    span.add_event(event.state.value, {"leasekeeper.proof_age_s": event.proof_age_s})

    def _of_run(self, event: RunOpened | RunEnded | StepPassed) -> None:
        match event:
            case RunOpened():
                self._run_opened(event)
            case RunEnded():
                self._run_ended(event.claim, event.how)
            case StepPassed():
                span = self._runs.get(event.claim)
                if span is not None:
                    span.add_event(event.what, {f"leasekeeper.{k}": v for k, v in _facts(event).items()})

    def _run_opened(self, event: RunOpened) -> None:
        attributes: dict[str, str | int] = {
            "leasekeeper.run": event.run,
            "leasekeeper.token": event.token,
            "leasekeeper.claim": event.claim,
            "leasekeeper.how": event.how,
            "leasekeeper.restarts": event.restarts,
        }
        span = self._tracer.start_span("leasekeeper.run", attributes=attributes)
        if not self._runs.begin(event.claim, span):
            span.end()

    def _run_ended(self, claim: str, how: str) -> None:
        span = self._runs.pop(claim)
        if span is not None:
            span.set_attribute("leasekeeper.end", how)
            if how not in GOOD_ENDS:
                span.set_status(self._trace.StatusCode.ERROR, how)
            span.end()

    def _span(self, what: str, name: str, attributes: dict[str, str | int], *, began_s: float = 0.0) -> Any:
        """A span that began ``began_s`` seconds ago."""
        return self._tracer.start_span(
            f"leasekeeper.{what}",
            start_time=time.time_ns() - int(began_s * 1e9),
            attributes={"leasekeeper.name": name, **{f"leasekeeper.{k}": v for k, v in attributes.items()}},
        )

    def _acquired(self, event: Acquired) -> None:
        facts: dict[str, str | int] = {"token": event.token, "claim": event.claim}
        self._span("acquire", event.name, facts, began_s=event.waited_s).end()
        span = self._span("hold", event.name, facts)
        if not self._holds.begin(event.claim, span):
            span.end()

    def _ended(self, claim: str, end: str, error: str | None = None) -> None:
        span = self._holds.end(claim)
        if span is None:
            return
        span.set_attribute("leasekeeper.end", end)
        if error is not None:
            span.set_status(self._trace.StatusCode.ERROR, error)
        span.end()


def _facts(event: StepPassed) -> dict[str, str | bool | float]:
    facts: dict[str, str | bool | float] = {"step": event.step, "kind": event.kind}
    match event.what:
        case "called":
            facts |= {"repeated": event.repeated, "window_s": event.window_s}
        case "done":
            facts["took_s"] = event.took_s
        case "halted" if event.halt_s is not None:
            facts["halt_s"] = event.halt_s
    return facts
