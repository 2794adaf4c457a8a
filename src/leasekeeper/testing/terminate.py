"""SIGTERM as an interrupt, while pytest runs tests that hold something in etcd.

Python's own answer to SIGTERM is to be gone, without a fixture's end: a lease would then be held until its TTL is out. So
from the first test that has an etcd on, pytest ends on SIGTERM as it does on Ctrl-C: fixtures end, leases are given back,
the exit status is that of an interrupted run. Who has set a handler of his own keeps it. While something is being given
back the interrupt waits until it is done.

A worker of pytest-xdist gets the signal when its controller has died, from the kernel where that can be had (Linux);
by itself a worker would go on for some seconds. A child that a test forks off has nothing to give back, and SIGTERM ends it
as ever. It must not come to the child in the moment before that is so, for Python drops signals then: it is held meanwhile.

The kernel may hand the signal to any thread, while Python answers it in the main one only, which sleeps on if it was not
the one that was woken (seen about once in a hundred runs here). So a thread hears of each signal from Python's own
wake-up descriptor, and where there is no answer soon passes it on to the main thread.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from leasekeeper.testing.launcher import die_with_parent

__all__ = ["Interrupts"]

ANSWER_S = 0.25
POLL_S = 0.01
STOP = b"\0"


class Interrupts:
    """Turns SIGTERM into a KeyboardInterrupt; `restore` puts back what was."""

    def __init__(self) -> None:
        self._installed = False
        self._is_held = False
        self._depth = 0
        self._came = False
        self._heard = False
        self._wake_up = -1

    def install(self, *, is_worker: bool) -> None:
        """Listen, if nobody else does; only a process's main thread can. A worker listens for its controller's death, too."""
        if self._installed or threading.current_thread() is not threading.main_thread():
            return
        if hasattr(os, "register_at_fork") and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_term)
            self._installed = True
            self._listen()
            os.register_at_fork(before=self._hold, after_in_parent=self._let_go, after_in_child=self._forget)
            if is_worker and sys.platform == "linux":
                die_with_parent(signal.SIGTERM)

    def restore(self) -> None:
        """Let SIGTERM do what it did before."""
        if self._installed and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._installed = False
            if self._give_up_wake_up():
                os.write(self._wake_up, STOP)

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
        self._heard = self._came = True
        self._interrupt()

    def _interrupt(self) -> None:
        if self._came and self._depth == 0:
            self._came = False
            raise KeyboardInterrupt("SIGTERM")

    # -- where another thread gets it

    def _listen(self) -> None:
        """Start the thread that passes signals on, unless somebody else, an event loop for instance, hears of them first."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            os.close(reader)
            os.close(writer)
            return
        self._wake_up = writer
        main = threading.main_thread().ident
        assert main is not None
        arguments = (reader, writer, main)
        threading.Thread(target=self._pass_on, args=arguments, name="leasekeeper-testing-signals", daemon=True).start()

    def _pass_on(self, reader: int, writer: int, main: int) -> None:
        try:
            while STOP not in (numbers := os.read(reader, 256)):
                if signal.SIGTERM in numbers and not self._answered():
                    signal.pthread_kill(main, signal.SIGTERM)  # which is one more number to read
        finally:
            os.close(reader)
            os.close(writer)

    def _answered(self) -> bool:
        until_s = time.monotonic() + ANSWER_S
        while not self._heard and time.monotonic() < until_s:
            time.sleep(POLL_S)
        heard, self._heard = self._heard, False
        return heard

    def _give_up_wake_up(self) -> bool:
        """Whether it was still ours."""
        if self._wake_up < 0:
            return False
        now = signal.set_wakeup_fd(-1)
        if now != self._wake_up and now != -1:
            signal.set_wakeup_fd(now)
        return True

    # -- around a fork

    def _hold(self) -> None:
        if self._installed:
            self._is_held = signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _let_go(self) -> None:
        if self._is_held:
            self._is_held = False
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _forget(self) -> None:
        if self._installed:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._installed = False
            self._give_up_wake_up()
        self._let_go()
