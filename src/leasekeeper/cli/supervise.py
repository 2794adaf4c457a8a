"""The loop of ``leasekeeper run``: a lease on one side, a process tree on the other.

It carries three things across. **Authority**: the tree is told until when the lease is proven; it is frozen while the lease is
SUSPENDED, continued on HELD, killed on LOST. **Signals**: what a supervisor, a shell or the terminal sends to the command goes
to the program, once. **The end**: the loop ends when no process of the tree is left, and only then may the lease be released.

If this loop stops, for whatever reason, nothing runs on unproven authority: the guardian has its own clock.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from leasekeeper.cli.inbox import PASSED_ON, Inbox
from leasekeeper.cli.tree import messages as m
from leasekeeper.cli.tree import proc
from leasekeeper.cli.tree.control import Exit, Tree, TreeState
from leasekeeper.clock import boottime
from leasekeeper.protocol.authority import State

__all__ = ["EXIT_LOST", "HeldLease", "Outcome", "Supervision", "child_environment", "supervise"]

EXIT_LOST = 76
DEFAULT_GRACE_S = 10.0

# Beats move the deadlines without telling anybody, so they are read again this often: a small part of what is left of
# them, that several readings come before the pause.
READ_PART = 8
READ_EVERY_MAX_S = 0.5
READ_EVERY_MIN_S = 0.02

Notify = Callable[[str], None]


class HeldLease(Protocol):
    """What the loop needs of a lease; `leasekeeper.Lease` is one."""

    @property
    def name(self) -> str:
        """What is leased."""
        ...

    @property
    def token(self) -> int:
        """The fencing token."""
        ...

    @property
    def key(self) -> str:
        """The claim's key in etcd."""
        ...

    @property
    def state(self) -> State:
        """By the clock, at this instant."""
        ...

    @property
    def loss(self) -> object:
        """Why it was lost; None before."""
        ...

    def deadlines(self) -> tuple[float, float]:
        """When work must pause and when authority ends, in seconds of `leasekeeper.clock.boottime`."""
        ...

    def subscribe(self, callback: Callable[[State], object]) -> Callable[[], None]:
        """Have ``callback`` called, on some thread, when the state changes; returns what ends that."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended. ``status``: the exit code for the command. ``lost``: authority was lost before the tree was gone."""

    status: int
    exit: Exit
    lost: bool


def child_environment(lease: HeldLease, inherited: Mapping[str, str]) -> dict[str, str]:
    """What the program sees: the inherited environment, with this lease's name, token and key."""
    return {
        **inherited,
        "LEASEKEEPER_NAME": lease.name,
        "LEASEKEEPER_TOKEN": str(lease.token),
        "LEASEKEEPER_KEY": lease.key,
    }


def supervise(
    lease: HeldLease,
    argv: Sequence[str],
    *,
    grace_s: float = DEFAULT_GRACE_S,
    notify: Notify = lambda text: None,
    listening: Callable[[], object] = lambda: None,
) -> Outcome:
    """Run a program while the lease is held; returns when nothing of it is left. For the main thread.

    ``grace_s``: how long the program may take to obey TERM. ``notify`` gets one line, without a newline, for each thing that a
    person should know. ``listening`` is called when signals go to the program: from then on, also after the end, the caller need
    not look after them. On the way out the caller releases the lease.
    """
    if sys.platform.startswith("linux") and not proc.listable():
        notify("/proc does not show the processes here: only the program's own process group can be frozen and killed")
    with Inbox() as inbox:
        listening()
        pause_at_s, end_at_s = lease.deadlines()
        tree = Tree.spawn(
            argv,
            env=child_environment(lease, os.environ),
            pause_at_s=pause_at_s,
            end_at_s=end_at_s,
            grace_s=grace_s,
        )
        with tree:
            return Supervision(lease, tree, inbox, grace_s=grace_s, notify=notify).run()


