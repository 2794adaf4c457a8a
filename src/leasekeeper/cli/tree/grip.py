"""The grip on a tree: freeze it, continue it, kill it, whatever it does meanwhile.

A tree changes while one looks at it, so each deed is a loop of *list, signal, list again* until a listing shows nothing to do.
Each call is bounded; who needs the end state calls again.

- **Freeze** goes group by group, the parents' groups first. A whole process group is stopped by one system call, which no fork
  inside the group can escape. The next group waits until the last stands still, and **continue** goes the other way: so a
  shell with job control, which looks after groups of its own, never sees its child stopped and does not take the pause for
  a Ctrl-Z. A freeze is done when two listings in a row show the same processes and none of them can run. Processes that the
  user had stopped before are not continued.
- Where processes are born faster than they can be listed, the listing itself is the danger: with hundreds of them a process
  that lists gets but a sliver of the processors. So when the first listing takes long the program's group is signalled before
  it is complete, which one system call does; and from the second on each process is signalled as soon as it is seen.
- **Kill** works on stopped processes too. In a frozen tree it goes children first: the death of a parent can make the kernel
  continue its stopped children (an orphaned process group), and none may run a last instruction. In a running one whole
  groups come first, since no fork can escape that.

A process in uninterruptible sleep (state D: a disk, a hung NFS) counts as still once its stop signal is pending: it cannot
return to its own code. What the kernel is doing for it just then goes on; no signal can hold that.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from leasekeeper.cli.tree import proc
from leasekeeper.cli.tree.proc import Process

__all__ = ["Grip"]

# What one call of freeze() waits between its listings: 60 ms in all, so that an order to kill is never delayed longer.
_PAUSES_S = (0.0, 0.0002, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.01, 0.015, 0.02)
# How long a freeze may wait for groups to stand still before it goes on to their children's. It takes a tenth of a millisecond
# each; more only where the processors are overbooked, and there a shell may take the pause for a Ctrl-Z after this.
_ORDERLY_S = 0.2

# A listing that has not ended by then is one of a large tree, or of one that takes all the processor time.
_LIST_S = 0.002

# Where one listing takes so long there is no time for order.
_CROWDED_S = 0.02

# When traced processes (strace, a debugger) are continued again, since their tracers run.
_TRACED_PAUSES_S = (0.001, 0.004, 0.02, 0.05)

Key = tuple[int, int]


class Grip:
    """Holds everything below the process ``root``.

    ``spare``: processes below it that are not of the tree. ``program``: process group of the program, 0 while there is none;
    all that can be reached without /proc. ``leader``: the program while it is a child that nobody has reaped, so that its
    number and its group's cannot be anybody else's; else 0. ``bury`` reaps children of ``root`` for a moment: where processes
    die by the thousand, a listing would show little else. ``walked_s``: how long the last walk over the tree took.
    """

    __slots__ = (
        *("_bury", "_orderly_until_s", "_outside", "_sent", "_still", "_theirs"),
        *("leader", "program", "root", "spare", "walked_s"),
    )

    def __init__(
        self,
        root: int,
        *,
        spare: frozenset[Key] = frozenset(),
        outside: Iterable[int] = (),
        bury: Callable[[], object] = lambda: None,
    ) -> None:
        self.root = root
        self._bury = bury
        self.spare = spare
        self.program = 0
        self.leader = 0
        self._outside = frozenset(outside)
        self._theirs: frozenset[Key] | None = None
        self._sent: set[Key] = set()
        self._orderly_until_s = 0.0
        self._still = False
        self.walked_s = 0.0

    # -------------------------------------------------------- freeze

    def freeze(self, *, crowded: bool = False) -> bool:
        """Stop every process of the tree; whether all of them stood still when this returned.

        ``crowded``: there are so many that the program's group is to be stopped before anything is listed.
        """
        if self._theirs is None:
            self._theirs = self._stopped_before(crowded)
            self._orderly_until_s = time.monotonic() + (_ORDERLY_S if self.walked_s < _CROWDED_S else 0.0)
        self._still = self._freeze_for_a_while()
        return self._still

    def _stopped_before(self, crowded: bool) -> frozenset[Key]:
        """Those that the user had stopped; the program's own group is stopped at once if finding them takes long."""
        theirs: set[Key] = set()
        in_time_s = time.monotonic() + _LIST_S
        hurried = crowded and _signal_group(self.leader, signal.SIGSTOP)
        for process in self._walk():
            # Not those that a tracer holds: that may be for an instant, and then they would never be continued.
            if process.stopped and not process.traced and not (hurried and process.group == self.leader):
                theirs.add(process.key)
            if not hurried and self.leader and time.monotonic() >= in_time_s:
                hurried = _signal_group(self.leader, signal.SIGSTOP)
        return frozenset(theirs)

    def _freeze_for_a_while(self) -> bool:
        before: frozenset[Key] | None = None
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            self._bury()
            listed = self._listing() if before is None else self._chase()
            still = frozenset(process.key for process in listed if self._stands_still(process))
            if len(still) == len(listed) and still == before:
                return True
            before = still
            self._stop([process for process in listed if process.key not in still])
        return False

    def _chase(self) -> list[Process]:
        """A listing; when order has been kept long enough, what moves is stopped as soon as it is seen."""
        if time.monotonic() < self._orderly_until_s:
            return self._listing()
        return self._strike(signal.SIGSTOP, lambda process: not self._stands_still(process))

    def _stands_still(self, process: Process) -> bool:
        return process.stopped or (process.state == "D" and process.key in self._sent)

    def _stop(self, moving: list[Process]) -> None:
        # Who moves is not stopped by the user any more.
        self._theirs = (self._theirs or frozenset()) - {process.key for process in moving}
        ours = self._groups(moving)
        for group in dict.fromkeys(process.group for process in moving):
            if group in ours:
                _signal_group(group, signal.SIGSTOP)
            members = [process for process in moving if process.group == group]
            for process in members:
                proc.send(process, signal.SIGSTOP)
                self._sent.add(process.key)
            while any(map(_moves, members)) and time.monotonic() < self._orderly_until_s:
                time.sleep(0.0001)
        if not proc.listable():
            _signal_group(self.program, signal.SIGSTOP)

    # -------------------------------------------------------- continue

    def thaw(self) -> None:
        """Continue what `freeze` stopped, and nothing that was stopped before it."""
        theirs = self._theirs or frozenset()
        done: set[Key] = set(theirs)
        traced: set[Key] = set()
        # The second listing finds what was being born when the freeze came.
        for _ in range(2):
            ours = [p for p in self._listing() if self._is_ours(p) and p.key not in done]
            for process in reversed(ours):
                proc.send(process, signal.SIGCONT)
            done.update(process.key for process in ours)
            traced.update(process.key for process in ours if process.traced)
        if traced:
            self._thaw_traced(traced)
        if not proc.listable():
            _signal_group(self.program, signal.SIGCONT)
        self._theirs = None
        self._still = False
        self._sent.clear()

    def _is_ours(self, process: Process) -> bool:
        # Also one that has not stopped yet, as in vfork() until its child goes on: its stop is pending and would come then.
        return process.stopped or process.key in self._sent

    def _thaw_traced(self, traced: set[Key]) -> None:
        """A tracer that was frozen first hands on the stop only when it runs again, after the SIGCONT: repeat that."""
        for pause_s in _TRACED_PAUSES_S:
            time.sleep(pause_s)
            for process in self._listing():
                if process.stopped and process.key in traced:
                    proc.send(process, signal.SIGCONT)

    def resume(self, group: int) -> None:
        """Count the user's own stop of this group as taken back: `thaw` will continue it."""
        if self._theirs is not None:
            members = {process.key for process in self._listing() if process.group == group}
            self._theirs -= members

    # -------------------------------------------------------- kill, tell

    def kill(self) -> None:
        """Kill every process that one listing shows; call again until none is left."""
        if self._still:
            listed = self._listing()
            for process in reversed(listed):
                proc.send(process, signal.SIGKILL)
            self._signal_groups(listed, signal.SIGKILL)
            return
        _signal_group(self.leader if proc.listable() else self.program, signal.SIGKILL)
        self._strike(signal.SIGKILL, lambda process: True)

    def _strike(self, number: int, at: Callable[[Process], bool]) -> list[Process]:
        """Signal those that ``at`` chooses, each as soon as it is seen and with its group; all that were seen alive."""
        listed: list[Process] = []
        pids: set[int] = set()
        groups: set[int] = set(self._outside)
        for process in self._walk():
            pids.add(process.pid)
            if not process.alive:
                continue
            listed.append(process)
            if not at(process):
                continue
            if process.group not in groups and self._is_group_of(process.group, pids):
                _signal_group(process.group, number)
            groups.add(process.group)
            proc.send(process, number)
            self._sent.add(process.key)
        return listed

    def tell(self, number: int) -> None:
        """Send a signal to every process of the tree."""
        for process in self._listing():
            proc.send(process, number)
        if not proc.listable():
            _signal_group(self.program, number)

    def empty(self) -> bool:
        """Whether no process of the tree is left, dead ones that nobody has reaped not counted."""
        if proc.listable():
            return not self._listing()
        return not _signal_group(self.program, 0)

    # -------------------------------------------------------- within

    def groups(self) -> set[int]:
        """The process groups of the tree."""
        return set(self._groups(self._listing()))

    def _listing(self) -> list[Process]:
        return [process for process in self._walk() if process.alive]

    def _walk(self) -> Iterator[Process]:
        began_s = time.monotonic()
        yield from proc.descendants(self.root, self.spare)
        self.walked_s = time.monotonic() - began_s

    def _groups(self, listed: list[Process]) -> list[int]:
        """In the order of the listing: parents' groups first."""
        if not proc.listable():
            return [self.program] if self.program else []
        pids = {process.pid for process in listed}
        seen = dict.fromkeys(process.group for process in listed)
        return [group for group in seen if group not in self._outside and self._is_group_of(group, pids)]

    @staticmethod
    def _is_group_of(group: int, pids: set[int]) -> bool:
        # A group whose leader lives outside the tree is somebody else's, whoever joined it.
        return group in pids or proc.read(group) is None

    def _signal_groups(self, listed: list[Process], number: int) -> None:
        for group in self._groups(listed):
            _signal_group(group, number)


def _moves(process: Process) -> bool:
    now = proc.read(process.pid)
    return now is not None and now.start == process.start and now.state in ("R", "S", "I")


def _signal_group(group: int, number: int) -> bool:
    """Whether there was such a group; PermissionError means there is one."""
    try:
        if group > 1:
            os.killpg(group, number)
        return group > 1
    except ProcessLookupError:
        return False
    except PermissionError:
        return True


def until_empty(step: Callable[[], None], empty: Callable[[], bool]) -> None:
    """Repeat ``step`` until ``empty``, without limit: a tree that cannot be killed must not be reported as gone.

    Nor one that cannot be listed just now.
    """
    pause_s = 0.001
    while not empty():
        with suppress(OSError):
            step()
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.1)
