"""A command for tests: a tree and nothing of etcd, driven by lines on a pipe; it writes the guardian's reports to another.

Started as ``tree_command.py SETTINGS ARGV…`` with settings in JSON; see ``trees.Command``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

from leasekeeper.cli.supervise import supervise
from leasekeeper.cli.tree import messages as m
from leasekeeper.cli.tree.control import Tree
from leasekeeper.clock import boottime
from leasekeeper.protocol.authority import State

RENEW_S = 0.02


class ScriptedLease:
    """A lease whose state is set by orders."""

    name = "scripted"
    token = 42
    key = "leasekeeper/default/lease/scripted/1"

    def __init__(self, good_s: float) -> None:
        self.good_s = good_s
        self.state = State.HELD
        self.loss: object = None
        self.callbacks: list[Callable[[State], object]] = []

    def deadlines(self) -> tuple[float, float]:
        """Authority from now on."""
        now_s = boottime()
        return now_s + self.good_s, now_s + 2 * abs(self.good_s)

    def subscribe(self, callback: Callable[[State], object]) -> Callable[[], None]:
        """Called on each change."""
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def become(self, name: str) -> None:
        """Change the state as an authority would."""
        self.state = State[name]
        self.loss = SimpleNamespace(reason="scripted") if self.state is State.LOST else None
        for callback in self.callbacks:
            callback(self.state)


def tell(fd: int, *report: object) -> None:
    """One report."""
    os.write(fd, json.dumps(report).encode() + b"\n")


def obey(tree: Tree, line: str, files: list[int]) -> None:
    """One order."""
    word, *numbers = line.split()
    values = [float(number) for number in numbers]
    if word == "good":
        tree.good(boottime() + values[0], boottime() + 2 * values[0])
    elif word == "signal":
        tree.signal(int(values[0]))
    elif word == "forget":
        for fd in files:
            os.close(fd)
    else:
        getattr(tree, word)(*values)


def command(settings: SimpleNamespace, argv: list[str]) -> int:
    """Run a tree, renewing its authority."""
    now_s = boottime()
    tree = Tree.spawn(
        argv,
        env=dict(os.environ),
        pause_at_s=now_s + settings.good_s,
        end_at_s=now_s + 2 * abs(settings.good_s),
        grace_s=settings.grace_s,
    )
    os.set_blocking(settings.orders, False)
    rest = b""
    while tree.exit is None:
        for report in tree.pump(RENEW_S, settings.orders):
            tell(settings.reports, *json.loads(m.encode(report)))
        try:
            *lines, rest = (rest + os.read(settings.orders, 4096)).split(b"\n")
        except BlockingIOError:
            lines = []
        for line in lines:
            obey(tree, line.decode(), settings.too)
        if settings.renew:
            obey(tree, f"good {settings.good_s}", [])
    result = tree.exit
    tell(settings.reports, "exit", result.status, result.killed_by_us, result.fault)
    return result.status


def supervised(settings: SimpleNamespace, argv: list[str]) -> int:
    """Run a tree under a scripted lease."""
    lease = ScriptedLease(settings.good_s)

    def obey_script() -> None:
        with open(settings.orders, closefd=False) as orders:
            for line in orders:
                lease.become(line.strip())

    threading.Thread(target=obey_script, name="script", daemon=True).start()
    outcome = supervise(
        lease,
        argv,
        grace_s=settings.grace_s,
        notify=lambda text: tell(settings.reports, "notice", text),
    )
    tell(settings.reports, "outcome", outcome.status, outcome.lost, outcome.exit.killed_by_us)
    return outcome.status


def main() -> None:
    """Read the settings, run, exit with the status."""
    settings = SimpleNamespace(**json.loads(sys.argv[1]))
    for name, flags in (("orders", os.O_RDONLY), ("reports", os.O_WRONLY | os.O_APPEND)):
        if isinstance(where := getattr(settings, name), str):
            setattr(settings, name, os.open(where, flags))
    for fd in (settings.orders, settings.reports):
        os.set_inheritable(fd, False)
    run = supervised if settings.supervise else command
    sys.exit(run(settings, sys.argv[2:]))


if __name__ == "__main__":
    main()