class Supervision:
    """One lease, one tree, one inbox; `run` once."""

    def __init__(
        self,
        lease: HeldLease,
        tree: Tree,
        inbox: Inbox,
        *,
        grace_s: float = DEFAULT_GRACE_S,
        notify: Notify = lambda text: None,
    ) -> None:
        self._lease = lease
        self._tree = tree
        self._inbox = inbox
        self._grace_s = grace_s
        self._notify = notify
        self._told: tuple[float, float] | None = None  # the deadlines that the tree has; None: hold
        self._suspended = False
        self._ended = False
        self._stopping = False
        self._interrupts = 0  # since the tree was frozen
        self._resuming = 0
        self._interrupted = False

    def run(self) -> Outcome:
        """Until the tree is gone."""
        unsubscribe = self._lease.subscribe(self._inbox.wake)
        try:
            while self._tree.exit is None:
                self._turn()
        finally:
            unsubscribe()
        return self._conclude(self._tree.exit)

    def _turn(self) -> None:
        for number in self._inbox.take():
            self._pass_on(number)
        self._carry_authority()
        for report in self._tree.pump(self._patience_s(), self._inbox.fileno()):
            self._hear(report)

    # -------------------------------------------------------- authority

    def _carry_authority(self) -> None:
        state = self._lease.state
        if state.final:
            self._end()
        elif state is State.HELD:
            self._good()
        elif not self._suspended:
            self._hold()

    def _good(self) -> None:
        deadlines = self._lease.deadlines()
        if deadlines != self._told:
            self._tree.good(*deadlines)
            self._told = deadlines
        if self._suspended:
            self._suspended = False
            self._notify(f"{self._lease.name}: HELD again; the program goes on")

    def _hold(self) -> None:
        self._suspended, self._told, self._interrupts = True, None, 0
        self._tree.hold()
        self._notify(f"{self._lease.name}: SUSPENDED; the program stands still until the lease is proven")

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._tree.end()
            reason = getattr(self._lease.loss, "reason", "given back")
            self._notify(f"{self._lease.name}: LOST ({reason}); the program is killed")

    def _patience_s(self) -> float:
        if self._told is None:
            return READ_EVERY_MAX_S
        left_s = (self._told[0] - boottime()) / READ_PART
        return max(READ_EVERY_MIN_S, min(READ_EVERY_MAX_S, left_s))

    # -------------------------------------------------------- signals

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._tree.signal(number)
            self._inbox.stop_here(number, whole_group=False)
            self._resume()
        elif number == signal.SIGTERM and not self._stopping:
            self._stopping = True
            self._tree.stop(self._grace_s)
        elif number == signal.SIGINT and self._tree.state is TreeState.FROZEN:
            self._interrupt_frozen()
        elif number in PASSED_ON:
            self._tree.signal(number)

    def _interrupt_frozen(self) -> None:
        """INT may mean anything to the program, but a frozen one cannot answer: the second one is for us."""
        self._interrupts += 1
        if self._interrupts == 1:
            self._tree.signal(signal.SIGINT)
            self._notify("the program stands still and gets the interrupt later; interrupt again to kill it")
        else:
            self._tree.stop(0.0, signal.SIGINT)

    def _resume(self) -> None:
        self._resuming += 1
        self._tree.resume()

    # -------------------------------------------------------- reports

    def _hear(self, report: m.Message) -> None:
        match report:
            case m.Stopped(number) if not self._resuming:
                self._stop_with(number)
            case m.Resumed():
                self._resuming -= 1
            case m.Exited(status, lent):
                self._interrupted = lent and status in (128 + signal.SIGINT, 128 + signal.SIGQUIT)

    def _stop_with(self, number: int) -> None:
        """The user stopped the job: stop as well, so that the shell sees it, and continue with it."""
        number = number if number != signal.SIGSTOP else signal.SIGTSTP
        stopped = self._inbox.stop_here(number, whole_group=True)
        if not stopped and number != signal.SIGTSTP:
            # It waits for a terminal that nobody can give it: what the kernel does to such jobs.
            self._tree.signal(signal.SIGHUP)
        self._resume()

    # -------------------------------------------------------- the end

    def _conclude(self, result: Exit) -> Outcome:
        if result.fault:
            self._notify(result.fault)
        if self._interrupted:
            self._share_interrupt(result.status - 128)
        lost = self._ended or self._lease.state.final
        # A failure of the program's own says more than the loss; a success must not hide it.
        status = EXIT_LOST if lost and (result.killed_by_us or result.status == 0) else result.status
        return Outcome(status, result, lost)

    def _share_interrupt(self, number: int) -> None:
        """The key went to the program's group alone; a script around it expects it as well."""
        before = signal.signal(number, signal.SIG_IGN)
        try:
            os.kill(0, number)
        finally:
            signal.signal(number, before)
