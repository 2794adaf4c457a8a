"""Faults of runs that the simulator has found once are found again where they are put back."""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper.protocol import halt as halts
from leasekeeper.protocol import messages as m
from leasekeeper.protocol import refused, run_keys, step
from leasekeeper.protocol.transaction import HALTS
from leasekeeper.testing.sim import Setting, search

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
