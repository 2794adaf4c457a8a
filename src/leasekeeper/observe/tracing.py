"""Spans for OpenTelemetry: ``leasekeeper.acquire`` and ``leasekeeper.hold``.

::

    from leasekeeper import observe
    from leasekeeper.observe import tracing

    observe.add(tracing.Tracing())

Both are children of the span that was current where the lease was acquired. ``acquire`` lasts as long as the acquiring did and
is an error when nothing came of it. ``hold`` lasts from the acquisition to the release; each suspension and each new proof is
an event in it, and it is an error when the lease was lost or dropped. Attributes: ``leasekeeper.name``, ``leasekeeper.token``,
``leasekeeper.claim``, and at the end ``leasekeeper.end`` (``released``, ``dropped`` or the reason of the loss).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from leasekeeper.errors import Misuse
from leasekeeper.observe.holds import Holds
from leasekeeper.protocol.authority import State
from leasekeeper.runtime.events import Acquired, AcquireFailed, Dropped, Released, StateChanged

if TYPE_CHECKING:
    from leasekeeper.runtime.events import Event

__all__ = ["Tracing"]


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
            case StateChanged(state=State.LOST):
                reason = event.loss.reason if event.loss is not None else "unknown"
                self._ended(event.claim, reason, f"lost: {reason}")
            case StateChanged():
                span = self._holds.get(event.claim)
                if span is not None:
                    span.add_event(event.state.value, {"leasekeeper.proof_age_s": event.proof_age_s})

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
