"""The clock that authority is measured by."""

from __future__ import annotations

import time

import pytest

from leasekeeper.clock import BOOT_CLOCK, boottime


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux counts the time that the machine slept")
def test_it_counts_the_time_that_the_machine_slept() -> None:
    """On Linux it is CLOCK_BOOTTIME, not the monotonic clock that stands still in a suspend."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = BOOT_CLOCK.now()
    assert before <= now <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_it_never_goes_back() -> None:
    """Only differences mean anything, and none is negative."""
    readings = [boottime() for _ in range(1000)]
    assert readings == sorted(readings)


def test_wall_time_plays_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """C22: setting the machine's time changes nothing."""
    monkeypatch.setattr(time, "time", lambda: 0.0)
    first = BOOT_CLOCK.now()
    monkeypatch.setattr(time, "time", lambda: 1e12)
    assert 0.0 <= BOOT_CLOCK.now() - first < 60.0
