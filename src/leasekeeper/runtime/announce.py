"""Where users' callbacks run: on a thread of their own, never on the heart's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, Full, Queue
from typing import Any

__all__ = ["Announcer"]

log = logging.getLogger("leasekeeper")

# A subscriber that has fallen this far behind loses news rather than memory; the state itself can always be read.
BACKLOG_MAX = 10_000


class Announcer:
    """Calls callbacks in order, one after the other, on one thread that is started by the first call."""

    def __init__(self) -> None:
        self._queue: Queue[Callable[[], Any] | None] = Queue(BACKLOG_MAX)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.lost = 0

    def tell(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call it soon. Never blocks; an exception that it raises is logged and goes no further."""
        try:
            self._queue.put_nowait(partial(callback, *args))
        except Full:
            self.lost += 1
            return
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._start_thread()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="leasekeeper-announce", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return  # the system has no thread left just now: what is queued is told when the next call finds one
        self._thread = thread

    def close(self, timeout_s: float = 1.0) -> None:
        """Deliver what is queued, within a bound, and end the thread."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        try:
            self._queue.put_nowait(None)
        except Full:
            self._drain()
            self._queue.put_nowait(None)
        thread.join(timeout_s)

    def _drain(self) -> None:
        try:
            while True:
                self._queue.get_nowait()
        except Empty:
            return

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            try:
                call()
            except Exception:
                log.exception("a callback failed; leases are not affected")
