"""Reaping dead children, for a bounded time.

A subreaper inherits every orphan of the tree. A tree can die faster than its dead are buried: a loop that goes on until no dead
are left may never come back, and the gate would not be looked at, nor would anything be killed. So each call ends in time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from enum import Enum

__all__ = ["Left", "reap"]


class Left(Enum):
    """Which children this process has after reaping."""

    NONE = "none"
    LIVING = "living"
    MAYBE_DEAD = "maybe dead"  # time was too short to tell


def reap(for_s: float, note: Callable[[int, int], object] = lambda pid, status: None, *, stops: bool = False) -> Left:
    """Reap dead children for ``for_s`` seconds at most; ``note`` gets each pid and wait status.

    With ``stops`` children that were stopped are noted as well.
    """
    options = os.WNOHANG | (os.WUNTRACED if stops else 0)
    until_s = time.monotonic() + for_s
    try:
        while (change := os.waitpid(-1, options)) != (0, 0):
            note(*change)
            if time.monotonic() >= until_s:
                return Left.MAYBE_DEAD
    except ChildProcessError:
        return Left.NONE
    return Left.LIVING
