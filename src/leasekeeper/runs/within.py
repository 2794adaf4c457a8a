"""Calls to the world outside of etcd, each with an end: a file system, a name server or a socket may never answer.

A system call that hangs cannot be broken off from outside. So each call runs on a daemon thread of its own, and the caller
waits for it no longer than it said. What is stuck goes on being stuck, which is why there is a bound on how many there may be.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from queue import Empty
from typing import Generic, TypeVar

from leasekeeper.errors import ConfigError, Unavailable
from leasekeeper.runtime.mailbox import Mailbox
from leasekeeper.wire.worker import begin

__all__ = ["Within"]

T = TypeVar("T")

# Calls under way at once, through one object.
CALLS_MAX = 8
TIMEOUT_MAX_S = 24 * 3600


class _Done(Generic[T]):
    __slots__ = ("error", "result")

    def __init__(self, result: T | None = None, error: BaseException | None = None) -> None:
        self.result = result
        self.error = error


class Within:
    """Makes calls that take at most ``timeout_s`` seconds each, from any number of threads.

    A call that takes longer is Unavailable for its caller, and goes on by itself: it may have its effect yet. So only calls that
    may be made twice belong here.
    """

    def __init__(self, timeout_s: float, where: str) -> None:
        """``where`` is named in errors. ConfigError when ``timeout_s`` is no bound."""
        if not 0 < timeout_s <= TIMEOUT_MAX_S:
            raise ConfigError(
                field="timeout_s", value=timeout_s, expected=f"seconds, above 0 and up to {TIMEOUT_MAX_S}"
            )
        self.timeout_s = float(timeout_s)
        self._where = where
        self._pid = 0
        self._room = threading.Semaphore(0)

    def __call__(self, operation: str, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises. Unavailable when that takes too long; ``operation`` is named then."""
        until = time.monotonic() + self.timeout_s
        room = self._room_here()
        if not room.acquire(timeout=self.timeout_s):
            raise self._late(operation, f"{CALLS_MAX} earlier calls hang")
        permit = [room]

        def give_back() -> None:
            try:
                permit.pop().release()
            except IndexError:
                pass  # the other side has done it

        box: Mailbox[_Done[T]] = Mailbox()

        def run() -> None:
            try:
                box.put(_Done(work()))
            except BaseException as error:  # noqa: BLE001 - whatever it is, the caller is to get it
                box.put(_Done(error=error))
            finally:
                give_back()

        try:
            begin(run, "leasekeeper-outside")
        except BaseException as error:
            give_back()
            if isinstance(error, RuntimeError):
                raise self._late(operation, str(error)) from error
            raise
        try:
            done = box.get(max(0.0, until - time.monotonic()))
        except Empty:
            raise self._late(operation, f"no end within {self.timeout_s:g} s") from None
        if done.error is not None:
            raise done.error
        return done.result  # type: ignore[return-value]

    def _late(self, operation: str, detail: str) -> Unavailable:
        return Unavailable(f"{self._where}: {operation}: {detail}", operation=operation, detail=detail)

    def _room_here(self) -> threading.Semaphore:
        """The permits of this process: in a forked child nobody is left to give back those that were out."""
        if self._pid != os.getpid():
            self._room = threading.Semaphore(CALLS_MAX)
            self._pid = os.getpid()
        return self._room
