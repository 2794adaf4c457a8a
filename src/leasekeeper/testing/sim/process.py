"""A process in virtual time: its clock, its timers, and what can befall it.

Its clock shows boot time: it runs up to a little fast or slow and goes on while the process is stopped or the machine
sleeps. Timers are another matter: a stopped process finds them due when it goes on, but while the machine sleeps they stand
still, as those of the kernel do, and are late by as long afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from leasekeeper.testing.sim.timeline import Occurrence, Timeline

__all__ = ["Process"]

# How long it takes until a thread runs that was woken.
WAKE_S = 0.0005


class Process:
    """One process. ``rate`` is how fast its clock runs, ``offset_s`` what it showed at the beginning."""

    __slots__ = ("_lying", "_slept_s", "_stopped_until_s", "_timeline", "alive", "chance", "name", "offset_s", "rate")

    def __init__(self, timeline: Timeline, name: str, chance: Random, rate: float = 1.0) -> None:
        self._timeline = timeline
        self.name = name
        self.chance = chance
        self.rate = rate
        self.offset_s = chance.uniform(100.0, 100_000.0)
        self.alive = True
        self._stopped_until_s = 0.0
        self._slept_s = 0.0
        # What came while it stood still.
        self._lying: list[Occurrence] = []

    def now(self) -> float:
        """What its clock shows."""
        return self.offset_s + self._timeline.now_s * self.rate

    @property
    def stopped(self) -> bool:
        """Whether it stands still just now."""
        return self._timeline.now_s < self._stopped_until_s

    def well_since_s(self) -> float:
        """Since when it runs; in the future while it stands still."""
        return self._stopped_until_s

    def after(self, seconds: float, event: Occurrence) -> Callable[[], None]:
        """Set a timer, in seconds of its own clock; returns what cancels it."""
        timer = _Timer(self, event, self._slept_s)
        self._timeline.after(max(0.0, seconds) / self.rate, timer)
        return timer.cancel

    def soon(self, event: Occurrence) -> None:
        """Have one of its threads run in a moment."""
        self._timeline.after(self.chance.uniform(0.0, WAKE_S), lambda: self.run(event))

    def run(self, event: Occurrence) -> None:
        """Something reaches it: now, or when it goes on, or never."""
        if not self.alive:
            return
        if self.stopped:
            self._lying.append(event)
        else:
            event()

    def stop(self, seconds: float, *, asleep: bool = False) -> None:
        """Stand still for so long; ``asleep``: with the whole machine."""
        until_s = self._timeline.now_s + seconds
        if asleep:
            self._slept_s += max(0.0, until_s - max(self._timeline.now_s, self._stopped_until_s))
        if until_s > self._stopped_until_s:
            self._stopped_until_s = until_s
            self._timeline.at(until_s, self._go_on)

    def go_on_now(self) -> None:
        """Whatever made it stand still is over."""
        self._stopped_until_s = min(self._stopped_until_s, self._timeline.now_s)
        self._go_on()

    def kill(self) -> None:
        """End it, here and now."""
        self.alive = False
        self._lying = []

    def _go_on(self) -> None:
        if self.stopped:
            return
        lying, self._lying = self._lying, []
        self.chance.shuffle(lying)  # which thread runs first nobody knows
        for event in lying:
            self.soon(event)


class _Timer:
    """Fires once; late by as long as the machine slept meanwhile."""

    __slots__ = ("_event", "_process", "_slept_s")

    def __init__(self, process: Process, event: Occurrence, slept_s: float) -> None:
        self._process = process
        self._event: Occurrence | None = event
        self._slept_s = slept_s

    def cancel(self) -> None:
        self._event = None

    def __call__(self) -> None:
        process = self._process
        if self._event is None or not process.alive:
            return
        slept_s = process._slept_s - self._slept_s
        if slept_s > 0:
            self._slept_s = process._slept_s
            process._timeline.after(slept_s, self)
        elif process.stopped:
            process._lying.append(self)
        else:
            event, self._event = self._event, None
            event()
