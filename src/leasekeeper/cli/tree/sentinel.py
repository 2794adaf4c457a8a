"""The sentinel: waits for the guardian and kills what it leaves behind.

It is the process that the command starts; the guardian is its child. It leaves the session, so that neither a hang-up nor a
signal to the terminal's processes reaches both, closes everything it was given and then only waits. When somebody stops the
guardian, it wakes it: a gate that stands still guards nothing. When the guardian ends, however it ends, the orphans fall to
the sentinel and are killed; only when none is left does it end itself, which is what the command waits for.
"""

from __future__ import annotations

import os
import signal

from leasekeeper.cli.tree import kernel
from leasekeeper.cli.tree.burial import Left, reap
from leasekeeper.cli.tree.grip import Grip, until_empty
from leasekeeper.cli.tree.guardian import Guardian
from leasekeeper.cli.tree.launch import inherited_files, let_go
from leasekeeper.cli.tree.messages import Broken, encode

__all__ = ["main"]

# What a terminal, a shell or a supervisor sends to whole groups. Only KILL and the end of the tree end these two.
DEAF_TO = (
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)
# Reaping takes turns with killing: at least so long, and as long as finding whom to kill took.
REAP_S = 0.005


def main(link_fd: int, command: int) -> None:
    """Runs as sentinel until no process of the tree is left; its fork runs as guardian. Never returns."""
    os.set_inheritable(link_fd, False)
    _occupy_standard_files()
    files, home = inherited_files(), os.getpgrp()
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # The command started us with every signal blocked: from here on we are deaf, and may listen.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    kernel.adopt_orphans()
    # A tree may take all the processor time, and these two must be able to end that.
    nice = kernel.go_first()
    guardian = _fork(link_fd)
    if guardian == 0:
        _guard(link_fd, command, files, nice)
    os.setsid()
    kernel.show_as("tree-sentinel")
    os.close(link_fd)
    let_go(files)
    _outlive(guardian)
    grip = Grip(os.getpid(), outside=(home,))
    until_empty(grip.kill, lambda: reap(max(REAP_S, grip.walked_s)) is Left.NONE)
    os._exit(0)


def _fork(link_fd: int) -> int:
    """As os.fork(); where there is no process to be had the command is told so, and nothing more is done."""
    try:
        return os.fork()
    except OSError as error:
        os.write(link_fd, encode(Broken(f"no guardian could be started: {error.strerror}")))
        os._exit(70)


def _guard(link_fd: int, command: int, files: list[int], nice: int) -> None:
    status = 70
    try:
        os.setpgid(0, 0)
        kernel.show_as("tree-guardian")
        kernel.adopt_orphans()
        Guardian(link_fd, command, files, nice=nice).run()
        status = 0
    finally:
        # Without a traceback: the guardian has told the command what happened, over the socket.
        os._exit(status)


def _outlive(guardian: int) -> None:
    while True:
        _, status = os.waitpid(guardian, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return
        os.kill(guardian, signal.SIGCONT)


def _occupy_standard_files() -> None:
    """Of standard files that are closed, make ones that close again for the program: no file of ours may take their place."""
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        pass
    os.close(fd)
