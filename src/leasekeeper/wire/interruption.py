"""What Ctrl-C may leave behind in grpc, and how it is mended.

A signal's exception is raised in the main thread, between any two steps of Python code. grpc guards its channels with a
``threading.Condition`` and its plugins with a lock inside of a ``contextlib.contextmanager``. Both are entered and left by
Python code: an exception that strikes there after the lock was taken leaves it taken, and every other thread that makes a
call on the channel (with the plugins' lock: on any channel) then hangs, whatever its deadline. Such a lock belongs to the
thread that was struck, so that thread can give it back, and must do so before anything else waits for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

__all__ = ["let_go", "spared"]

T = TypeVar("T")

_CONDITION = (threading.Condition.__enter__.__code__, threading.Condition.__exit__.__code__)
_CONTEXT = (
    contextlib._GeneratorContextManager.__enter__.__code__,
    contextlib._GeneratorContextManager.__exit__.__code__,
)
_RLock = type(threading.RLock())


def spared(call: Callable[[], T]) -> T:
    """Make a call to grpc that Ctrl-C may strike, and leave no lock taken: for whatever a user's own thread asks of it."""
    try:
        return call()
    except BaseException as error:
        let_go(error)
        raise


def let_go(error: BaseException) -> None:
    """Give back what was taken by conditions and context managers in whose entering or leaving ``error`` was raised.

    To be called where the thread cannot be inside of any of them any more: what it still owns nobody will give back.
    """
    trace = error.__traceback__
    while trace is not None:
        _let_go(trace.tb_frame)
        trace = trace.tb_next


def _let_go(frame: FrameType) -> None:
    if frame.f_code in _CONTEXT:
        # Its generator stands at the yield, inside of the lock; or it has ended, and then this does nothing.
        frame.f_locals["self"].gen.close()
    elif frame.f_code in _CONDITION:
        _release(frame.f_locals["self"])


def _release(condition: threading.Condition) -> None:
    # Only a reentrant lock knows who owns it; another one may be somebody else's by now.
    if isinstance(getattr(condition, "_lock", None), _RLock):
        try:
            while True:
                condition.release()
        except RuntimeError:
            return  # it is not this thread's any more
