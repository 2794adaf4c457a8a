"""Runs of several steps that are killed again and again, in a model world: what they come to, and when it is enough."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from leasekeeper.protocol.pointer import Pointer
from leasekeeper.protocol.stop import entered
from leasekeeper.run_errors import Quarantined
from tests.model.steps import Crash, Crashed, Life, Outside, Way, Works
from tests.model.world import World

WAYS: tuple[Way, ...] = ("before", "after", "late")
# Each is sure to come to its end by itself: the callee honours the key, or can be asked, or is a model.
KINDS = (
    Works("dedupes", frozenset(["dedupes"]), dedupes=True),
    Works("probe", frozenset(["probe"]), asks=True, verifies=True),
    Works("dedupes and lags", frozenset(["dedupes"]), asks=True, consistency="eventual", dedupes=True, lags=True),
    Works("memo", kind="memo"),
)
STEPS = [(f"s{number}", KINDS[number % len(KINDS)]) for number in range(6)]
LIVES_MAX = 60
# A life passes so many points at most; a crash beyond that is a life that ends by itself.
POINTS = 24


def body(life: Life, outside: dict[str, Outside]) -> list[Any]:
    """What every life of the run does: each result goes into the next step's arguments, so that a wrong one shows."""
    results: list[Any] = []
    for key, works in STEPS:
        world = outside.setdefault(key, works.outside())
        results.append([key, life.step(works.spec(key, f"{len(results):064x}"), works.calls(world))])
    return results


def live(crashes: list[Crash]) -> tuple[list[Any], Life, dict[str, Outside]]:
    """Lives that crash, and then one that does not: the run's results, its last life, and the outside worlds."""
    world, outside = World(), dict[str, Outside]()
    for number in range(LIVES_MAX):
        life = Life(world, crashes[number] if number < len(crashes) else None, budget=LIVES_MAX)
        world.arrive()
        try:
            return body(life, outside), life, outside
        except Crashed:
            life.end()
    raise AssertionError("it does not come to its end")


def final(life: Life) -> list[Any]:
    """What is recorded of each step in the end, without what differs between two lives."""
    outcomes = [record for record in life.owner.records() if record.kind == "outcome"]
    return [[record.step, record.data["result"]] for record in outcomes]


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 10))])
def test_a_killed_run_comes_to_what_an_undisturbed_one_does(part: int) -> None:
    """B2: a thousand seeds, each a row of crashes at points by chance: the same results and records as of a clean run."""
    wanted, clean, _ = live([])
    killed = 0
    for seed in range(part * 100, part * 100 + 100):
        chance = random.Random(seed)
        rows = [Crash(chance.randrange(POINTS), chance.choice(WAYS)) for _ in range(chance.randint(1, 9))]
        results, life, outside = live(rows)
        assert json.dumps(results) == json.dumps(wanted), f"seed {seed}: {rows}"
        assert final(life) == final(clean), f"seed {seed}: {rows}"
        for key, works in STEPS:
            asked = outside[key]
            assert len(set(asked.requests)) == 1, f"seed {seed}: {key} has another key"
            assert works.kind == "memo" or len(asked.applied) == 1, f"seed {seed}: {key} was applied twice"
        killed += len([record for record in life.owner.records() if record.kind == "opened"]) - 1
    assert killed > 100, "they were not killed"


def test_a_hundred_kills() -> None:
    """A25: killed a hundred times behind its effect: applied once, put aside after its budget, told once, and then left alone."""
    works, outside = KINDS[0], Outside(dedupes=True)
    world, budget = World(), 5
    ends: Counter[str] = Counter()
    alarms: list[str] = []

    def effect(pointer: Pointer) -> int:
        outside.apply(pointer.idem)
        raise Crashed

    for _ in range(100):
        life = Life(world, budget=budget)
        calls = works.calls(outside)
        object.__setattr__(calls, "effect", effect)
        try:
            life.drive(entered(life.incarnation))
            life.step(works.spec("s"), calls)
        except (Crashed, Quarantined) as end:
            ends[type(end).__name__] += 1
        alarms += [alarm.kind for alarm in life.alarms]
        life.end()
    assert ends == {"Crashed": budget + 1, "Quarantined": 100 - budget - 1}
    assert alarms == ["quarantined"]
    assert len(outside.requests) == budget + 1
    assert len(outside.applied) == 1
    assert Counter(record.kind for record in Life(world, budget=budget).owner.records())["quarantined"] == 1
