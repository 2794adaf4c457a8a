"""The director: starts everything, breaks the network, and waits for what must follow."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leasekeeper.cli.demo.ledger import Ledger, Written
from leasekeeper.cli.demo.screen import Screen
from leasekeeper.testing import EtcdServer, FaultProxy

__all__ = ["tell"]

NAMES = ("A", "B", "C")
# How long any step may take on a slow machine before the story is given up.
STEP_S = 60.0


@dataclass
class Actor:
    """One replica: its process, and its two links."""

    name: str
    process: subprocess.Popen[str]
    to_etcd: FaultProxy
    to_ledger: FaultProxy
    said: list[dict[str, Any]] = field(default_factory=list)

    def has_said(self, what: str, since: int = 0) -> bool:
        """Whether it has told of something, after its first ``since`` lines."""
        return any(line["what"] == what for line in self.said[since:])


class Story:
    """The stage while the story runs."""

    def __init__(self, stack: ExitStack) -> None:
        self.screen = Screen()
        self.news = threading.Condition()
        self._stack = stack
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leasekeeper-demo-")))
        self.etcd = stack.enter_context(EtcdServer())
        self.ledger = Ledger(home, self._written)
        stack.callback(self.ledger.close)
        self.actors = [self._actor(name) for name in NAMES]
        self._quiet_writes = 0

    # ------------------------------------------------------------ the stage

    def _actor(self, name: str) -> Actor:
        to_etcd = self._stack.enter_context(FaultProxy(self.etcd.endpoint))
        to_ledger = self._stack.enter_context(FaultProxy(self.ledger.endpoint))
        process = subprocess.Popen(
            [sys.executable, "-m", "leasekeeper.cli.demo.replica", name, to_etcd.endpoint, to_ledger.endpoint],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the story; the replicas end with it
        )
        self._stack.callback(_end, process)
        actor = Actor(name, process, to_etcd, to_ledger)
        threading.Thread(target=self._listen, args=(actor,), name=f"leasekeeper-demo-{name}", daemon=True).start()
        return actor

    def _listen(self, actor: Actor) -> None:
        assert actor.process.stdout is not None
        for text in actor.process.stdout:
            line = json.loads(text)
            with self.news:
                self._show(line)
                actor.said.append(line)
                self.news.notify_all()

    def _written(self, attempt: Written) -> None:
        with self.news:
            if not attempt.accepted:
                self.screen.line(
                    "ledger", f"refuses {attempt.holder}'s late write: token {attempt.token} is old", "bold red"
                )
            elif self._quiet_writes > 0:
                self._quiet_writes -= 1
                self.screen.line("ledger", f"takes a write of {attempt.holder} with token {attempt.token}", "green")
            self.news.notify_all()

    def _show(self, line: dict[str, Any]) -> None:
        token = line.get("token")
        known: dict[str, tuple[str, str]] = {
            "owner": (f"owns the lease now, token {token}", "bold green"),
            "suspended": ("has heard no heartbeat for half a TTL: SUSPENDED", "yellow"),
            "paused": ("pauses at its gate; no new write leaves it", "yellow"),
            "resumed": (f"goes on, with the same token {token}", "green"),
            "lost": (f"learns that its lease is LOST ({line.get('reason')}) and stops", "bold red"),
            "waiting": ("stands in line", ""),
        }
        text, style = known.get(line["what"], ("", ""))
        if text:
            self.screen.line(line["who"], text, style)

    # ------------------------------------------------------------ directing

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Until it has happened; RuntimeError when it does not in any reasonable time."""
        until = time.monotonic() + STEP_S
        with self.news:
            while not condition():
                for actor in self.actors:
                    if actor.process.poll() is not None:
                        raise RuntimeError(f"replica {actor.name} ended with status {actor.process.returncode}")
                if time.monotonic() > until:
                    raise RuntimeError(f"the demo waited {STEP_S:.0f} s in vain: {what}")
                self.news.wait(0.2)

    def show_writes(self, count: int) -> None:
        """Show the next writes that the ledger takes; the rest happen without a word."""
        with self.news:
            self._quiet_writes = count

    def owner(self, apart_from: Actor | None = None) -> Actor | None:
        """Who said last that it owns the lease."""
        owning = [a for a in self.actors if a is not apart_from and a.said and a.said[-1]["what"] == "owner"]
        return owning[-1] if owning else None

    def accepted(self, name: str) -> int:
        """Writes that the ledger has taken of one replica."""
        return sum(a.accepted for a in self.ledger.attempts if a.holder == name)

    def refused(self) -> int:
        """Writes that the ledger has refused."""
        return sum(not a.accepted for a in self.ledger.attempts)


def tell() -> bool:
    """Tell the story; whether it ended as promised."""
    with ExitStack() as stack:
        story = Story(stack)
        story.screen.headline(f"A real etcd {story.etcd.version}, three replicas of one program, one ledger. TTL 3 s.")
        try:
            _act(story)
        except RuntimeError as error:
            story.screen.line("demo", f"stopped: {error}", "bold red")
            return False
        return _count(story)


def _act(story: Story) -> None:
    story.show_writes(3)
    story.wait("an owner", lambda: story.owner() is not None)
    first = story.owner()
    assert first is not None
    story.wait("first writes", lambda: story.accepted(first.name) >= 4)

    story.screen.headline(f"The network around {first.name} breaks: no packet gets through, no connection is reset.")
    first.to_ledger.blackhole()
    story.screen.line("network", f"{first.name} → ledger is dead; what {first.name} sends now gets stuck in it")
    _sent_into_the_dark(first)
    story.screen.line(first.name, "has sent a write with its token; it hangs in the network")
    since = len(first.said)
    first.to_etcd.blackhole()
    story.screen.line("network", f"{first.name} → etcd is dead; its heartbeats vanish")
    story.wait("the owner pauses", lambda: first.has_said("paused", since))

    story.show_writes(3)
    story.wait("another owner", lambda: story.owner(apart_from=first) is not None)
    second = story.owner(apart_from=first)
    assert second is not None
    story.wait("writes of the next owner", lambda: story.accepted(second.name) >= 3)

    story.screen.headline("The network heals, link by link.")
    story.screen.line("network", f"{first.name} → ledger is back, and delivers the write that was stuck")
    first.to_ledger.heal()
    story.wait("the late write is refused", lambda: story.refused() >= 1)
    story.screen.line("network", f"{first.name} → etcd is back")
    first.to_etcd.heal()
    story.wait("the old owner learns", lambda: first.has_said("lost", since))
    story.wait("the old owner stands in line", lambda: first.has_said("waiting", since))
    before = story.accepted(second.name)
    story.wait("the next owner writes on", lambda: story.accepted(second.name) > before)


def _sent_into_the_dark(actor: Actor) -> None:
    """Until a write has left the replica and hangs in its dead link."""
    until = time.monotonic() + STEP_S
    begun = actor.to_ledger.counts.connections
    while actor.to_ledger.counts.connections == begun and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.3)


def _count(story: Story) -> bool:
    attempts = story.ledger.attempts
    both = story.ledger.backwards()
    story.screen.counts(
        [
            ("writes accepted", sum(a.accepted for a in attempts)),
            ("writes refused by the fence", story.refused()),
            ("writes by two owners at once", both),
        ]
    )
    return both == 0 and story.refused() >= 1


def _end(process: subprocess.Popen[str]) -> None:
    """End a replica: it goes when its standard input ends."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
