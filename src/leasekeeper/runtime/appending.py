"""Who stands in line to add to a run, for threads and asyncio: without a lock, each step being one of the interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.runtime.signals import Flag

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasekeeper.protocol.delay import Delay
    from leasekeeper.protocol.log import Entry
    from leasekeeper.protocol.plan import Signal

__all__ = ["Queue"]


def _nobody(delay: Delay) -> None:
    """Nobody listens."""


class Queue:
    """A `leasekeeper.protocol.log.Line`. Bounded by those who wait: each is a thread or a task.

    ``tell`` hears of records that cannot be written for now. It must return at once: whoever leads calls it.
    """

    __slots__ = ("_leader", "_tell", "_waiting")

    def __init__(self, tell: Callable[[Delay], None] = _nobody) -> None:
        self._tell = tell
        # Dicts, since to look for a key of theirs and to put it in is one step.
        self._waiting: dict[Entry, None] = {}
        self._leader: dict[None, Entry] = {}

    def join(self, entry: Entry) -> None:
        """Stand at the end."""
        self._waiting[entry] = None

    def withdraw(self, entry: Entry) -> None:
        """Stand in it no longer."""
        self._waiting.pop(entry, None)

    def waiting(self) -> list[Entry]:
        """Who stands in it, the first one first."""
        return list(self._waiting)

    def lead(self, entry: Entry) -> bool:
        """Become the one that sends, unless somebody else is."""
        return self._leader.setdefault(None, entry) is entry

    def leave(self, entry: Entry) -> None:
        """Lead no longer, if one does, and wake the first that waits if nobody leads."""
        if self._leader.get(None) is entry:
            del self._leader[None]
        if self._waiting and not self._leader:
            first = next((each for each in self.waiting() if not each.settled), None)
            if first is not None:
                self.ring(first)

    def bell(self, entry: Entry) -> Signal:
        """A new signal for an entry."""
        bell = entry.bell = Flag()
        return bell

    def ring(self, entry: Entry) -> None:
        """Set it."""
        bell = entry.bell
        if isinstance(bell, Flag):
            bell.set()

    def delayed(self, delay: Delay) -> None:
        """Tell of a record that cannot be written for now, or that it is over."""
        self._tell(delay)
