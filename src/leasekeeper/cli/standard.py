"""The three standard files, which a caller may have closed.

A file that this process opens takes the lowest number that is free. Were standard output closed, a connection to etcd could be
number 1 or 2, and whatever anybody writes there would go into it. So the numbers are occupied first, by files that discard;
a program under ``run`` still finds closed what was closed, since they close again when it is executed.
"""

from __future__ import annotations

import os
import sys

__all__ = ["occupy"]


def occupy() -> None:
    """Give closed standard files their number back, and Python's streams a file; before anything else is opened."""
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        pass
    os.close(fd)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
