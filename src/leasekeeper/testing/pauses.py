"""Assertions on the progress of work: it stops while authority is missing, and goes on afterwards.

``work`` is a function that tells how far the work has come: a count, a length, a position in a file. ::

    faults.blackhole()
    assert_pauses(lambda: len(sink.rows), within=3)     # seconds, counted from the call
    faults.heal()
    assert_resumes(lambda: len(sink.rows), within=10)

The two belong together: work that has died does not go on either.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from leasekeeper.errors import ConfigError

__all__ = ["assert_pauses", "assert_resumes"]

POLL_S = 0.01
SHOWN = 60


def assert_pauses(work: Callable[[], object], *, within: float, still: float = 1.0) -> None:
    """The work makes its last step at most ``within`` seconds from now, and then none for ``still`` seconds.

    Returns as soon as it has stood still for so long. Slow work may look as if it did: give ``still`` more than the longest
    time between two of its steps. With the default timing of a lease the gate shuts half a TTL after the last heartbeat
    that was confirmed, and the lease can be had back until the TTL is out.

    Args:
        work: how far the work has come; must have begun (0, None or nothing is a failure, for it would prove nothing).
        within: seconds by which the last step must be done.
        still: seconds without a step that count as a pause.

    Raises:
        AssertionError: the work went on, or had not begun.
    """
    __tracebackhide__ = True
    _check(within=within, still=still)
    began_s = changed_s = time.monotonic()
    first = reached = _reading(work)
    if not first:
        raise AssertionError(f"the work has not begun (it is at {_shown(first)}): that it stands still proves nothing")
    steps = 0
    while (now_s := time.monotonic()) < changed_s + still:
        time.sleep(POLL_S)
        found = _reading(work)
        if found == reached:
            continue
        if now_s - began_s > within:
            raise AssertionError(
                f"the work did not pause: it still made a step {now_s - began_s:.2f} s after the call, where {within:g} s"
                f" are allowed, and went from {_shown(first)} to {_shown(found)} in {steps + 1} steps that were seen"
            )
        reached, changed_s, steps = found, time.monotonic(), steps + 1


def assert_resumes(work: Callable[[], object], *, within: float) -> None:
    """The work makes a step at most ``within`` seconds from now.

    Raises:
        AssertionError: it stands where it stood.
    """
    __tracebackhide__ = True
    _check(within=within)
    until_s = time.monotonic() + within
    first = _reading(work)
    while _reading(work) == first:
        if time.monotonic() >= until_s:
            raise AssertionError(f"the work did not go on within {within:g} s: it is still at {_shown(first)}")
        time.sleep(POLL_S)


def _reading(work: Callable[[], object]) -> object:
    """How far the work has come; ConfigError for what changes under the reader's eyes and would always equal itself."""
    value = work()
    try:
        hash(value)
    except TypeError:
        raise ConfigError(
            field="work", value=value, expected="a function that gives a number, such as a length"
        ) from None
    return value


def _check(**seconds: float) -> None:
    for field, value in seconds.items():
        if not value > 0:
            raise ConfigError(field=field, value=value, expected="seconds above 0")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
