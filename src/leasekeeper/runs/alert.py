"""Alerts: telling people that a run cannot go on without them.

A run that stopped because nobody can know what happened stays as it is until somebody looks. So it is told once, to each hook
that the program has set. A hook is any callable that takes an `Alert`; `webhook` makes one, and `to_stderr` is one.

The exit code is an alert as well. A program that ends because of one should end with `NEEDS_A_PERSON`, so that what supervises
it knows that starting it again does not help (systemd: ``RestartPreventExitStatus=78``); `exit_code` gives it. Everything else
that ends a program may pass by itself, or with the next owner; a halt when it is lifted, so it has a code of its own: `NOT_LET`.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from leasekeeper.error_words import commands_of, words_on_a_doubt
from leasekeeper.errors import LeasekeeperError, Misuse, StopWork, Unavailable, shown
from leasekeeper.run_errors import AnchorSkewed, Conflict, Drift, InDoubt, Quarantined, RunRewound
from leasekeeper.runs.webhook import webhook
from leasekeeper.runs.within import Within

__all__ = [
    "NEEDS_A_PERSON",
    "NOT_LET",
    "Alert",
    "AlertHook",
    "AlertKind",
    "alert_of",
    "exit_code",
    "log_alert",
    "parts",
    "sound",
    "to_stderr",
    "webhook",
]

log = logging.getLogger("leasekeeper")

AlertKind = Literal["in_doubt", "quarantined", "drift", "rewound", "conflict"]

# EX_CONFIG of sysexits.h; no other ending of leasekeeper's has it.
NEEDS_A_PERSON = 78
# As the command line has it: authority was lost, or an operator has halted the run.
NOT_LET = 76
FAILED = 1
# Of each text in an alert, in characters: what is told goes into one request and one line.
FIELD_MAX = 1000
STDERR_TIMEOUT_S = 5.0

_KINDS: dict[type[LeasekeeperError], AlertKind] = {
    InDoubt: "in_doubt",
    Quarantined: "quarantined",
    Drift: "drift",
    RunRewound: "rewound",
    AnchorSkewed: "rewound",
    Conflict: "conflict",
}
# The first error of each kind.
_ERRORS = {kind: error for error, kind in reversed(_KINDS.items())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A run that needs a person.

    ``run`` is ``workflow/id``; ``step`` and ``seq`` are the step and the number of the record that it is about ("" and 0 when it
    is about none); ``why`` says in words what is not known; ``holder`` is who stopped; ``command`` is what to type to go on: one
    command, which can be pasted. Of a doubt it shows what is known, with the two commands of which one ends it.
    """

    kind: AlertKind
    run: str
    step: str = ""
    why: str = ""
    seq: int = 0
    holder: str = ""
    command: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields by their names, each text cut to a length that every receiver takes."""
        return {name: _cut(value) if isinstance(value, str) else value for name, value in asdict(self).items()}

    @property
    def line(self) -> str:
        """All of it as one line that a terminal can be given: no control characters, whatever names and errors contain."""
        about = (
            f"run {self.run}"
            + (f", step {self.step}" if self.step else "")
            + (f", record {self.seq}" if self.seq else "")
        )
        parts = [f"{self.kind.replace('_', ' ')}: {about}", self.why.rstrip("."), *self._ways_on()]
        text = "; ".join(_cut(part) for part in parts if part)
        return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in " ".join(text.split()))

    def _ways_on(self) -> Iterator[str]:
        """Commands, each whole and told once."""
        if self.command and self.command not in self.why:
            yield f"to go on: {self.command}"
        if self.kind == "in_doubt" and self.step:
            yes, no = words_on_a_doubt(self.run, self.step)
            yield f"if it was applied: {yes}"
            yield f"if it was not: {no}"


class AlertHook(Protocol):
    """Something that is told of alerts.

    It is called in the thread that was stopped, or beside the event loop, and the step waits for it: so it has to come to an end
    by itself, within seconds. False means that it could not tell anybody; so does an exception, which is logged.
    """

    def __call__(self, alert: Alert, /) -> object:
        """Tell somebody."""
        ...


def log_alert(alert: Alert) -> None:
    """Log it: one line, with its fields as attributes for logs in JSON."""
    log.error("%s", alert.line, extra={f"alert_{name}": value for name, value in alert.fields.items()})


def sound(alert: Alert, hooks: Iterable[AlertHook]) -> bool:
    """Tell every hook, one after the other; whether all of them could pass it on.

    Never raises what a hook does: the alert tells of an error, and that one must come out. Ctrl-C comes through.
    """
    passed_on = True
    for hook in hooks:
        try:
            passed_on &= _told(hook, alert)
        except (Exception, StopWork):
            log.exception("a hook failed to pass on the alert about run %s", alert.run)
            passed_on = False
    return passed_on


def _told(hook: AlertHook, alert: Alert) -> bool:
    said = hook(alert)
    if not inspect.isawaitable(said):
        return said is not False
    if inspect.iscoroutine(said):
        said.close()
    raise Misuse(f"the hook {shown(hook)} gave something to await, so it has told nobody: expected a plain function")


def to_stderr(alert: Alert) -> bool:
    """The hook that writes one line to this process's standard error; False when that is closed, or full and not read."""
    try:
        _stderr("write", lambda: _write_line(f"leasekeeper: {alert.line}\n"))
    except (OSError, ValueError, AttributeError, Unavailable):
        return False
    return True


