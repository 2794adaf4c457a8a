"""Operators in simulated worlds of runs: they halt and lift, and decide on what is in doubt by looking at the outside world.

An operator says that something was not applied only when nothing is under way any more that could still apply it: that is what
the documentation asks of people, and what no machine can know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leasekeeper.canonical import canonical
from leasekeeper.protocol import halt as halts
from leasekeeper.protocol.resolve import Word, resolve
from leasekeeper.testing.sim.keeper import KEYS, Keeper
from leasekeeper.testing.sim.process import Process

if TYPE_CHECKING:
    from leasekeeper.testing.sim.runs.policies import Script
    from leasekeeper.testing.sim.runs.world import RunWorld

__all__ = ["Operator"]

LOOKS_S = (0.5, 2.5)
# How long a doubt stands before somebody has looked.
WAITS_S = (0.5, 8.0)
ASKED_S = 6.0
NEWS_S = 4.0


class Operator:
    """One person at a terminal, with a keeper of their own."""

    def __init__(self, world: RunWorld) -> None:
        self._world = world
        self._chance = world.timeline.chance("person")
        self._process = Process(world.timeline, "person", self._chance)
        self._keeper = Keeper(self._process, world.network, world.cluster, world.numbers, world.wall, lambda *_: None)
        numbers = world.numbers
        self._keeper.ctx.new_nonce = lambda: f"{next(numbers):032x}"
        self._seen_s: dict[tuple[str, str], float] = {}
        self._asking: set[tuple[str, str]] = set()
        # Until when people decide on whatever has no outcome, without waiting for it to be in doubt.
        self.impatient_until_s = 0.0

    def begin(self) -> None:
        """Look now and then."""
        self._look()

    def end(self) -> None:
        """Nobody is there any more."""
        self._keeper.end()

    def halt(self, scope: str, lasts_s: float) -> None:
        """Halt a scope, and lift that later."""
        ctx, now = self._keeper.ctx, self._process.now
        self._keeper.run(halts.halt(ctx, scope, "simulated", now() + ASKED_S), lambda *_: None)
        self._world.timeline.after(lasts_s, lambda: self.lift(scope))

    def lift(self, scope: str) -> None:
        """End a halt."""
        if self._process.alive:
            plan = halts.unhalt(self._keeper.ctx, scope, self._process.now() + ASKED_S)
            self._keeper.run(plan, lambda *_: None)

    # ------------------------------------------------------------ to decide

    def _look(self) -> None:
        self._process.after(self._chance.uniform(*LOOKS_S), self._look)
        for script in self._world.present():
            if script.attended:
                self._look_at(script)

    def _look_at(self, script: Script) -> None:
        head = self._world.runs.books.head(script.run)
        if head is None:
            return
        if head.status == "quarantined":
            self._in_time(script, "", lambda: self._say(script, None, applied=False))
        for step in head.doubts:
            self._in_time(script, step, lambda step=step: self._decide(script, step))  # type: ignore[misc]
        if self._world.timeline.now_s < self.impatient_until_s:
            for step, seen in self._world.runs.books.of(script.run).steps.items():
                if seen.state == "intent":
                    self._decide(script, step)

    def _in_time(self, script: Script, step: str, act: Callable[[], None]) -> None:
        now_s = self._world.timeline.now_s
        at_s = self._seen_s.setdefault((script.run, step), now_s + self._chance.uniform(*WAITS_S))
        if now_s >= at_s:
            self._seen_s.pop((script.run, step))
            act()

    def _decide(self, script: Script, step: str) -> None:
        subject = self._world.outside.of(script.run, step)
        if subject.under_way or self._world.robbed_lately(script, NEWS_S):
            return  # it may still happen
        own = subject.own() or subject.applied
        self._say(script, step, applied=bool(own), result=own[0].result if own else None)

    def _say(self, script: Script, step: str | None, *, applied: bool, result: Any = None) -> None:
        asking = script.run, step or ""
        if asking in self._asking:
            return
        self._asking.add(asking)
        word = Word(step=step, applied=applied, evidence=b'"looked"', result=canonical(result, "result"))
        self._keeper.ctx.accept_rewind()  # each command is a process of its own, which has seen nothing of etcd before
        plan = resolve(self._keeper.ctx, script.keys, word, self._process.now() + ASKED_S)

        def said(_: Any, error: BaseException | None) -> None:
            self._asking.discard(asking)
            what = "was applied" if applied else "was not applied" if step else "may be tried again"
            told = "" if error is None else f": refused, {type(error).__name__}"
            self._world.tell("person", f"{script.run}: {step or 'it'} {what}{told}")

        self._keeper.run(plan, said)

    def lift_all(self) -> None:
        """End every halt, at once."""
        store = self._world.cluster.store
        store.delete(*[kv.key for kv in store.below(f"{KEYS.root}halt/".encode())])
