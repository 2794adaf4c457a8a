"""Who stands in line to add to a run, for threads and asyncio: without a lock, each step being one of the interpreter."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from leasekeeper.runtime.signals import Flag

if TYPE_CHECKING:
    from leasekeeper.protocol.append import Entry
    from leasekeeper.protocol.plan import Signal

__all__ = ["Queue"]


class Queue:
    """A `leasekeeper.protocol.append.Line`. Bounded by those who wait: each is a thread or a task."""

    __slots__ = ("_leading", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Entry] = deque()
        # Only ever tried, never waited for: it marks that somebody leads.
        self._leading = threading.Lock()

    def join(self, entry: Entry) -> None:
        """Stand at the end."""
        self._waiting.append(entry)

    def withdraw(self, entry: Entry) -> None:
        """Stand in it no longer."""
        try:
            self._waiting.remove(entry)
        except ValueError:
            pass  # it was taken

    def lead(self) -> bool:
        """Become the one that sends, unless somebody is."""
        return self._leading.acquire(blocking=False)

    def leave(self) -> None:
        """Lead no longer, and wake the first that waits."""
        self._leading.release()
        try:
            self.ring(self._waiting[0])
        except IndexError:
            pass  # nobody waits

    def take(self, entries_max: int, bytes_max: int) -> list[Entry]:
        """The first that wait, at least one if there is any; by the one that leads alone."""
        taken: list[Entry] = []
        size = 0
        while self._waiting and len(taken) < entries_max:
            try:
                entry = self._waiting.popleft()
            except IndexError:
                break  # it withdrew
            if taken and size + entry.size > bytes_max:
                self._waiting.appendleft(entry)
                break
            size += entry.size
            taken.append(entry)
        return taken

    def bell(self, entry: Entry) -> Signal:
        """A new signal for an entry."""
        bell = entry.bell = Flag()
        return bell

    def ring(self, entry: Entry) -> None:
        """Set it."""
        bell = entry.bell
        if isinstance(bell, Flag):
            bell.set()
