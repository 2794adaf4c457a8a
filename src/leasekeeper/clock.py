"""The clock that authority is measured by: one that goes on while the machine is suspended.

``time.monotonic`` stands still on Linux while the system sleeps, so a laptop or a paused container host would wake up
believing that no time had passed. ``CLOCK_BOOTTIME`` counts that time. Where there is none (macOS, Windows) the
platform's monotonic clock is used. Wall-clock time is never used for a decision, only shown to people.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Protocol

__all__ = ["BOOT_CLOCK", "BootClock", "Clock", "boottime"]


class Clock(Protocol):
    """Tells elapsed seconds. Only differences mean anything; it never goes back."""

    def now(self) -> float:
        """Seconds since an arbitrary fixed point."""
        ...


# A partial, not a def: the gate calls it on every check, and this costs no Python frame.
boottime = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic


class BootClock:
    """The production clock: seconds since boot, the time that the machine slept included."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = boottime


BOOT_CLOCK = BootClock()
