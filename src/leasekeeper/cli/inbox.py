"""What wakes a command that runs a program: signals to pass on, and news about the lease.

While the inbox is open the signals that a supervisor, a shell or a terminal sends are caught and kept in order; nothing else
happens in a signal handler. SIGCONT is not among them: who stops here knows when it goes on. Signals that this process was
started with ignored (``nohup``, a background job of a plain shell) stay ignored. Signal handlers are the program's own
business, so only the command line has any.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from types import FrameType, TracebackType
from typing import final

from leasekeeper.cli.tree import proc

__all__ = ["PASSED_ON", "Inbox"]

PASSED_ON = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH),
)
_CAUGHT = (*PASSED_ON, signal.SIGTSTP)

# A sender that is faster than we read loses signals, as with the kernel's own pending signals.
KEPT_MAX = 64
SETTLE_S = 0.02


@final
class Inbox:
    """A context manager, for the main thread; ``fileno()`` is readable while something waits to be taken."""

    def __init__(self) -> None:
        self._signals: deque[int] = deque(maxlen=KEPT_MAX)
        self._before: dict[int, object] = {}
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._readable, False)
        os.set_blocking(self._writable, False)
        self._wakeup_before = -1

    def __enter__(self) -> Inbox:
        self._wakeup_before = signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        for number in _CAUGHT:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._keep)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, action in self._before.items():
            signal.signal(number, action)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._readable)
        os.close(self._writable)
        self._writable = -1

    def fileno(self) -> int:
        """For ``poll``."""
        return self._readable

    def wake(self, *_: object) -> None:
        """Make it readable; from any thread, also after the end."""
        try:
            os.write(self._writable, b"\0")
        except OSError:
            pass  # full: it is readable already; closed: nobody waits

    def take(self) -> list[int]:
        """The signals that came, in order; the inbox is not readable any more."""
        self._drain()
        taken = []
        while self._signals:
            taken.append(self._signals.popleft())
        return taken

    def stop_here(self, number: int, *, whole_group: bool) -> bool:
        """Stop this process as ``number`` (TSTP, TTIN, TTOU) does by default; False if nobody could have continued it.

        Returns when the process goes on. ``whole_group``: stop the other processes of the job too, as the terminal would.
        """
        if not could_be_continued():
            return False
        before = signal.signal(number, signal.SIG_DFL)
        try:
            if whole_group:
                os.kill(0, number)
            else:
                signal.raise_signal(number)
            # The kernel may have chosen another thread to stop us, which takes this one a moment later.
            time.sleep(SETTLE_S)
        finally:
            signal.signal(number, before)
        return True

    def _drain(self) -> None:
        try:
            while os.read(self._readable, 4096):
                pass
        except BlockingIOError:
            pass

    def _keep(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)


def could_be_continued() -> bool:
    """Whether a shell above would see this job stopped: the kernel stops no job of an orphaned process group."""
    group, session = os.getpgrp(), os.getsid(0)
    parent = os.getppid()
    while parent > 0 and _session(parent) == session:
        if os.getpgid(parent) != group:
            return True
        above = proc.read(parent)
        parent = above.parent if above is not None else 0
    return False


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1
