"""Faults of runs that the simulator has found once are found again where they are put back."""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper.protocol import act as acts
from leasekeeper.protocol import halt as halts
from leasekeeper.protocol import messages as m
from leasekeeper.protocol import refused, run_keys, step
from leasekeeper.protocol.transaction import HALTS
from leasekeeper.testing.sim import RunWorld, Setting, report, search
from leasekeeper.testing.sim import world as world_module
from leasekeeper.testing.sim.runs.policies import POLICIES, Script, StepPlan
from leasekeeper.testing.sim.runs.replica import RunReplica
from leasekeeper.timing import Timing

WORLDS = 100


def broken(mix: str) -> str:
    """The promise that is broken first in worlds of a mix."""
    _, found = search(Setting(0, workload="runs", mix=mix), WORLDS)
    assert found is not None
    assert found.violation is not None
    return found.violation.promise


def test_a_halt_that_is_known_and_lets_others_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """B15: Where a covering halt counts as known, the steps that wait behind the one it has stopped are begun."""
    look = refused._see_halts

    def see(log: Any, built: Any, reply: Any) -> Any:
        known, at = look(log, built, reply)
        if any(entry.intent for entry in built.entries):
            known = halts.halts(m.range_kvs(reply, HALTS), run_keys.halts(log.ctx.keys))
        return known, at

    monkeypatch.setattr(refused, "_see_halts", see)
    assert broken("operators") == "halt"


def test_a_doubt_that_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A16: Where a doubt is decided on like any intent, a step in doubt is begun again before anybody has said a word."""
    judge = step._judge

    def anew(life: Any, spec: Any, pointer: Any, seen: Any) -> Any:
        return judge(life, spec, pointer._replace(state="intent") if pointer.state == "in_doubt" else pointer, seen)

    monkeypatch.setattr(step, "_judge", anew)
    assert broken("outside") == "order"


class OldKey(RunWorld):
    """One run with one step, whose callee forgets a key after 15 seconds.

    Its first owner is killed before it has recorded the answer; the next one stands still for six seconds between its intent,
    when the key is some ten seconds old, and the gate.
    """

    def _prepare(self) -> None:
        super()._prepare()
        policy = next(each for each in POLICIES if each.name == "forgetful")
        first = self.scripts[0]
        self.scripts = (
            Script(first.keys, ((StepPlan("s", policy, "it"),),), attended=True, anchored=False, budget=10),
        )
        self.names = (first.lease,)
        self._by_run = {first.run: self.scripts[0]}

    def _storm(self) -> None:
        self.timeline.at(0.0, lambda: self._arm("effect:return", 0.0))
        self.timeline.at(6.0, lambda: self._arm("intent:reply", 6.0))
        super()._storm()

    def _arm(self, point: str, freezes_s: float) -> None:
        for replica in self.replicas:
            assert isinstance(replica, RunReplica)
            replica.arm(point, 0, freezes_s)


@pytest.mark.parametrize("put_back", [False, True])
def test_a_key_that_grows_old_at_the_gate(monkeypatch: pytest.MonkeyPatch, put_back: bool) -> None:
    """A18: Where a repeated call is not decided on anew at the gate, its key is sent when the callee has forgotten it."""
    act = acts.act
    if put_back:
        monkeypatch.setattr(step, "act", lambda *args, again=None, **named: act(*args, **named))
    usual = Timing(ttl=10.0)
    monkeypatch.setattr(world_module, "TIMINGS", (usual,))
    outcome = OldKey(Setting(1, replicas=2, only=(), workload="runs")).run()
    if put_back:
        assert outcome.violation is not None
        assert outcome.violation.promise == "at most once"
    else:
        assert outcome.violation is None, report(outcome)
        assert (outcome.counts["applied"], outcome.counts["doubts"], outcome.counts["finished"]) == (1, 1, 1)
