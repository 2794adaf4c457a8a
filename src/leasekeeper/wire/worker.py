"""A thread that is started by whoever first needs it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from sys import is_finalizing

__all__ = ["Worker"]


class Worker:
    """One daemon thread for one loop, however many threads ask for it at once.

    The running thread says of itself that it runs. So a start that failed, or that Ctrl-C interrupted halfway, is made up for by
    the next one who asks.
    """

    def __init__(self, loop: Callable[[], None], name: str) -> None:
        self._loop = loop
        self._name = name
        # Reentrant: the garbage collector may run what asks for the thread while this same thread is starting it.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """See that it runs. RuntimeError when no thread can be started just now."""
        if self._thread is None:
            if is_finalizing():
                # Before Python 3.12 whoever starts a thread now waits for ever.
                raise RuntimeError("the interpreter shuts down")
            with self._lock:
                if self._thread is None:
                    threading.Thread(target=self._run, name=self._name, daemon=True).start()

    @property
    def is_current(self) -> bool:
        """Whether this is the thread that asks."""
        return self._thread is threading.current_thread()

    def join(self, timeout_s: float) -> None:
        """Wait for its end, at most so long; not at all if it does not run, or is the thread that asks."""
        thread = self._thread
        if thread is not None and not self.is_current:
            thread.join(max(0.0, timeout_s))

    def _run(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.current_thread()
        self._loop()
