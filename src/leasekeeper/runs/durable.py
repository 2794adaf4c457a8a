"""Bytes on a disk: written whole, and there after a power cut."""

from __future__ import annotations

import os
import sys

if sys.platform == "darwin":
    import fcntl

__all__ = ["flush", "flush_directory", "write_all"]


def flush(fd: int) -> None:
    """Return when what was written to ``fd`` is on the medium, as far as the system tells the truth about that."""
    if sys.platform == "darwin":
        # fsync there only hands over to the drive, which may keep it in its memory.
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError:
            pass  # a file system without it
        else:
            return
    os.fsync(fd)


def flush_directory(path: str | os.PathLike[str]) -> None:
    """Return when the names in a directory are on the medium."""
    if sys.platform == "win32":
        return  # it cannot be opened there, and its names are written through
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flush(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte, however many writes that takes."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
