"""The one place that makes an exit code, and one line that says what to do, of whatever ended a command.

=====  ==========================================================
0      done
1      a negative answer
2      usage or configuration
69     etcd unavailable
75     not acquired in time
76     authority lost, or an operator has halted the run
77     permission denied
78     a run needs a person: in doubt, quarantined, in conflict, drifted, or rewound; starting again does not help
128+N  ended by signal N (130: Ctrl-C; 141: nobody reads the output any more)
70     a bug in leasekeeper; 74: the output could not be written
71     the system has no process, file or memory left for it
=====  ==========================================================

The numbers from 69 on are those of sysexits.h. ``run`` passes on its program's own status.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback

import click

from leasekeeper.cli.text import brief, last_said, one_line
from leasekeeper.errors import (
    AuthError,
    FixIt,
    LeasekeeperError,
    NotAcquired,
    OutcomeUnknown,
    OutOfSpace,
    StopWork,
    Unavailable,
)
from leasekeeper.run_errors import AnchorSkewed, Conflict, Drift, ExportKept, InDoubt, Quarantined, RunRewound

__all__ = ["DEBUG", "DONE", "KEPT", "NEEDS_A_PERSON", "NEGATIVE", "UNAVAILABLE", "Interrupted", "code_of", "report"]

DONE, NEGATIVE, USAGE = 0, 1, 2
UNAVAILABLE, BUG, SYSTEM, KEPT, OUTPUT, NOT_ACQUIRED, LOST, DENIED, NEEDS_A_PERSON = 69, 70, 71, 73, 74, 75, 76, 77, 78
BY_SIGNAL = 128

DEBUG = "LEASEKEEPER_DEBUG"

# What the kernel says when a limit on processes, open files or memory is reached.
SHORT = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Interrupted(BaseException):
    """A signal asked the command to end. Not an Exception: like Ctrl-C it passes every ordinary ``except``."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def code_of(error: BaseException) -> int:
    """The exit code for what ended a command."""
    error = _meant(error)
    match error:
        case Interrupted():
            return BY_SIGNAL + error.number
        case KeyboardInterrupt() | click.Abort():
            return BY_SIGNAL + signal.SIGINT
        case LeasekeeperError():
            return _code_of_ours(error)
        case click.ClickException():
            return USAGE
    return _code_of_the_system(error)


def _code_of_the_system(error: BaseException) -> int:
    match error:
        case OSError() if error.errno == errno.EPIPE:
            return BY_SIGNAL + getattr(signal, "SIGPIPE", 13)
        case OSError() if error.errno in (errno.ENOSPC, errno.EIO):
            return OUTPUT
        case OSError() if error.errno in SHORT:
            return SYSTEM
        case MemoryError():
            return SYSTEM
    return BUG


def _meant(error: BaseException) -> BaseException:
    """The Ctrl-C that caused ``error``, or else ``error``: while a class is made, Python up to 3.11 wraps whatever comes."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, (KeyboardInterrupt, Interrupted)):
        cause = cause.__cause__
    return cause or error


def _code_of_ours(error: LeasekeeperError) -> int:
    match error:
        case InDoubt() | Quarantined() | Conflict() | Drift() | RunRewound() | AnchorSkewed():
            return NEEDS_A_PERSON
        case StopWork():
            return LOST
        case NotAcquired():
            return NOT_ACQUIRED
        case AuthError():
            return DENIED
        case ExportKept():
            return KEPT
        case FixIt():
            return USAGE
    return UNAVAILABLE


def report(error: BaseException, command: str) -> int:
    """Say on stderr what ended ``command`` (one line, or nothing where nothing is to be said); the exit code."""
    if os.environ.get(DEBUG):
        traceback.print_exception(error, file=sys.stderr)
    line = _line(error, command)
    if line:
        try:
            click.echo(f"leasekeeper: {one_line(line)}", err=True)
        except OSError:
            pass  # nobody listens; the code still says it
    return code_of(error)


def _line(error: BaseException, command: str) -> str:
    error = _meant(error)
    match error:
        case Interrupted() | KeyboardInterrupt() | click.Abort():
            return ""
        case OSError() if error.errno == errno.EPIPE:
            return ""
        case LeasekeeperError():
            return _advice(error)
        case click.UsageError(ctx=click.Context() as ctx):
            return f"{error.format_message()} (see: {ctx.command_path} --help)"
        case click.ClickException():
            return f"{error.format_message()} (see: {command} --help)"
    if code_of(error) == OUTPUT:
        return f"the output could not be written: {error}"
    if code_of(error) == SYSTEM:
        short = error.strerror if isinstance(error, OSError) else "out of memory"
        return f"the system refuses a process, a file or memory: {short}; look at ulimit -a"
    return f"this is a bug in leasekeeper: {type(error).__name__}: {brief(str(error))} (set {DEBUG}=1 to see where)"


def _advice(error: LeasekeeperError) -> str:
    """The error's own words and, where they do not say it, what to do."""
    text = _told(error)
    match error:
        case OutOfSpace():
            return text
        case Unavailable() if error.operation != "start":
            return f"{text}; check --endpoints and run: leasekeeper doctor"
        case OutcomeUnknown():
            return f"{text}; look with: leasekeeper show"
    return text


def _told(error: LeasekeeperError) -> str:
    """The error's own words; of a log that it quotes, the last thing said, and never more than can be read."""
    text = str(error)
    if not isinstance(error, (Unavailable, OutcomeUnknown)):
        return text
    if "\n" in error.detail:
        text = text.replace(error.detail, last_said(error.detail))
    return brief(text)
