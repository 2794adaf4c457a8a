"""Become another program that dies with the process that asked for it.

Run as a script: ``python -I -S launcher.py PARENT_PID PROGRAM [ARGUMENT…]``. On Linux the kernel is
told to send SIGKILL when the parent ends, however it ends; the setting survives exec. The script
exists because the same call between fork and exec of a process with threads could deadlock, whereas
here it runs in a process of its own. Elsewhere it only replaces itself by the program.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1
SIGKILL = 9  # by number: Windows has no such name, and imports this
EXIT_ORPHAN = 3


def die_with_parent(number: int = SIGKILL) -> None:
    """Ask the kernel for a signal at the parent's end: at that of the thread that forked this process, to be exact."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl(PR_SET_PDEATHSIG): {os.strerror(errno)}")


def main(arguments: list[str]) -> None:
    """Set the death signal, see that the parent is still there, and exec."""
    parent, program = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        die_with_parent()
    if os.getppid() != parent:  # it died before the kernel was told
        sys.exit(EXIT_ORPHAN)
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores these, and exec would pass that on
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    os.execv(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
