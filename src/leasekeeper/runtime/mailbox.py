"""A queue between threads whose timed wait ends in time, whatever signals come.

``queue.SimpleQueue`` of CPython up to 3.12 can wait for ever: when a signal with a Python handler arrives in the waiting thread
after the time is already over, as it does when a process that was stopped is continued, the time left is negative and is
taken for "no limit". ``Lock.acquire`` guards against that, so the waiting is done by a lock.

Like SimpleQueue, ``put`` never blocks and may be called from a signal handler or inside a garbage collection, also while
the same thread is in ``get``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import Empty
from typing import Generic, TypeVar

__all__ = ["Mailbox"]

T = TypeVar("T")


class Mailbox(Generic[T]):
    """First in, first out; without a bound, as whoever puts may not wait."""

    __slots__ = ("_bell", "_items")

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        # Held while nobody has rung since the last wait.
        self._bell = threading.Lock()
        self._bell.acquire()

    def put(self, item: T) -> None:
        """Append ``item`` and wake who waits."""
        self._items.append(item)
        self._ring()

    def get_nowait(self) -> T:
        """The oldest item; raises ``queue.Empty`` when there is none."""
        try:
            item = self._items.popleft()
        except IndexError:
            raise Empty from None
        if self._items:
            self._ring()  # for another thread that waits
        return item

    def get(self, timeout: float | None = None) -> T:
        """The oldest item, waited for at most ``timeout`` seconds; raises ``queue.Empty`` when none has come."""
        if timeout is None:
            timeout = threading.TIMEOUT_MAX
        end_s = time.monotonic() + timeout
        while True:
            try:
                return self.get_nowait()
            except Empty:
                left_s = max(0.0, min(end_s - time.monotonic(), threading.TIMEOUT_MAX))
                if not self._bell.acquire(timeout=left_s):
                    raise

    def _ring(self) -> None:
        try:
            self._bell.release()
        except RuntimeError:
            pass  # it has rung already and nobody has heard it yet
