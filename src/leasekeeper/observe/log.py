"""The observer that logs: every event once, to the logger ``leasekeeper`` of the standard library.

The library sets no level and adds no handler; that is the program's business. Beside the text each record carries the event's
fields as attributes, for formatters that write JSON: ``lease_event`` (the event's name) and ``lease_name``, ``lease_token``,
``lease_state`` and so on, each field with that prefix. Tokens and lease ids are text there (decimal, and hex as etcd's tools
show it): as numbers they may be larger than readers of JSON can tell apart.

========  ==========================================================================================
ERROR     a lease was lost
WARNING   a lease is suspended; beats are missing (the 1st, 2nd, 4th, 8th … in a row); a lease was
          dropped without a release; a clean-up was given up; a step met a conflict or a halt, or
          accepted a drift; an alert could not be passed on; a record of a run cannot be written for now
          (the 1st, 2nd, 4th, 8th … try in a row), and then that it is written, or was given up
INFO      acquired, released, proven again; held because its key is gone, of which the reason follows;
          lost because the keeper was closed; a run began or ended here, a step is called or was adopted; a
          step is in doubt or has drifted, or a run was put aside (the alert of that is an ERROR of its own, and
          says all; its fields are attributes by the names ``alert_kind``, ``alert_run``, ``alert_step`` …)
DEBUG     not acquired (the caller has the error); the other missing beats and tries at a record; a step is done, or was
          before; an alert was passed on (what it said is an ERROR of its own)
========  ==========================================================================================
"""

from __future__ import annotations

import logging
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from leasekeeper.protocol.authority import Loss, State
from leasekeeper.runtime.events import (
    Acquired,
    AcquireFailed,
    AlertGiven,
    BeatMissed,
    CleanupFailed,
    Dropped,
    RecordDelayed,
    Released,
    RunEnded,
    RunOpened,
    RunQuarantined,
    StateChanged,
    StepPassed,
)

if TYPE_CHECKING:
    from leasekeeper.runtime.events import Event, OfRuns

__all__ = ["log_event"]

log = logging.getLogger("leasekeeper")


LEVELS: dict[type[Event], int] = {
    Acquired: logging.INFO,
    AcquireFailed: logging.DEBUG,
    Released: logging.INFO,
    Dropped: logging.WARNING,
    CleanupFailed: logging.WARNING,
    RunOpened: logging.INFO,
    RunEnded: logging.INFO,
    RunQuarantined: logging.INFO,
}


STEP_LEVELS = {
    "done": logging.DEBUG,
    "replayed": logging.DEBUG,
    "conflict": logging.WARNING,
    "halted": logging.WARNING,
}


def log_event(event: Event) -> None:
    """Log one event, if the logger wants events of its level."""
    level = LEVELS.get(type(event)) or _level(event)
    if log.isEnabledFor(level):
        text, *args = _text(event)
        log.log(level, text, *args, extra=_extra(event))


def _level(event: Event) -> int:
    """The level of an event whose kind alone does not tell."""
    if type(event) is StepPassed:  # the most frequent one by far
        return logging.WARNING if event.accepted else STEP_LEVELS.get(event.what, logging.INFO)
    match event:
        case StateChanged(state=State.LOST, loss=loss):
            return logging.INFO if loss is not None and loss.reason == "closed" else logging.ERROR
        case StateChanged(state=State.SUSPENDED, in_question=in_question):
            return logging.INFO if in_question else logging.WARNING
        case BeatMissed(in_a_row=in_a_row):
            return _now_and_then(in_a_row)
        case RecordDelayed(how=how, in_a_row=in_a_row):
            # Its end is told as loudly: otherwise silence could as well be the pause before the next line.
            return _now_and_then(in_a_row) if how == "waits" else logging.WARNING
        case AlertGiven(passed_on=passed_on):
            return logging.DEBUG if passed_on else logging.WARNING
    return logging.INFO


def _now_and_then(in_a_row: int) -> int:
    """An outage is told again and again, but not with every beat or try."""
    return logging.DEBUG if in_a_row & (in_a_row - 1) else logging.WARNING


