"""Virtual time: events in order, and chance in streams of their own.

Nothing waits. Time jumps from one event to the next; two events of one moment happen in the order in which they were planned.
Each part of a world draws from a stream of chance of its own, so that a change in one does not stir up the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

__all__ = ["Timeline"]

Occurrence = Callable[[], object]


class Timeline:
    """The events of one world, by one seed."""

    __slots__ = ("_events", "_order", "count", "now_s", "seed")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_s = 0.0
        self.count = 0
        self._order = 0
        self._events: list[tuple[float, int, Occurrence]] = []

    def chance(self, stream: str) -> Random:
        """A stream of chance that the seed and its name decide."""
        return Random(f"{self.seed}/{stream}")

    def at(self, at_s: float, event: Occurrence) -> None:
        """Have something happen at a moment, or now if that is over."""
        self._order += 1
        heapq.heappush(self._events, (max(self.now_s, at_s), self._order, event))

    def after(self, seconds: float, event: Occurrence) -> None:
        """Have something happen in so many seconds."""
        self.at(self.now_s + seconds, event)

    def next_s(self) -> float | None:
        """When something happens next; None when nothing ever will."""
        return self._events[0][0] if self._events else None

    def step(self) -> None:
        """Let the next event happen."""
        self.now_s, _, event = heapq.heappop(self._events)
        self.count += 1
        event()
