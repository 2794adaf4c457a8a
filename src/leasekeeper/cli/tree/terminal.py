"""The controlling terminal, lent to the program's process group and taken back.

The program has a process group of its own, so that only we stop and continue it; a terminal serves one group at a time. It is
lent when the program starts at a terminal, or when it first reads from it; and taken back when the program ends, is stopped
or is frozen, so that the keys reach the command then. Modes go with it as in a shell: those of the program are kept for its
return and those from before are put back, unless the program ended by itself and left them on purpose.

No call here waits for output to drain: a terminal that is held by Ctrl-S must not hold the guardian.
"""

from __future__ import annotations

import os
import termios

__all__ = ["Terminal"]


class Terminal:
    """The terminal of this session; ``home`` is the group that it is given back to."""

    __slots__ = ("_home_modes", "_tree_group", "_tree_modes", "fd", "home", "lent")

    def __init__(self, fd: int, home: int) -> None:
        self.fd = fd
        self.home = home
        self.lent = False
        self._home_modes = _modes(fd)
        self._tree_group = 0
        self._tree_modes: list[object] | None = None

    @classmethod
    def controlling(cls, home: int) -> Terminal | None:
        """The controlling terminal, None for a process without one."""
        try:
            return cls(os.open(os.ctermid(), os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC), home)
        except OSError:
            return None

    def owner(self) -> int:
        """The group in the foreground, 0 when the terminal is gone."""
        try:
            return os.tcgetpgrp(self.fd)
        except OSError:
            return 0

    def is_at_home(self) -> bool:
        """Whether the command's own group has it, so that it is ours to lend."""
        return self.owner() == self.home

    def note_lent(self, group: int) -> None:
        """The program took it for its group before it began."""
        self.lent = True
        self._tree_group = group

    def lend(self, group: int) -> bool:
        """Give it to ``group``, or to the group that had it when it was taken back; whether it was ours to give."""
        if not self.is_at_home():
            return False
        self._home_modes = _modes(self.fd)
        self.lent = _give(self.fd, self._tree_group) or _give(self.fd, group)
        if self.lent and self._tree_modes is not None:
            _set_modes(self.fd, self._tree_modes)
        self._tree_modes = None
        return self.lent

    def take_back(self, groups: set[int], *, modes: bool) -> None:
        """Bring it home from one of the tree's ``groups``, or from one that has died; with ``modes`` as they were before.

        When a shell has meanwhile given it to somebody else, it is theirs.
        """
        if not self.lent:
            return
        self.lent = False
        owner = self.owner()
        if owner == self.home or not (owner in groups or _is_empty(owner)):
            return
        self._tree_group = owner
        if modes:
            self._tree_modes = _modes(self.fd)
        _give(self.fd, self.home)
        if modes and self._home_modes is not None:
            _set_modes(self.fd, self._home_modes)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)


def _give(fd: int, group: int) -> bool:
    try:
        if group > 0:
            os.tcsetpgrp(fd, group)
        return group > 0
    except OSError:
        return False


def _modes(fd: int) -> list[object] | None:
    try:
        return list(termios.tcgetattr(fd))
    except (OSError, termios.error):
        return None


def _set_modes(fd: int, modes: list[object]) -> None:
    try:
        termios.tcsetattr(fd, termios.TCSANOW, modes)  # type: ignore[arg-type]
    except (OSError, termios.error):
        pass


def _is_empty(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