def _text(event: Event) -> tuple[Any, ...]:
    """The message and its arguments."""
    match event:
        case StepPassed() | RunOpened() | RunEnded() | RunQuarantined() | AlertGiven() | RecordDelayed():
            return _of_run(event)
        case Acquired():
            return "acquired %r (token %d) after %.3f s", event.name, event.token, event.waited_s
        case AcquireFailed():
            return "did not acquire %r in %.3f s: %s", event.name, event.waited_s, event.error
        case Released():
            tail = "" if event.confirmed else "; its key is still to be removed"
            return "released %r (token %d) after %.3f s%s", event.name, event.token, event.held_s, tail
        case StateChanged():
            return _change(event)
        case BeatMissed():
            text = "heartbeat of lease %x missed at %s, %d in a row, %.3f s after the last proof: %s"
            return text, event.lease_id, event.endpoint or "?", event.in_a_row, event.proof_age_s, event.why
        case Dropped():
            return ("the lease on %r was dropped without a release: its claim is given up", event.name)
        case CleanupFailed():
            return "could not remove %s, which goes when its lease runs out: %s", event.what, event.why


def _of_run(event: OfRuns) -> tuple[Any, ...]:
    match event:
        case StepPassed():
            tail = ", not for the first time" if event.repeated else f": {event.why}" if event.why else ""
            return "run %s, step %r: %s%s", event.run, event.step, event.what.replace("_", " "), tail
        case RunOpened():
            tail = f", {event.restarts} times now without a step done" if event.restarts > 1 else ""
            return "run %s: %s (token %d)%s", event.run, event.how, event.token, tail
        case RunEnded():
            return "run %s: %s after %.3f s", event.run, event.how.replace("_", " "), event.lived_s
        case RunQuarantined():
            return "run %s was put aside: it was begun again %d times without a step done", event.run, event.restarts
        case AlertGiven():
            what = "was passed on" if event.passed_on else "could not be passed on"
            return f"run %s: the alert (%s) {what}", event.run, event.kind
        case RecordDelayed():
            return _of_record(event)


def _of_record(event: RecordDelayed) -> tuple[Any, ...]:
    where = f"run {event.run}, step {event.step!r}" if event.step else f"run {event.run}"
    if event.how == "recorded":
        return "%s: its record (%s) is written now, after %.3f s", where, event.record, event.waited_s
    if event.how == "given_up":
        return "%s: nobody waits any more for its record (%s), after %.3f s", where, event.record, event.waited_s
    text = "%s: its record (%s) is not written yet, %d in a row, %.3f s so far; it is tried again while its claim stands: %s"
    return text, where, event.record, event.in_a_row, event.waited_s, event.why


def _change(event: StateChanged) -> tuple[Any, ...]:
    if event.state is State.LOST:
        reason = event.loss.reason if event.loss is not None else "unknown"
        return "lost %r (token %d): %s, %.3f s after the last proof", event.name, event.token, reason, event.proof_age_s
    if event.in_question:
        return (
            "%r (token %d): its key in etcd is gone, work is held at its gate until it is known why",
            event.name,
            event.token,
        )
    if event.state is State.SUSPENDED:
        text = "%r (token %d) is suspended, %.3f s after the last proof: work is held at its gate"
        return text, event.name, event.token, event.proof_age_s
    return "%r (token %d) is proven again", event.name, event.token


def _extra(event: Event) -> dict[str, Any]:
    extra: dict[str, Any] = {"lease_event": type(event).__name__}
    for field in fields(event):
        value = getattr(event, field.name)
        if isinstance(value, Loss):
            extra["lease_reason"] = value.reason
        elif field.name == "lease_id":
            extra["lease_id"] = f"{value:x}"
        elif field.name == "token":
            extra["lease_token"] = str(value)
        elif value is not None:
            extra[f"lease_{field.name}"] = value.value if isinstance(value, Enum) else value
    return extra
