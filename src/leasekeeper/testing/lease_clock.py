"""A clock that a test can put forward, instead of waiting for a lease to run out.

It runs as fast as the real one, and `advance` makes it jump, which is what a machine that was suspended sees: the gate of a
lease reads it and shuts at once, without anything having been told. etcd's own clock does not jump, so a lease whose
heartbeats still get through is proven again by the next one; put a fault in force first (``faults.blackhole()``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from leasekeeper.clock import BOOT_CLOCK, boottime
from leasekeeper.errors import ConfigError, Misuse

__all__ = ["LeaseClock", "installed", "running"]


class LeaseClock:
    """Seconds on the clock that authority is measured by, and a way to put it forward."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def now(self) -> float:
        """Seconds since an arbitrary fixed point."""
        return boottime() + self._ahead_s

    def advance(self, seconds: float) -> None:
        """Put it forward; it never goes back. Who sleeps meanwhile sees it on waking up."""
        if not seconds >= 0:
            raise ConfigError(field="seconds", value=seconds, expected="a number not below 0")
        self._ahead_s += seconds


@contextmanager
def running() -> Iterator[LeaseClock]:
    """For every keeper that is made meanwhile in this process, time is that of this clock; it keeps it for its life."""
    if installed() is not None:
        raise Misuse("there is a lease_clock in this process already")
    clock, real = LeaseClock(), BOOT_CLOCK.now
    BOOT_CLOCK.now = clock.now
    try:
        yield clock
    finally:
        BOOT_CLOCK.now = real


def installed() -> LeaseClock | None:
    """The clock that new keepers would go by, if it is one that can be put forward."""
    owner = getattr(BOOT_CLOCK.now, "__self__", None)
    return owner if isinstance(owner, LeaseClock) else None
