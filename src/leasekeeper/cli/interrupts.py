"""Ending on request: INT, TERM, HUP, QUIT, USR1 and USR2 while a command waits for a lease or holds one.

The first signal raises `Interrupted` in the main thread, which reaches whatever waits there, and its clean-up: a claim in a
queue is withdrawn. Later ones are only noted, so that they cannot cut the clean-up short; it has bounds of its own. Once `queue`
was called nothing is raised and signals come as items. Signals that were ignored from the start (``nohup``) stay ignored.
"""

from __future__ import annotations

import signal
from queue import Empty
from types import FrameType, TracebackType
from typing import Any, final

from leasekeeper.cli.exits import Interrupted
from leasekeeper.runtime.mailbox import Mailbox

__all__ = ["Interrupts"]

# All that would end the process as it is, leaving its claim to stand until the TTL is out.
CAUGHT = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
)


@final
class Interrupts:
    """A context manager for the main thread."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._raises = True
        # Its put() may be called from a signal handler, even while get() waits.
        self._items: Mailbox[object] = Mailbox()

    def __enter__(self) -> Interrupts:
        for number in CAUGHT:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, action in self._before.items():
            signal.signal(number, action)

    def queue(self) -> None:
        """From now on signals come out of `take`."""
        self._raises = False

    def put(self, item: object) -> None:
        """Have `take` give ``item``; from any thread."""
        self._items.put(item)

    def take(self, timeout_s: float) -> object | None:
        """The next item or signal, in order; None when none came in time."""
        try:
            return self._items.get(timeout=timeout_s)
        except Empty:
            return None

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self._raises:
            self._raises = False
            raise Interrupted(number)
        self._items.put(signal.Signals(number))
