"""What a fork means: the parent goes on unharmed, and in the child every inherited lease is LOST.

Python tells of its own forks by `os.register_at_fork`. It knows nothing of a fork made by C code (an application server that
loads its interpreter first, a library that daemonises), and asking for the process id at every gate would cost more than
the gate itself. So there is one page of memory that the kernel hands to every child as zeros (MADV_WIPEONFORK, Linux 4.14):
`HERE`, one byte to read. Where there is no such page `HERE` asks for the process id after all.

gRPC can be forked properly only while no thread is inside of it, and a watch stream is a thread inside of it for as long as
it is open. So streams are closed for the moment of a fork; otherwise about every fiftieth child that makes a keeper of its
own was seen to die in gRPC (1.85). What threads of the user's are doing in gRPC just then cannot be helped from here.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
import weakref
from collections.abc import Callable
from typing import Protocol

__all__ = ["HERE", "Forkable", "check_process", "register"]

# Linux's number for it, which Python's mmap does not name.
MADV_WIPEONFORK = 18
# How long a fork may be held up for streams to close; usually it is a millisecond.
QUIET_S = 0.3


class Forkable(Protocol):
    """What has to know of forks."""

    def quiet(self, until: float) -> None:
        """A fork is about to come: leave gRPC, if that can be done until ``time.monotonic()`` shows ``until``."""
        ...

    def go_on(self) -> None:
        """The fork is done, and this is the parent."""
        ...

    def after_fork(self) -> None:
        """This is the child. Other threads do not exist here, and a lock that one of them held is held for ever."""
        ...


class _Here(Protocol):
    """Item 0 is true in this process, and false in a child until it is set there."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


class _ProcessId:
    """The slow way: compares process ids."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __getitem__(self, index: int, /) -> int:
        return self._pid == os.getpid()

    def __setitem__(self, index: int, value: int, /) -> None:
        self._pid = os.getpid()


def _make_here() -> _Here:
    if not hasattr(os, "fork"):
        return bytearray(1)
    if sys.platform == "linux":
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            page.madvise(MADV_WIPEONFORK)
        except (OSError, ValueError):
            page.close()
        else:
            return page
    return _ProcessId()


HERE = _make_here()
HERE[0] = 1

_keepers: weakref.WeakSet[Forkable] = weakref.WeakSet()


def register(keeper: Forkable) -> None:
    """Tell ``keeper`` of every fork from now on, as long as it exists."""
    check_process()  # or it would be taken for one of those that this process inherited
    _keepers.add(keeper)


def check_process() -> None:
    """Shut every inherited gate if this is a child that nobody has told of."""
    if not HERE[0]:
        _in_child()


def _before() -> None:
    until = time.monotonic() + QUIET_S
    for keeper in list(_keepers):
        keeper.quiet(until)


def _in_parent() -> None:
    for keeper in list(_keepers):
        keeper.go_on()


def _in_child() -> None:
    for keeper in list(_keepers):
        keeper.after_fork()
    HERE[0] = 1


_at_fork: Callable[..., None] | None = getattr(os, "register_at_fork", None)
if _at_fork is not None:
    _at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
