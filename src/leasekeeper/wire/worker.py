"""Starting threads: one that whoever first needs it starts, and any other."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from sys import is_finalizing

__all__ = ["Worker", "begin"]


def begin(call: Callable[[], object], name: str) -> threading.Thread:
    """Run a call on a daemon thread of its own. RuntimeError when no thread can be started just now."""
    thread = threading.Thread(target=call, name=name, daemon=True)
    _start(thread)
    return thread


def _start(thread: threading.Thread) -> None:
    if is_finalizing():
        # Before Python 3.12 whoever starts a thread now waits for ever.
        raise RuntimeError("the interpreter shuts down")
    before = sys.exc_info()[1]
    try:
        thread.start()
    except RuntimeError as error:
        # Starting waits in Python code, which Ctrl-C can make trip over its own lock. It is Ctrl-C that must come out then.
        struck = error.__context__
        if struck is None or struck is before:
            raise
        raise struck from None


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
        # Started last, and perhaps not yet far enough to say so.
        self._begun: threading.Thread | None = None

    def start(self) -> None:
        """See that it runs. RuntimeError when no thread can be started just now."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._begun = threading.Thread(target=self._run, name=self._name, daemon=True)
                    _start(self._begun)

    def join(self, timeout_s: float) -> None:
        """Wait for its end, at most so long; not at all if it does not run, or is the thread that asks."""
        thread = self._thread or self._begun
        if thread is not None and thread is not threading.current_thread():
            try:
                thread.join(max(0.0, timeout_s))
            except RuntimeError:
                return  # its start had failed

    def _run(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.current_thread()
        self._loop()
