"""The guardian: starts the program and lets its tree run only while there is authority.

Theory of operation. It sleeps until something happens and then takes a *turn*, always in this order:

1. It reads the clock. Is the gate shut, the tree is frozen before anything else is looked at: after the guardian itself was
   stopped, or the machine slept, nothing that came meanwhile may go first.
2. It reads the orders and notes what they ask for. The end of the socket is the order to kill.
3. It reaps its children; those of the tree whose parent died are among them.
4. It does what is due, the first of: report that the tree is gone; kill; start the program; freeze; continue.

So an order never acts by itself: it changes what is due, and the deeds follow from the state and the clock. The tree is gone
when the guardian has no child left. That is exact, since orphans of the tree become its children.

What it promises: from ``pause_at_s`` on, by this process's clock, no process of the tree runs longer than it takes to be
scheduled and to walk the tree; a process that cannot be stopped until ``end_at_s`` has the whole tree killed. What it does
not: to stop what runs as a user whom it may not signal, or what a debugger or another process keeps continuing.
"""

from __future__ import annotations

import math
import os
import signal

from leasekeeper.cli.tree import messages as m
from leasekeeper.cli.tree import proc
from leasekeeper.cli.tree.burial import Left, reap
from leasekeeper.cli.tree.gate import Gate
from leasekeeper.cli.tree.grip import Grip
from leasekeeper.cli.tree.launch import TOO_LATE, Failure, fork_program, let_go, outcome
from leasekeeper.cli.tree.link import Link
from leasekeeper.cli.tree.terminal import Terminal
from leasekeeper.clock import boottime

__all__ = ["Guardian"]

# Keys send these to a whole group, so they are passed on to the whole group; others go to the program alone.
GROUP_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH)
ENDING_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
TERMINAL_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)

# A frozen tree is looked at again this often, should somebody continue a part of it.
FROZEN_LOOK_S = 0.25
URGENT_LOOK_S = 0.001
LEFTOVER_LOOK_S = 0.1
# So long a turn may reap, or as long as listing the tree took: then the dead cannot crowd out those that live.
REAP_S = 0.005
# How long freezing may fail before the end of authority kills: a machine that slept past the end deserves a try.
FREEZE_PATIENCE_S = 0.5


