"""Makes a schedule of faults smaller while the same promise stays broken.

Faults are taken out in pieces, first halves, then quarters, down to one at a time (Zeller's ddmin). What remains is small, not
the smallest there is; the number of worlds that are tried has a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from leasekeeper.testing.sim.batch import run_world

if TYPE_CHECKING:
    from leasekeeper.testing.sim.world import Outcome

__all__ = ["shrink"]

TRIES_MAX = 150


def shrink(outcome: Outcome, without: str | None = None, *, tries_max: int = TRIES_MAX) -> Outcome:
    """The world of a violation with as few of its faults as were found to be needed; itself if none can be spared."""
    if outcome.violation is None:
        return outcome
    promise, tries = outcome.violation.promise, [0]
    best = outcome

    def still_broken(numbers: tuple[int, ...]) -> Outcome | None:
        if tries[0] >= tries_max:
            return None
        tries[0] += 1
        again = run_world(replace(outcome.setting, only=numbers), without)
        return again if again.violation is not None and again.violation.promise == promise else None

    numbers = tuple(fault.number for fault in outcome.faults if fault.at_s <= outcome.ended_s)
    found = still_broken(numbers)
    if found is not None:
        best = _reduce(found, numbers, still_broken)
    return best


def _reduce(
    best: Outcome, numbers: tuple[int, ...], still_broken: Callable[[tuple[int, ...]], Outcome | None]
) -> Outcome:
    pieces = 2
    while numbers:
        size = max(1, (len(numbers) + pieces - 1) // pieces)
        for start in range(0, len(numbers), size):
            fewer = numbers[:start] + numbers[start + size :]
            found = still_broken(fewer)
            if found is not None:
                best, numbers = found, fewer
                pieces = max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(len(numbers), 2 * pieces)
    return best
