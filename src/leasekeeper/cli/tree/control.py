"""The command's end: a `Tree` that is started, told about authority, and waited for.

`Tree` promises that `wait` gives an `Exit` only when no process of the tree is left, whoever died on the way; the lease may be
released then and not before. If the guardian dies or stops answering, the tree is killed, by the sentinel and in the last
resort by this process, which adopts orphans from `spawn` until the end. For that last resort it must be the only one here
that starts processes: children that come after `spawn` and are not ours count as orphans of the tree.

Orders do not block and may be given from any thread; `pump` and `wait` belong to one. A guardian that does not carry out an
order in `ANSWER_S` is killed: for the tree that is the end of authority, the safe side.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import final

from leasekeeper.cli.tree import messages as m
from leasekeeper.cli.tree import spawning
from leasekeeper.cli.tree.gate import checked
from leasekeeper.cli.tree.recovery import Recovery
from leasekeeper.clock import boottime
from leasekeeper.errors import ConfigError

__all__ = ["ANSWER_S", "Exit", "Tree", "TreeState"]

# How long the guardian may take to say that it froze or is killing, on a machine that is busy.
ANSWER_S = 5.0
# While orphans are killed after the guardian's death there is nothing to poll on.
RECOVERY_LOOK_S = 0.01
DEFAULT_GRACE_S = 5.0
_READ_BYTES = 65536
_SEND_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)


class TreeState(Enum):
    """What the tree does."""

    STARTING = "STARTING"  # the program has not begun; without authority it waits here
    RUNNING = "RUNNING"
    FROZEN = "FROZEN"
    GONE = "GONE"


@dataclass(frozen=True, slots=True)
class Exit:
    """How the program ended, known when nothing of its tree is left.

    ``status``: as a shell gives it: its own, 128+N for signal N, 127 not found, 126 not executable. ``killed_by_us``: it was
    killed by an `end`, by a `stop` that took too long, or with its guardian. ``fault``: in words, when something else than
    the program's own end was the matter.
    """

    status: int
    killed_by_us: bool
    fault: str = ""


@final
class Tree:
    """A program and everything that comes from it, on a guardian's leash. Made by `spawn`."""

    def __init__(self, link: socket.socket, sentinel: subprocess.Popen[bytes], recovery: Recovery) -> None:
        self.exit: Exit | None = None
        self.pid = 0
        self.guardian_pid = 0
        self._state = TreeState.STARTING
        self._link = link
        self._link.setblocking(False)
        self._sentinel = sentinel
        self._recovery = recovery
        self._decoder = m.Decoder()
        self._sending = threading.Lock()
        self._end_at_s = math.inf
        self._answer_by_s = math.inf
        self._status: int | None = None
        self._fault = ""
        self._cut_off = False

    @classmethod
    def spawn(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        pause_at_s: float,
        end_at_s: float,
        grace_s: float = DEFAULT_GRACE_S,
    ) -> Tree:
        """Start a program under a guardian; it does not begin while ``pause_at_s`` is past.

        ``env`` is its whole environment. ``pause_at_s``, ``end_at_s``: as for `good`. ``grace_s``: how long descendants
        that outlive the program have between TERM and KILL. A program that cannot be started is an `Exit` of 127 or 126,
        not an error. Raises ConfigError for an empty ``argv`` or where there is no interpreter for the guardian.
        """
        if not argv or not argv[0]:
            raise ConfigError("argv is empty; give the program to run and its arguments")
        checked(pause_at_s, end_at_s)
        lend = spawning.at_terminal()
        recovery = Recovery.prepare()
        try:
            sentinel, link, blocked = spawning.spawn_sentinel()
        except BaseException:
            recovery.release()
            raise
        start = m.Start(
            argv=tuple(argv),
            env=dict(env),
            pause_at_s=pause_at_s,
            end_at_s=end_at_s,
            grace_s=grace_s,
            ignored=spawning.inherited_ignored(),
            blocked=tuple(sorted(blocked)),
            home=os.getpgrp(),
            lend=lend,
        )
        try:
            link.sendall(m.encode(start), _SEND_FLAGS)
        except OSError:
            pass  # it has died already; the end of the socket says so to `pump`
        tree = cls(link, sentinel, recovery)
        tree._end_at_s = end_at_s
        return tree

    @property
    def state(self) -> TreeState:
        """What the tree does, as far as `pump` or `wait` have heard."""
        return self._state

    # -------------------------------------------------------- orders

    def good(self, pause_at_s: float, end_at_s: float) -> None:
        """There is authority until ``pause_at_s``, when the guardian freezes the tree unless newer authority came.

        Continues a frozen tree. ``end_at_s``: when authority is over; a tree that cannot be frozen until then is killed. Both
        in seconds of `leasekeeper.clock.boottime`; ValueError when the second is smaller.
        """
        checked(pause_at_s, end_at_s)
        self._end_at_s = end_at_s
        self._answer_by_s = math.inf
        self._order(m.Good(pause_at_s, end_at_s))

    def hold(self) -> None:
        """Freeze the tree now, until the next `good`."""
        if self._state is TreeState.RUNNING:
            left_s = max(0.0, self._end_at_s - boottime())
            self._answer_by_s = time.monotonic() + left_s + ANSWER_S
        self._order(m.Hold())

    def end(self) -> None:
        """Authority is lost: kill the tree. A program that has not begun never begins."""
        self._answer_by_s = time.monotonic() + ANSWER_S
        self._order(m.End())

    def stop(self, grace_s: float, number: int = signal.SIGTERM) -> None:
        """Signal the program, and kill what is left of the tree after ``grace_s`` seconds.

        A frozen tree gets the signal when it is continued; the time counts all the same.
        """
        self._order(m.Stop(grace_s, int(number)))

    def signal(self, number: int) -> None:
        """Pass a signal to the program; to its whole process group those that keys send to a group (INT, QUIT, TSTP, WINCH)."""
        self._order(m.Signal(int(number)))

    def resume(self) -> None:
        """The user continued the job that the `Stopped` report was about; without authority it stays frozen."""
        self._order(m.Resume())

    # -------------------------------------------------------- reports

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """The exit, when the whole tree is gone; None when that took longer than ``timeout_s``."""
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while self.exit is None:
            left_s = deadline_s - time.monotonic()
            self.pump(max(0.0, min(left_s, 1.0)))
            if left_s <= 0:
                break
        return self.exit

    def pump(self, timeout_s: float, wake_fd: int = -1) -> list[m.Message]:
        """Hear the guardian, for at most ``timeout_s``; returns early with its reports or when ``wake_fd`` is readable."""
        if self.exit is not None:
            return []
        self._wait_for_input(timeout_s, wake_fd)
        reports = [] if self._cut_off else self._receive()
        for report in reports:
            self._note(report)
        if time.monotonic() >= self._answer_by_s:
            self._give_up_guardian()
        if self._cut_off and self.exit is None:
            self._recover()
        return reports

    def __enter__(self) -> Tree:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Kill what is left and wait for its end."""
        if self.exit is None:
            self.end()
            self.wait()

    # -------------------------------------------------------- within

    def _order(self, order: m.Message) -> None:
        if self.exit is not None:
            return
        # A stopped guardian is woken by its sentinel, and that one by us.
        if self._sentinel.poll() is None:
            self._sentinel.send_signal(signal.SIGCONT)
        try:
            with self._sending:
                self._link.send(m.encode(order), _SEND_FLAGS)
        except BlockingIOError:
            # Hundreds of orders unread. Authority may be lost on the way, its gate shuts by itself; other orders may not.
            if not isinstance(order, m.Good):
                self._answer_by_s = -math.inf
        except OSError:
            pass  # the end of the socket says so to `pump`

    def _wait_for_input(self, timeout_s: float, wake_fd: int) -> None:
        poll = select.poll()
        if not self._cut_off:
            poll.register(self._link, select.POLLIN)
        if wake_fd >= 0:
            poll.register(wake_fd, select.POLLIN)
        if self._cut_off:
            timeout_s = min(timeout_s, RECOVERY_LOOK_S)
        timeout_s = min(timeout_s, max(0.0, self._answer_by_s - time.monotonic()))
        poll.poll(timeout_s * 1000)

    def _receive(self) -> list[m.Message]:
        reports: list[m.Message] = []
        while True:
            try:
                data = self._link.recv(_READ_BYTES)
            except BlockingIOError:
                return reports
            except OSError:
                data = b""
            if not data:
                self._cut_off = True
                return reports
            reports += self._decoder.feed(data)

    def _note(self, report: m.Message) -> None:
        match report:
            case m.Guarding(pid):
                self.guardian_pid = pid
                self._recovery.know_guardian(pid)
            case m.Started(pid):
                self.pid = pid
                self._recovery.know_program(pid)
                # It may have been frozen on its way; then that was said before.
                if self._state is TreeState.STARTING:
                    self._state = TreeState.RUNNING
            case m.Frozen():
                self._state = TreeState.FROZEN
                self._answer_by_s = math.inf
            case m.Running():
                self._state = TreeState.RUNNING
            case m.Ending():
                self._answer_by_s = math.inf
            case m.Exited(status, _):
                self._status = status
            case m.Failed(text=text) | m.Broken(text=text):
                self._fault = text
            case m.Gone(status, killed):
                self._finish(Exit(status, killed, self._fault))

    def _give_up_guardian(self) -> None:
        self._answer_by_s = math.inf
        self._fault = f"the guardian did not answer within {ANSWER_S:g} s"
        if not self._recovery.kill_guardian():
            self._sentinel.kill()

    def _recover(self) -> None:
        """The guardian is no more: see to it that nothing of the tree is."""
        if not self._recovery.step(self._sentinel):
            return
        self._recovery.bring_terminal_home()
        fault = self._fault or "the guardian died"
        if self._status is None:
            self._finish(Exit(128 + signal.SIGKILL, True, f"{fault}; the tree was killed"))
        else:
            self._finish(Exit(self._status, False, fault))

    def _finish(self, result: Exit) -> None:
        self._recovery.close(self._sentinel)
        self._link.close()
        self._state = TreeState.GONE
        self.exit = result