class Guardian:
    """One tree, from `Start` to `Gone`.

    ``files``: what the program inherits and the guardian then lets go. ``nice``: the program's niceness; None: the guardian's.
    """

    def __init__(self, link_fd: int, command: int, files: list[int], *, nice: int | None = None) -> None:
        self.nice = nice
        self.link = Link(link_fd, command)
        self.files = files
        self.gate = Gate(0.0, 0.0, held=True)
        self.grip = Grip(os.getpid(), outside=(os.getpgid(command), os.getpgrp()), bury=self.reap)
        self.start: m.Start | None = None
        self.terminal: Terminal | None = None
        self.lend_again = False
        self.user_stop = False  # the user stopped the job and has not continued it
        # The program: its pid until it is reaped, then its status.
        self.pid = 0
        self.status: int | None = None
        self.report_fd = -1
        self.failure: Failure | None = None
        self.unsent: list[int] = []  # signals for a program that has not begun yet
        # The tree.
        self.childless = True
        self.unburied = False  # more of them may be dead already
        self.killed = False
        self.killing = False
        self.kill_at_s = math.inf
        self.frozen_at_s: float | None = None
        self.urgent_look_s = URGENT_LOOK_S
        self.settled = False  # frozen, and seen to stand still

    # -------------------------------------------------------- the turn

    def run(self) -> None:
        """Until the tree is gone."""
        self.link.send(m.Guarding(os.getpid()))
        try:
            while not self.turn():
                self.link.wait(self.next_look_s(boottime()))
        except BaseException as error:
            self.link.send(m.Broken(f"{type(error).__name__}: {error}"))
            raise

    def turn(self) -> bool:
        """Whether the tree is gone."""
        if not self.childless and self.gate.shut(boottime()):
            self.freeze()
        for order in self.link.receive():
            self.obey(order)
        if self.link.dead:
            self.end()
        self.follow_launch()
        self.reap()
        return self.act(boottime())

    def act(self, now_s: float) -> bool:
        """Do what is due."""
        if self.is_gone():
            self.leave()
            return True
        if now_s >= self.kill_at_s:
            self.end()
        if self.killing:
            self.grip.kill()
        elif self.status is None and not self.pid:
            self.launch(now_s)
        elif self.gate.shut(now_s):
            if not self.settled:
                self.freeze()
        elif self.frozen_at_s is not None:
            self.thaw()
        return False

    def next_look_s(self, now_s: float) -> float:
        """When to take a turn although nothing happened."""
        if self.unburied:
            return now_s
        if self.killing or (self.frozen_at_s is not None and not self.settled):
            # Soon at first; what resists may be beyond our reach, and then there is no hurry.
            self.urgent_look_s = min(2 * self.urgent_look_s, FROZEN_LOOK_S)
            return now_s + self.urgent_look_s
        self.urgent_look_s = URGENT_LOOK_S
        if self.frozen_at_s is not None:
            look_s = now_s + FROZEN_LOOK_S
        else:
            look_s = math.inf if self.gate.shut(now_s) else self.gate.pause_at_s
        if self.status is not None:
            look_s = min(look_s, now_s + LEFTOVER_LOOK_S)
        return min(look_s, self.kill_at_s)

    # -------------------------------------------------------- orders

    def obey(self, order: m.Message) -> None:
        """Note what an order asks for."""
        match order:
            case m.Start():
                self.begin(order)
            case m.Good(pause_at_s, end_at_s):
                self.gate.good(pause_at_s, end_at_s)
            case m.Hold():
                self.gate.hold()
            case m.End():
                self.end()
            case m.Stop(grace_s, number):
                self.kill_at_s = min(self.kill_at_s, boottime() + grace_s)
                self.pass_on(number)
            case m.Signal(number):
                self.pass_on(number)
            case m.Resume():
                self.resume()

    def begin(self, start: m.Start) -> None:
        """Take the program's description; it is started when it is due."""
        self.start = start
        self.gate.good(start.pause_at_s, start.end_at_s)
        self.terminal = Terminal.controlling(start.home)

    def end(self) -> None:
        """From now on kill."""
        if not self.killing:
            self.killing = True
            self.link.send(m.Ending())
        if not self.pid and self.status is None:
            self.status, self.killed = 128 + signal.SIGKILL, True

    def pass_on(self, number: int) -> None:
        """Signal the program; one that has not begun gets it when it does, or never begins."""
        if self.report_fd >= 0:
            self.unsent.append(number)
        elif self.pid:
            self.signal_program(number)
        elif self.status is None and number in ENDING_SIGNALS:
            self.status = 128 + number

    def signal_program(self, number: int) -> None:
        """Keys would have sent some of them to the whole group."""
        try:
            (os.killpg if number in GROUP_SIGNALS else os.kill)(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    # -------------------------------------------------------- the program

    def launch(self, now_s: float) -> None:
        """Start the program, if there is one to start and authority for it."""
        if self.start is None or self.gate.shut(now_s):
            return
        try:
            launched = fork_program(self.start, pause_at_s=self.gate.pause_at_s, terminal=self.terminal, nice=self.nice)
        except OSError as error:
            self.fail(Failure(126, f"{self.start.argv[0]}: {error.strerror}"))
            return
        self.pid = self.grip.program = self.grip.leader = launched.pid
        self.report_fd = launched.report_fd
        self.failure = None
        self.childless = False
        self.note_lent()
        self.link.watch(self.report_fd)

    def follow_launch(self) -> None:
        """Learn whether a program on its way has begun."""
        if self.report_fd < 0:
            return
        try:
            self.failure = outcome(self.report_fd)
        except BlockingIOError:
            return
        self.link.unwatch(self.report_fd)
        os.close(self.report_fd)
        self.report_fd = -1
        if self.failure is None:
            self.has_begun()

    def has_begun(self) -> None:
        """The program runs."""
        self.link.send(m.Started(self.pid))
        self.note_lent()
        let_go(self.files)
        while self.unsent:
            self.signal_program(self.unsent.pop(0))

    def reap(self) -> None:
        """Take note of children that ended or were stopped; orphans of the tree are among them."""
        left = reap(max(REAP_S, self.grip.walked_s), self.child_changed, stops=True)
        self.childless, self.unburied = left is Left.NONE, left is Left.MAYBE_DEAD

    def child_changed(self, pid: int, status: int) -> None:
        """A child ended or was stopped; only the program's news matter."""
        if pid == self.pid:
            self.program_changed(status)

    def program_changed(self, status: int) -> None:
        """The program ended or was stopped."""
        if not os.WIFSTOPPED(status):
            self.follow_launch()
            self.program_ended(status)
        elif self.frozen_at_s is None:
            self.user_stopped(os.WSTOPSIG(status))

    def program_ended(self, status: int) -> None:
        """Bring the terminal home; ask what is left to go."""
        self.pid = self.grip.leader = 0
        if self.failure is not None:
            self.fail(self.failure)
            return
        signalled = os.WIFSIGNALED(status)
        self.status = 128 + os.WTERMSIG(status) if signalled else os.WEXITSTATUS(status)
        self.killed = self.killing and signalled and os.WTERMSIG(status) == signal.SIGKILL
        if self.killing and self.status == 0:
            # What it waited for was killed before it was itself, as a shell's child may be: that is no success.
            self.status, self.killed = 128 + signal.SIGKILL, True
        lent = self.terminal is not None and self.terminal.lent
        self.bring_home(modes=signalled)
        self.link.send(m.Exited(self.status, lent))
        assert self.start is not None
        self.grip.tell(signal.SIGTERM)
        self.kill_at_s = min(self.kill_at_s, boottime() + self.start.grace_s)

    def fail(self, failure: Failure) -> None:
        """There will be no program, unless it was only too late for this time."""
        self.grip.program = 0
        self.bring_home(modes=False)
        if failure.text != TOO_LATE:
            self.status = failure.status
            self.link.send(m.Failed(failure.status, failure.text))

    # -------------------------------------------------------- the tree

    def is_gone(self) -> bool:
        """Whether nothing is left. Without /proc orphans go elsewhere, and only the group can be asked."""
        return self.status is not None and self.childless and (proc.listable() or self.grip.empty())

    def leave(self) -> None:
        """The last word."""
        assert self.status is not None
        self.bring_home(modes=self.link.dead)
        self.link.send(m.Gone(self.status, self.killed))

    def freeze(self) -> None:
        """Stop the tree, or make sure that it still stands; kill it if that fails until authority is over."""
        if self.frozen_at_s is None:
            self.frozen_at_s = boottime()
        was_settled, self.settled = self.settled, self.grip.freeze(crowded=self.unburied)
        if self.settled and not was_settled:
            if self.bring_home(modes=True):
                self.lend_again = True
            self.link.send(m.Frozen())
        now_s = boottime()
        tried_long = now_s - self.frozen_at_s >= FREEZE_PATIENCE_S
        if not self.settled and tried_long and self.gate.over(now_s):
            self.end()

    def thaw(self) -> None:
        """Continue the tree."""
        self.frozen_at_s, self.settled = None, False
        if not self.user_stop:
            self.lend()
        self.grip.thaw()
        self.link.send(m.Running())
        program = proc.read(self.pid) if self.pid else None
        if program is not None and program.stopped and not self.user_stop:
            self.user_stopped(signal.SIGTSTP)

    # -------------------------------------------------------- the terminal

    def user_stopped(self, number: int) -> None:
        """The program was stopped by a key, by using a terminal that it does not have, or by somebody's STOP."""
        lent = self.terminal is not None and self.terminal.lent
        if number in (signal.SIGTTIN, signal.SIGTTOU) and not lent:
            self.lend_again = True
            if self.lend():
                self.continue_program()
                return
        if self.bring_home(modes=True):
            self.lend_again = True
        # A plain STOP of a program that has no terminal is somebody's own business.
        if lent or number in TERMINAL_STOPS:
            self.user_stop = True
            self.link.send(m.Stopped(number))

    def resume(self) -> None:
        """The user took the stop back; the gate has the last word."""
        self.user_stop = False
        self.link.send(m.Resumed())
        if not self.pid:
            return
        if self.frozen_at_s is not None:
            self.grip.resume(self.pid)
        else:
            self.lend()
            self.continue_program()

    def continue_program(self) -> None:
        """Continue the program's group."""
        try:
            os.killpg(self.pid, signal.SIGCONT)
        except (ProcessLookupError, PermissionError):
            pass

    def note_lent(self) -> None:
        """A program that starts at the terminal takes it for itself, on its way."""
        if self.terminal is not None and self.start is not None and self.start.lend:
            self.terminal.note_lent(self.pid)

    def lend(self) -> bool:
        """Give the terminal back to a program that had it or asked for it."""
        if self.terminal is None or not self.lend_again or not self.pid:
            return False
        if self.terminal.lend(self.pid):
            self.lend_again = False
        return self.terminal.lent

    def bring_home(self, *, modes: bool) -> bool:
        """Take the terminal back; whether it was lent."""
        if self.terminal is None or not self.terminal.lent:
            return False
        self.terminal.take_back(self.grip.groups() | {self.grip.program}, modes=modes)
        return True
