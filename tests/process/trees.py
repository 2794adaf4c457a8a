"""What the tests of the process tree share: real trees, and finding what is left of them without the code under test.

Every process of a test carries a mark in its environment, which /proc shows. A mark is inherited whatever a process does to its
parent, its group or its session, so a survivor cannot hide.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import leasekeeper
from leasekeeper.cli.tree.control import Tree
from leasekeeper.clock import boottime
from tests.support import until

HERE = Path(__file__).parent
# Where leasekeeper is imported from: the source tree, or the wheel that is tested.
SRC = str(Path(leasekeeper.__file__).parents[1])
MARK = "TREE_TEST_MARK"
# Seen in the command lines of guardian and sentinel, also before they have given themselves a name, and of the commands.
NOT_MEMBERS = ("TREE_BOOT", "tree_command.py")
LONG_S = 3600.0
# Stopped; or asleep in vfork() until a child goes on that is stopped itself, as a shell may be that starts programs.
STILL = "TD"


@dataclass(frozen=True)
class Seen:
    """A process that carries the mark."""

    pid: int
    name: str
    state: str
    ignored: int
    line: str


def look(pid: int) -> Seen | None:
    """One process as /proc shows it now; None when it is gone or dead."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return None
    fields = dict(row.partition(":\t")[::2] for row in status.splitlines())
    state = fields["State"].strip()[0]
    if state in "ZX":
        return None
    return Seen(pid, fields["Name"], state, int(fields["SigIgn"], 16), line)


def marked(mark: str) -> list[Seen]:
    """Every living process with the mark."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        if needle in environment.split(b"\0") and (seen := look(int(entry))):
            found.append(seen)
    return found


def members(mark: str) -> list[Seen]:
    """The processes of the tree: those with the mark that do not watch over it."""
    return [seen for seen in marked(mark) if not any(word in seen.line for word in NOT_MEMBERS)]


def watcher(mark: str, name: str) -> int:
    """The pid of the guardian or the sentinel."""
    return until(lambda: [seen.pid for seen in marked(mark) if seen.name == name])[0]


def settle(mark: str, count: int) -> list[Seen]:
    """Wait until the tree has ``count`` processes."""

    def complete() -> list[Seen]:
        now = members(mark)
        return now if len(now) == count else []

    return until(complete)


def all_in_state(mark: str, states: str) -> bool:
    """Whether there are processes and all of them are in one of these states."""
    found = members(mark)
    return bool(found) and all(seen.state in states for seen in found)


def none_left(mark: str) -> bool:
    """Whether nothing that carries the mark is alive, watchers included."""
    return not marked(mark)


def grow(argv: Sequence[str], *, good_s: float = LONG_S, grace_s: float = 5.0) -> Tree:
    """Spawn a tree in this process with authority for ``good_s``, and as much again beyond."""
    now_s = boottime()
    return Tree.spawn(
        argv,
        env=dict(os.environ),
        pause_at_s=now_s + good_s,
        end_at_s=now_s + 2 * abs(good_s),
        grace_s=grace_s,
    )


def extend(tree: Tree, good_s: float = LONG_S) -> None:
    """Give newer authority."""
    now_s = boottime()
    tree.good(now_s + good_s, now_s + 2 * good_s)


def hear(tree: Tree, condition: Callable[[], object]) -> None:
    """Pump the tree until ``condition``."""

    def pumped() -> object:
        tree.pump(0.01)
        return condition()

    until(pumped)


def python(code: str, *arguments: str) -> list[str]:
    """The command line of a small Python program."""
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


# A daemon as the textbooks make it, with a child, both deaf to what one asks a daemon to stop with.
_RUNAWAY = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.chdir("/")
null = os.open(os.devnull, os.O_RDWR)
for fd in range(3): os.dup2(null, fd)
os.closerange(3, 64)
if not os.fork():
    while True: time.sleep(0.001)
while True: time.sleep(3600)
"""
FAMILY_SIZE = 6
_FAMILY = """
trap '' TERM HUP INT
sleep 3600 &
( setsid sh -c 'trap "" TERM HUP; sleep 3600; :' & )
"$@"
wait
"""


def family() -> list[str]:
    """A shell that ignores TERM, a child, a detached session with a child, a daemon with a child."""
    return ["sh", "-c", _FAMILY, "family", *python(_RUNAWAY)]


@dataclass
class Command:
    """A command in a process of its own (tree_command.py), which can be stopped and killed."""

    process: subprocess.Popen[bytes]
    orders_fd: int
    reports_fd: int
    reports: list[list[object]] = field(default_factory=list)
    rest: bytes = b""

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        good_s: float = LONG_S,
        grace_s: float = 5.0,
        renew: bool = True,
        supervise: bool = False,
        pass_fds_too: tuple[int, ...] = (),
        before: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        **popen: object,
    ) -> Command:
        """Start it; ``renew``: it gives authority for ``good_s`` again and again; ``before``: a command line that executes it."""
        orders_out, orders_in = os.pipe()
        reports_out, reports_in = os.pipe()
        settings = {
            "orders": orders_out,
            "reports": reports_in,
            "good_s": good_s,
            "grace_s": grace_s,
            "renew": renew,
            "supervise": supervise,
            "too": pass_fds_too,
        }
        process = subprocess.Popen(  # type: ignore[call-overload]
            [*before, sys.executable, str(HERE / "tree_command.py"), json.dumps(settings), *argv],
            env={**os.environ, "PYTHONPATH": SRC, **(env or {})},
            pass_fds=(orders_out, reports_in, *pass_fds_too),
            **popen,
        )
        os.close(orders_out)
        os.close(reports_in)
        os.set_blocking(reports_out, False)
        return cls(process, orders_in, reports_out)

    def order(self, text: str) -> None:
        """One line: good S, hold, end, stop S, signal N."""
        os.write(self.orders_fd, text.encode() + b"\n")

    def heard(self, name: str) -> list[list[object]]:
        """The reports of this name so far, as ``[name, field, …]``."""
        try:
            while data := os.read(self.reports_fd, 65536):
                *lines, self.rest = (self.rest + data).split(b"\n")
                self.reports += [json.loads(line) for line in lines]
        except BlockingIOError:
            pass
        return [report for report in self.reports if report[0] == name]

    def until_heard(self, name: str, count: int = 1) -> list[object]:
        """Wait for the ``count``-th report of this name."""

        def enough() -> bool:
            return len(self.heard(name)) >= count

        until(enough)
        return self.heard(name)[count - 1]

    def close(self) -> None:
        """Kill it, if it is still there."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        os.close(self.orders_fd)
        os.close(self.reports_fd)
