"""The directories of servers: each with a lock that dies with its process, so that what a killed one left can be removed.

A test run that is killed cannot remove its servers' data, which is some hundred megabytes each. The next run that starts a
server on this machine does it: it removes directories of ours whose lock nobody holds any more. The kernel gives a lock
back at a process's end, however that comes. Where there are no such locks (Windows) nothing is swept.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if sys.platform != "win32":
    import fcntl

__all__ = ["Home", "make_home"]

PREFIX = "leasekeeper-etcd-"
LOCK = "lock"


@dataclass(frozen=True, slots=True)
class Home:
    """A directory of this process's own; ``lock`` is an open file, or -1 where there are no locks."""

    path: Path
    lock: int
    owner_pid: int

    def remove(self) -> None:
        """Remove it with all that is in it; a forked copy of the owner must not, and does nothing."""
        if os.getpid() != self.owner_pid:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if self.lock >= 0:
            os.close(self.lock)


def make_home() -> Home:
    """A new directory for a server. Before that, those are removed that a process has left behind by being killed."""
    for path in _abandoned():
        shutil.rmtree(path, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=PREFIX))
    return Home(path, _lock(path), os.getpid())


def _lock(home: Path) -> int:
    if sys.platform == "win32":
        return -1
    # Nobody may find a lock that is not held: it gets its name when it is.
    fresh = home / "lock.new"
    lock = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fresh.rename(home / LOCK)
    except OSError:  # a file system without locks: as where there are none
        os.close(lock)
        return -1
    return lock


def _abandoned() -> Iterator[Path]:
    if sys.platform == "win32":
        return
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # somebody else's, or just being made
        try:
            if os.fstat(lock).st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path  # removed while the lock is ours, so that two sweepers do not meet
        except OSError:
            pass  # it is in use
        finally:
            os.close(lock)
