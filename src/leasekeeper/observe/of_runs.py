"""The metrics of runs. No label tells a run or a step, and those that tell a workflow are bounded: labels are kept for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from leasekeeper.observe.holds import Holds
from leasekeeper.observe.instruments import Kind, Metric
from leasekeeper.runtime.events import AlertGiven, RecordDelayed, RunEnded, RunOpened, RunQuarantined, StepPassed

if TYPE_CHECKING:
    from leasekeeper.runtime.events import Event

__all__ = ["METRICS_OF_RUNS", "OfRuns"]

WORKFLOW = ("workflow",)
STEPS = ("workflow", "kind")

OPENED = Metric("leasekeeper.runs.opened", Kind.COUNTER, ("workflow", "how"), "Lives of runs that began")
ENDED = Metric("leasekeeper.runs.ended", Kind.COUNTER, ("workflow", "how"), "Lives of runs that ended")
QUARANTINED = Metric("leasekeeper.runs.quarantined", Kind.COUNTER, WORKFLOW, "Runs put aside")
CALLS = Metric("leasekeeper.calls", Kind.COUNTER, STEPS, "Effects and memos that were called")
REPEATED = Metric("leasekeeper.calls.repeated", Kind.COUNTER, STEPS, "Calls that were not the first of their step")
SAVED = Metric("leasekeeper.calls.saved", Kind.COUNTER, (*STEPS, "how"), "Calls not made, because it was done before")
WINDOW = Metric("leasekeeper.call.window", Kind.HISTOGRAM, STEPS, "From the preflight, or the asking, to the call")
DURATION = Metric("leasekeeper.call.duration", Kind.HISTOGRAM, STEPS, "How long calls took whose outcome is recorded")
CONFLICTS = Metric("leasekeeper.conflicts", Kind.COUNTER, WORKFLOW, "Steps that somebody else had applied")
DRIFTS = Metric("leasekeeper.drifts", Kind.COUNTER, WORKFLOW, "Steps whose postcondition no longer holds")
DOUBTS = Metric("leasekeeper.doubts", Kind.COUNTER, WORKFLOW, "Steps of which nobody can tell what became of them")
HALTS = Metric("leasekeeper.halts.met", Kind.COUNTER, WORKFLOW, "Steps that a halt kept from being begun")
HALT_DELAY = Metric(
    "leasekeeper.halt.delay", Kind.HISTOGRAM, WORKFLOW, "From a halt to the first step kept from being begun"
)
DELAYED = Metric("leasekeeper.runs.delayed", Kind.GAUGE, WORKFLOW, "Runs with a record that cannot be written for now")
ALERTS = Metric("leasekeeper.alerts", Kind.COUNTER, ("kind", "outcome"), "Alerts that a run needs a person")

METRICS_OF_RUNS = (
    OPENED,
    ENDED,
    QUARANTINED,
    CALLS,
    REPEATED,
    SAVED,
    WINDOW,
    DURATION,
    CONFLICTS,
    DRIFTS,
    DOUBTS,
    HALTS,
    HALT_DELAY,
    DELAYED,
    ALERTS,
)

# A program has few workflows, but a name can be made of anything.
WORKFLOWS_MAX = 100
OTHER = "other"


class Add(Protocol):
    """Where the numbers go."""

    def __call__(self, metric: Metric, value: float, **labels: str) -> None:
        """Count, or record."""
        ...


class OfRuns:
    """Makes numbers of what is told of runs. Safe to use from any thread."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self._workflows: dict[str, None] = {}
        # The label of each claim whose run has a record that waits.
        self._delayed: Holds[str] = Holds()

    def __call__(self, event: Event) -> None:
        """Take one event in."""
        match event:
            case StepPassed():
                self._passed(event, self._workflow(event.run))
            case RunOpened():
                self._add(OPENED, 1, workflow=self._workflow(event.run), how=event.how)
            case RunEnded():
                self._add(ENDED, 1, workflow=self._workflow(event.run), how=event.how)
                # The end of a delay may be told later than that, or never, where the keeper is closed.
                self._goes_on(self._delayed.end(event.claim))
            case RecordDelayed(how="waits"):
                self._waits(event.claim, self._workflow(event.run), event.in_a_row)
            case RecordDelayed():
                self._goes_on(self._delayed.pop(event.claim))
            case RunQuarantined():
                self._add(QUARANTINED, 1, workflow=self._workflow(event.run))
            case AlertGiven():
                self._add(ALERTS, 1, kind=event.kind, outcome="passed_on" if event.passed_on else "failed")

    def _waits(self, claim: str, workflow: str, in_a_row: int) -> None:
        if in_a_row == 1 and self._delayed.get(claim) is None and self._delayed.begin(claim, workflow):
            self._add(DELAYED, 1, workflow=workflow)

    def _goes_on(self, workflow: str | None) -> None:
        if workflow is not None:
            self._add(DELAYED, -1, workflow=workflow)

    def _passed(self, event: StepPassed, workflow: str) -> None:
        match event.what:
            case "called":
                self._add(CALLS, 1, workflow=workflow, kind=event.kind)
                self._add(WINDOW, event.window_s, workflow=workflow, kind=event.kind)
                if event.repeated:
                    self._add(REPEATED, 1, workflow=workflow, kind=event.kind)
            case "done":
                self._add(DURATION, event.took_s, workflow=workflow, kind=event.kind)
            case "replayed" | "adopted":
                self._add(SAVED, 1, workflow=workflow, kind=event.kind, how=event.what)
            case "conflict":
                self._add(CONFLICTS, 1, workflow=workflow)
            case "drift":
                self._add(DRIFTS, 1, workflow=workflow)
            case "in_doubt":
                self._add(DOUBTS, 1, workflow=workflow)
            case "halted":
                self._add(HALTS, 1, workflow=workflow)
                if event.halt_s is not None:
                    self._add(HALT_DELAY, event.halt_s, workflow=workflow)

    def _workflow(self, run: str) -> str:
        workflow = run.partition("/")[0]
        if workflow not in self._workflows:
            # Two threads may each add one at this moment: the bound is about memory, not about the last one.
            if len(self._workflows) >= WORKFLOWS_MAX:
                return OTHER
            self._workflows[workflow] = None
        return workflow