_stderr = Within(STDERR_TIMEOUT_S, "standard error")


def _write_line(line: str) -> None:
    sys.stderr.write(line)
    sys.stderr.flush()


def alert_of(error: BaseException, *, holder: str = "") -> Alert | None:
    """The alert that tells of an error; None for one that needs nobody. ``holder`` is who was stopped by it.

    Of a group of errors, as tasks raise it, the first alert.
    """
    for each in parts(error):
        if (kind := _kind_of(each)) is not None and isinstance(each, LeasekeeperError):
            return _alert(each, kind, holder)
    return None


def parts(error: BaseException) -> Iterator[BaseException]:
    """The error; of a group all that is in it. By its attribute: Python has groups from 3.11 on."""
    inside = getattr(error, "exceptions", None)
    if not isinstance(inside, tuple):
        yield error
        return
    for each in inside:
        yield from parts(each)


def _alert(error: LeasekeeperError, kind: AlertKind, holder: str) -> Alert:
    run, step = getattr(error, "run", ""), getattr(error, "step", "")
    receipt = getattr(error, "receipt", None)
    return Alert(
        kind=kind,
        run=run,
        step=step,
        why=getattr(error, "why", "") or error.message,
        seq=getattr(error, "seq", 0) if receipt is None else receipt.seq,
        holder=holder,
        command=command_for(kind, run, step),
    )


def command_for(kind: AlertKind, run: str, step: str) -> str:
    """What to type to go on: the command that the error tells, too."""
    return next(iter(commands_of(_ERRORS[kind], run=run, step=step)), "")


def exit_code(error: BaseException) -> int:
    """What a program that ends because of ``error`` should end with.

    78 when it needs a person, 76 when its authority was lost or an operator has halted the run, else 1, as Python's own.
    A group of errors needs a person when one of them does.
    """
    found = list(parts(error))
    if any(_kind_of(each) is not None for each in found):
        return NEEDS_A_PERSON
    return NOT_LET if found and all(isinstance(each, StopWork) for each in found) else FAILED


def _kind_of(error: BaseException) -> AlertKind | None:
    return next((kind for cls, kind in _KINDS.items() if isinstance(error, cls)), None)


def _cut(text: str) -> str:
    return text if len(text) <= FIELD_MAX else f"{text[: FIELD_MAX - 1]}…"
