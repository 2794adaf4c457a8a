"""What a worker tells of a run that did not get to its end: a person where one is needed, everybody else by one line of the log.

Whoever reads the log at night wants to know what happened, not where in leasekeeper it was noticed: so leasekeeper's own errors,
which say what to do, are one line, and of where the program's own were raised the frames of leasekeeper are left out.
"""

from __future__ import annotations

import logging
import os
import re
from types import TracebackType
from typing import TYPE_CHECKING

from leasekeeper.errors import LeasekeeperError, LeaseLost, StopWork, TryLater
from leasekeeper.run_errors import Drift, InDoubt, Quarantined, RunHalted
from leasekeeper.runs.alert import FIELD_MAX, Alert, alert_of, log_alert, parts, sound
from leasekeeper.runtime.events import AlertGiven

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasekeeper.runtime.events import Event

__all__ = ["alert_due", "give", "halted_by", "is_drift", "sort_of", "tell"]

log = logging.getLogger("leasekeeper")

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Of these the run itself tells somebody, and records that it did.
TOLD_BY_THE_RUN = (InDoubt, Quarantined, Drift)
# Of these events tell: that the lease is lost, that a step met a halt.
TOLD_BY_EVENTS = (LeaseLost, RunHalted)
NUMBERS = re.compile(r"\d+")


def alert_due(error: BaseException, holder: str) -> Alert | None:
    """The alert of an error that needs a person whom nobody has told yet; also of one in a group of errors. Or None."""
    for each in parts(error):
        alert = None if isinstance(each, TOLD_BY_THE_RUN) else alert_of(each, holder=holder)
        if alert is not None and alert.run:
            return alert
    return None


def is_drift(error: BaseException) -> bool:
    """Whether something that was done holds no more: the outside world has to be mended before it is of use to try again."""
    return any(isinstance(each, Drift) for each in parts(error))


def halted_by(error: BaseException) -> RunHalted | None:
    """The halt that has ended it, if one did."""
    return next((each for each in parts(error) if isinstance(each, RunHalted)), None)


def give(alert: Alert, hook: Callable[[Alert], object] | None, observe: Callable[[Event], None]) -> bool:
    """Tell a hook; whether it could pass it on. Without one the log is who is told. Never raises: a worker outlives its hook."""
    try:
        passed_on = hook is None or sound(alert, (hook,))
    except BaseException:  # no Ctrl-C of a person's reaches the threads of a worker
        log.exception("a hook failed to pass on the alert about run %s", alert.run)
        passed_on = False
    observe(AlertGiven(alert.run, alert.step, alert.kind, passed_on))
    return passed_on


def sort_of(error: BaseException) -> str:
    """The same for two errors of which a person would say: the same again. Numbers, as times and tokens, do not count."""
    return NUMBERS.sub("0", _words(error))


def tell(run: str, error: BaseException, times: int, alert: Alert | None) -> None:
    """Log why a run did not get to its end here; ``times`` is how often in a row it was for the same reason.

    What is told elsewhere is for those who read everything; so is what is told the 3rd, 5th, 6th, 7th … time.
    """
    if alert is not None:
        log_alert(alert)
    level = logging.DEBUG if times & (times - 1) else _level(error, alerted=alert is not None)
    if not log.isEnabledFor(level):
        return
    ours = all(isinstance(each, LeasekeeperError) for each in parts(error))
    trace = None if ours or times > 1 else (type(error), error, of_the_program(error.__traceback__))
    again = f", {times} times in a row for the same reason" if times > 1 else ""
    log.log(level, "run %s did not get to its end here%s: %s", run, again, _words(error), exc_info=trace)


def _level(error: BaseException, *, alerted: bool) -> int:
    """That of the part of it that matters most, apart from what an alert or an event tells."""
    left = [each for each in parts(error) if not isinstance(each, (*TOLD_BY_THE_RUN, *TOLD_BY_EVENTS))]
    left = [each for each in left if not (alerted and alert_of(each) is not None)]
    if not left:
        return logging.DEBUG
    return logging.WARNING if all(isinstance(each, TryLater) for each in left) else logging.ERROR


def _words(error: BaseException) -> str:
    """Class and message in one line that a terminal can be given; of a group those of all that is in it."""
    text = "; ".join(map(_word, parts(error)))
    text = text if len(text) <= FIELD_MAX else f"{text[: FIELD_MAX - 1]}…"
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _word(error: BaseException) -> str:
    try:
        message = " ".join(str(error).split())
    except (Exception, StopWork):  # noqa: BLE001 - the error to tell of is another one
        message = ""
    name = type(error).__name__
    return f"{name}: {message}" if message else name


def of_the_program(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of leasekeeper; all of it where leasekeeper is what raised."""
    frames: list[TracebackType] = []
    at = trace
    while at is not None:
        frames.append(at)
        at = at.tb_next
    if not frames or _is_ours(frames[-1]):
        return trace
    cut: TracebackType | None = None
    for each in reversed(frames):
        if not _is_ours(each):
            cut = TracebackType(cut, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return cut


def _is_ours(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(PACKAGE)
