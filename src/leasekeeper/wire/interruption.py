"""What Ctrl-C may leave behind in grpc, and how it is mended.

A signal's exception is raised in the main thread, between any two steps of Python code. grpc guards its channels with a
``threading.Condition``, which is entered and left by Python code: an exception that strikes there after the lock was taken
leaves it taken, and every other thread that makes a call on the channel then hangs, whatever its deadline. The lock belongs to
the thread that was struck, so that thread can give it back.
"""

from __future__ import annotations

import threading

__all__ = ["release_conditions"]

_CODES = (threading.Condition.__enter__.__code__, threading.Condition.__exit__.__code__)
_RLock = type(threading.RLock())


def release_conditions(error: BaseException) -> None:
    """Give back the locks of conditions in whose entering or leaving ``error`` was raised.

    To be called where the thread cannot be inside of any of them any more: what it still owns nobody will give back.
    """
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code in _CODES:
            _release(frame.f_locals["self"])
        trace = trace.tb_next


def _release(condition: threading.Condition) -> None:
    # Only a reentrant lock knows who owns it; another one may be somebody else's by now.
    if isinstance(getattr(condition, "_lock", None), _RLock):
        try:
            while True:
                condition.release()
        except RuntimeError:
            return  # it is not this thread's any more
