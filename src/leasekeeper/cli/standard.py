"""The three standard files, which a caller may have closed.

A file that this process opens takes the lowest number that is free. Were standard output closed, a connection to etcd could be
number 1 or 2, and whatever anybody writes there would go into it. So the numbers are occupied first, by files that discard;
a program under ``run`` still finds closed what was closed, since they close again when it is executed.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

__all__ = ["occupy", "settle"]


def occupy() -> None:
    """Give closed standard files their number back, and Python's streams a file; before anything else is opened."""
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        pass
    os.close(fd)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def settle() -> None:
    """The last thing: what cannot be written any more, to a pipe that nobody reads, say, is thrown away.

    Python would try again while it takes itself down, and change the exit code to 120 for it.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            _discard(stream)


def _discard(stream: TextIO) -> None:
    try:
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()
    except (OSError, ValueError, AttributeError):
        pass
