"""Stop one writer at every line of its code in turn, and let another one write in between.

A race between reading the highest token and remembering a new one shows itself once in many thousand runs, if threads are
left to themselves. So they are not: the writer on trial runs under a trace function that holds it before its n-th line while
the other writes from beginning to end, for n = 1, 2, 3 … Where the other one has to wait, because the first holds a
lock, the first goes on after a short grace, and that line is as safe as it should be.

Lines of Python are what can be stopped at. What happens within one statement of a database, or in another process, is
that one's affair; a writer that talks to it is still stopped before and after it does.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from functools import lru_cache
from types import FrameType
from typing import Any

__all__ = ["Stop", "run_between"]

JOIN_TIMEOUT_S = 60.0
LIBRARY = os.path.realpath(sysconfig.get_paths()["stdlib"])
OWN = os.path.dirname(os.path.abspath(__file__))


class Stop:
    """Where a writer was held: before its n-th line, or not at all when it has fewer."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.place = ""
        self.reached = threading.Event()
        self.over = threading.Event()
        self._left = number
        self._go = threading.Event()

    def go_on(self) -> None:
        """Let the writer continue."""
        self._go.set()

    def run(self, work: Callable[[], object]) -> None:
        """Do the work in this thread, and hold it before its n-th line."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            work()
        finally:
            sys.settrace(before)
            self.over.set()
            self.reached.set()

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._at if _is_on_trial(frame.f_code.co_filename) else None

    def _at(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._left -= 1
            if self._left == 0:
                file, line = frame.f_code.co_filename, frame.f_lineno
                self.place = f"{os.path.basename(file)}:{line}, before `{linecache.getline(file, line).strip()}`"
                self.reached.set()
                self._go.wait(JOIN_TIMEOUT_S)
        return self._at


def run_between(
    number: int, first: Callable[[], object], second: Callable[[], object], *, grace_s: float
) -> Stop | None:
    """Run ``second`` while ``first`` is held before its n-th line; None when it has fewer lines.

    ``second`` gets ``grace_s`` seconds before ``first`` goes on, since it may have to wait for it. Both are over when this
    returns; RuntimeError if they never end.
    """
    stop = Stop(number)
    writer = threading.Thread(target=stop.run, args=(first,), name="leasekeeper-testing-held-writer", daemon=True)
    other = threading.Thread(target=second, name="leasekeeper-testing-other-writer", daemon=True)
    writer.start()
    stop.reached.wait(JOIN_TIMEOUT_S)
    was_held = not stop.over.is_set()
    if was_held:
        other.start()
        other.join(grace_s)
    stop.go_on()
    writer.join(JOIN_TIMEOUT_S)
    if was_held:
        other.join(JOIN_TIMEOUT_S)
    if writer.is_alive() or other.is_alive():
        raise RuntimeError(
            f"two writes at once did not end within {JOIN_TIMEOUT_S:g} s; the first was held {stop.place}"
        )
    return stop if was_held else None


@lru_cache(maxsize=1024)
def _is_on_trial(file: str) -> bool:
    """True for the code of the adapter and what it uses, apart from Python's own library."""
    if file.startswith("<") or os.path.dirname(file) == OWN:
        return False
    path = os.path.realpath(file)
    return not path.startswith(LIBRARY + os.sep) or "site-packages" in path
