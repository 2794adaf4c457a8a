"""SIGTERM as an interrupt, while pytest runs tests that hold something in etcd.

Python's own answer to SIGTERM is to be gone, without a fixture's end: a lease would then be held until its TTL is out. So
from the first test that has an etcd on, pytest ends on SIGTERM as it does on Ctrl-C: fixtures end, leases are given back,
the exit status is that of an interrupted run. Who has set a handler of his own keeps it. While something is being given
back the interrupt waits until it is done.

A worker of pytest-xdist gets the signal when its controller has died, from the kernel where that can be had (Linux);
by itself a worker would go on for some seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from leasekeeper.testing.launcher import die_with_parent

__all__ = ["Interrupts"]

WORKER_VARIABLE = "PYTEST_XDIST_WORKER"


class Interrupts:
    """Turns the first SIGTERM into a KeyboardInterrupt; `restore` puts back what was."""

    def __init__(self) -> None:
        self._installed = False
        self._pid = os.getpid()
        self._depth = 0
        self._came = False
        self._raised = False

    def install(self) -> None:
        """Listen, if nobody else does; only a process's main thread can."""
        if self._installed or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_term)
            self._installed = True
            if WORKER_VARIABLE in os.environ and sys.platform == "linux":
                die_with_parent(signal.SIGTERM)

    def restore(self) -> None:
        """Let SIGTERM do what it did before."""
        if self._installed and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._installed = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A block that an interrupt waits for."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._interrupt()

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a child that was forked off, and has nothing of its own to give back
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self._came = True
        self._interrupt()

    def _interrupt(self) -> None:
        if self._came and not self._raised and self._depth == 0:
            self._raised = True
            raise KeyboardInterrupt("SIGTERM")
