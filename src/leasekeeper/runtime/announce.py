"""Where users' callbacks run: on a thread of their own, never on the heart's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

from leasekeeper.wire.worker import Worker

__all__ = ["Announcer"]

log = logging.getLogger("leasekeeper")

# A subscriber that has fallen this far behind loses news rather than memory; the state itself can always be read.
BACKLOG_MAX = 10_000


class Announcer:
    """Calls callbacks in order, one after the other, on one thread that is started by the first call."""

    def __init__(self) -> None:
        # Not a Queue: Ctrl-C in its Python code could leave it locked, and the heart tells news here.
        self._queue: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._worker = Worker(self._run, "leasekeeper-announce")
        self._closed = False
        self.lost = 0

    def tell(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call it soon. Never blocks, never fails; an exception that it raises is logged and goes no further."""
        if self._closed or self._queue.qsize() >= BACKLOG_MAX:
            self.lost += 1
            return
        self._queue.put(partial(callback, *args))
        try:
            self._worker.start()
        except RuntimeError:
            pass  # no thread can be started just now; the next news tries again

    def close(self, timeout_s: float = 1.0) -> None:
        """Deliver what is queued, within a bound, and end the thread."""
        self._closed = True
        self._queue.put(None)
        self._worker.join(timeout_s)

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            try:
                call()
            except BaseException:  # not even sys.exit() in a callback may end the news of all others
                log.exception("a callback failed; leases are not affected")
            # Or the last callback, and the lease that it may refer to, would live until there are other news.
            del call
