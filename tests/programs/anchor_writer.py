"""A process that has an anchor in a file remember one head after the other, until it is killed or has done its count.

Options: path, run, count (0: no end), ``torn``: at the last of its heads it writes so many bytes of the line and dies (-1: it
does not). Reports ``told`` with each number that was remembered. The hash of a head is its number.
"""

from __future__ import annotations

import os
import signal
import time
from itertools import count

from leasekeeper.runs.anchor import FileAnchor
from tests.programs.voice import options, say


def dying(size: int) -> None:
    """Let the next write be the last thing this process does, and only some of it."""
    write = os.write

    def die(fd: int, data: bytes) -> int:
        write(fd, data[:size])
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("alive")

    os.write = die  # type: ignore[assignment]


def main() -> None:
    """Tell, and report."""
    given = options()
    anchor = FileAnchor(given["path"])
    for seq in count(1):
        if seq == given["count"] and given["torn"] >= 0:
            dying(given["torn"])
        anchor.remember(given["run"], 1, seq, f"{seq:064x}", round(time.time() * 1000))
        say("told", seq=seq)
        if seq == given["count"]:
            break


if __name__ == "__main__":
    main()
