"""The command's last resort: what to do about a tree whose guardian has died.

As long as the sentinel lives it does the killing, and its end is the sign that nothing is left. When it has died as well, the
orphans have fallen to this process, which then kills every child that it did not have before the tree was spawned.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time

from leasekeeper.cli.tree import kernel, proc
from leasekeeper.cli.tree.grip import Grip
from leasekeeper.cli.tree.terminal import Terminal

__all__ = ["Recovery"]

CLOSE_S = 5.0


class Recovery:
    """Knows what belongs to the tree without the guardian's help."""

    __slots__ = ("_adopted_before", "_grip", "_guardian_fd", "_guardian_pid", "_terminal")

    def __init__(self, grip: Grip, terminal: Terminal | None, *, adopted_before: bool) -> None:
        self._grip = grip
        self._terminal = terminal
        self._adopted_before = adopted_before
        self._guardian_pid = 0
        self._guardian_fd = -1

    @classmethod
    def prepare(cls) -> Recovery:
        """From now on orphans come here; the children that are there already are spared."""
        adopted_before = kernel.adopts_orphans()
        kernel.adopt_orphans()
        own = [process for pid in proc.children(os.getpid()) if (process := proc.read(pid))]
        grip = Grip(os.getpid(), spare=frozenset(process.key for process in own), outside=(os.getpgrp(),))
        return cls(grip, Terminal.controlling(os.getpgrp()), adopted_before=adopted_before)

    def know_guardian(self, pid: int) -> None:
        """Remember this process; a descriptor of it can never mean another one."""
        self._guardian_pid = pid
        try:
            self._guardian_fd = os.pidfd_open(pid)
        except (AttributeError, OSError):
            self._guardian_fd = -1

    def know_program(self, pid: int) -> None:
        """All that can be reached where there is no /proc."""
        self._grip.program = pid

    def kill_guardian(self) -> bool:
        """Whether it is known at all."""
        try:
            if self._guardian_fd >= 0:
                signal.pidfd_send_signal(self._guardian_fd, signal.SIGKILL)
            elif self._guardian_pid:
                os.kill(self._guardian_pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return self._guardian_pid > 0

    def step(self, sentinel: subprocess.Popen[bytes]) -> bool:
        """Come closer to a tree that is gone; whether it is."""
        self.kill_guardian()
        if sentinel.poll() is None:
            sentinel.send_signal(signal.SIGCONT)
            return False
        # It left nothing if it ended by itself, but its status does not always tell (SIGCHLD may be ignored here).
        try:
            return self._sweep()
        except OSError:
            return False  # no descriptor or memory to list it with; the next look may have

    def bring_terminal_home(self) -> None:
        """A guardian that died could not take it back from the program, nor mend its modes."""
        if self._terminal is None:
            return
        self._terminal.note_lent(self._grip.program)
        # From the background this would stop us, were the signal not blocked.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        try:
            self._terminal.take_back({self._grip.program}, modes=True)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def close(self, sentinel: subprocess.Popen[bytes]) -> None:
        """The tree is gone: bury the sentinel, and a guardian that outlived it; adopt no more orphans."""
        deadline_s = time.monotonic() + CLOSE_S
        while sentinel.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.001)
        if sentinel.poll() is None:
            sentinel.kill()
            sentinel.wait()
        if self._guardian_fd >= 0:
            os.close(self._guardian_fd)
            self._guardian_fd = -1
        # It has said its last word, but may need a moment to end; after a killed sentinel it is our child.
        while not _reap(self._guardian_pid) and time.monotonic() < deadline_s:
            time.sleep(0.001)
        self.release()

    def release(self) -> None:
        """Adopt no more orphans, unless this process did so before."""
        if self._terminal is not None:
            self._terminal.close()
        if not self._adopted_before:
            kernel.adopt_orphans(False)

    def _sweep(self) -> bool:
        self._grip.kill()
        for process in proc.descendants(self._grip.root, self._grip.spare):
            if process.parent == self._grip.root:
                _reap(process.pid)
        return self._grip.empty()


def _reap(pid: int) -> bool:
    """Whether there is no such child any more, or never was."""
    try:
        return not pid or os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True
