"""The few services of the Linux kernel that Python does not offer: subreaper, death signal, a timer on CLOCK_BOOTTIME.

Each says by its result whether the platform has it; none raises where it is missing. The caller keeps a weaker way for then.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

__all__ = ["Alarm", "adopt_orphans", "adopts_orphans", "die_with_parent", "go_first", "show_as", "take_turns"]

_LINUX = sys.platform.startswith("linux")

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37

# linux/timerfd.h
_TFD_TIMER_ABSTIME = 1
_TFD_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)

# Without a timer descriptor the wait is cut in pieces this long: the poll clock stands still while the system sleeps.
_TICK_S = 0.1
_FAR_S = 10.0 * 365 * 86400


# The first in line for a processor.
_NICE_FIRST = -20


class _Timespec(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_long), ("nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None, use_errno=True) if _LINUX else None


_LIBC = _libc()


def _prctl(option: int, argument: object) -> bool:
    if _LIBC is None:
        return False
    nothing = ctypes.c_ulong(0)
    return bool(_LIBC.prctl(option, argument, nothing, nothing, nothing) == 0)


def adopt_orphans(adopt: bool = True) -> bool:
    """Become the parent of every descendant whose own parent dies; whether that is so now."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(adopt)) and adopt


def adopts_orphans() -> bool:
    """Whether this process adopts orphans."""
    flag = ctypes.c_int(0)
    return _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(flag)) and flag.value != 0


def die_with_parent() -> bool:
    """Have the kernel kill this process when its parent dies; lost by executing a set-uid program."""
    return _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))


def go_first() -> int:
    """Get a processor before others do, as far as we may; the niceness from before, for `take_turns`."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    take_turns(_NICE_FIRST)
    return before


def take_turns(nice: int) -> bool:
    """Set this niceness; a lower one than now needs a privilege."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    except OSError:
        return False
    return True


def show_as(name: str) -> bool:
    """The name that ``ps`` and ``top`` show, at most 15 characters."""
    return _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()))


class Alarm:
    """Wakes a poll loop at a time of ``leasekeeper.clock.boottime``.

    A poll's own timeout counts on a clock that stands still while the system sleeps, so after a sleep it would come as much
    too late as it had left. A timer descriptor on CLOCK_BOOTTIME fires at once.
    """

    __slots__ = ("_at_s", "fd")

    def __init__(self) -> None:
        self.fd = -1
        self._at_s = float("inf")
        if _LIBC is not None and hasattr(time, "CLOCK_BOOTTIME"):
            self.fd = _LIBC.timerfd_create(time.CLOCK_BOOTTIME, _TFD_FLAGS)

    def set(self, at_s: float) -> None:
        """Fire at ``at_s``, at once when that is past; the former setting is forgotten."""
        self._at_s = at_s
        if self.fd >= 0:
            self._arm(at_s)

    def _arm(self, at_s: float) -> None:
        assert _LIBC is not None
        # All zero would switch the timer off: the first nanosecond after boot is as past as zero is.
        nanoseconds = max(1, int(max(0.0, min(at_s, _FAR_S)) * 1e9))
        spec = _Itimerspec(value=_Timespec(*divmod(nanoseconds, 1_000_000_000)))
        if _LIBC.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None) != 0:
            self.close()

    def timeout_ms(self, now_s: float) -> float | None:
        """What to give to ``poll``: None while the descriptor does the work."""
        if self.fd >= 0:
            return None
        return max(0.0, min(self._at_s - now_s, _TICK_S)) * 1000

    def clear(self) -> None:
        """Take back the readiness of the descriptor."""
        if self.fd >= 0:
            try:
                os.read(self.fd, 8)
            except BlockingIOError:
                pass

    def close(self) -> None:
        """Give the descriptor back; the poll timeout does the work from now on."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
