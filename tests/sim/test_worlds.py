"""Simulated worlds: what a seed decides, and that no promise is broken in any of them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasekeeper.errors import ConfigError
from leasekeeper.protocol.plan import Plan
from leasekeeper.testing.sim import FAULTS, MIXES, Outcome, Setting, World, replica, report, run_world, search
from leasekeeper.testing.sim.keeper import Keeper

A_STORY = "import sys; from leasekeeper.testing.sim import *; print(run_world(Setting(int(sys.argv[1]))).story.text())"


def story_in_a_process(seed: int, hash_seed: str) -> str:
    """The story of a world as another Python tells it, whose sets have another order."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", A_STORY, str(seed)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    return done.stdout.removesuffix("\n")


@pytest.mark.parametrize("seed", [0, 1, 7, 12])
def test_one_seed_is_one_world(seed: int) -> None:
    """The same seed twice gives the same story to the last byte, whatever was run before."""
    once = run_world(Setting(seed))
    run_world(Setting(seed + 1))
    again = run_world(Setting(seed))
    assert again.story.text() == once.story.text()
    assert (again.events, again.accepted, again.refused) == (once.events, once.accepted, once.refused)


def test_a_world_does_not_depend_on_the_order_of_sets() -> None:
    """Two processes with other hash seeds tell the same story."""
    first, second = (story_in_a_process(11, hash_seed) for hash_seed in ("1", "2"))
    assert first == second == run_world(Setting(11)).story.text()


def test_another_seed_is_another_world() -> None:
    """Ten seeds give ten stories."""
    assert len({run_world(Setting(seed)).story.text() for seed in range(10)}) == 10


def test_every_fault_is_of_some_mix() -> None:
    """What a mix names can happen, and whatever can happen is in the mix of everything."""
    assert set(MIXES["everything"]) == set(FAULTS)
    assert all(set(mix) <= set(FAULTS) for mix in MIXES.values())


@pytest.mark.parametrize("mix", list(MIXES))
def test_no_promise_is_broken(mix: str) -> None:
    """G1 to G6, FIFO, liveness, nothing left: they hold in ten worlds of each kind, and things do happen there."""
    tally, found = search(Setting(100, mix=mix), 10)
    assert found is None, report(found)
    assert tally.faults > 100
    assert tally.owned > 50
    assert tally.accepted > 100


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), replicas=st.integers(1, 9))
def test_no_promise_is_broken_anywhere(seed: int, replicas: int) -> None:
    """G1 to G6, FIFO, liveness, nothing left: they hold in any world, also with one replica or many."""
    outcome = run_world(Setting(seed, replicas=replicas))
    assert outcome.violation is None, report(outcome)


def test_a_release_is_only_an_optimisation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A32: Where nobody ever releases or closes anything, names are free again all the same, and nothing is left."""

    def stays(*_: Any) -> Plan[None]:
        yield from ()

    monkeypatch.setattr(replica, "release", stays)
    monkeypatch.setattr(Keeper, "close", Keeper.end)
    tally, found = search(Setting(0), 25)
    assert found is None, report(found)
    assert tally.owned > 100


def test_the_twin_without_a_fence_goes_back() -> None:
    """The worlds are bad enough: without a fence, late writes of old owners come after those of new ones."""
    tally, found = search(Setting(0), 20)
    assert found is None, report(found)
    assert tally.overlaps > 20
    assert tally.refused > 20


def test_a_world_without_faults_is_quiet() -> None:
    """Nobody is ever SUSPENDED or LOST where nothing befalls anybody."""
    outcome = run_world(Setting(3, only=()))
    assert outcome.violation is None
    assert "LOST" not in outcome.story.text().replace("LOST (closed)", "").replace("LOST (gave_up)", "")
    assert "SUSPENDED" not in outcome.story.text()


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"replicas": 0}, "replicas"),
        ({"replicas": 51}, "replicas"),
        ({"seconds": 1.0}, "seconds"),
        ({"mix": "x"}, "mix"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(wanted: dict[str, Any], field: str) -> None:
    """A wrong value is a ConfigError that names it, and so is a guard that does not exist."""
    with pytest.raises(ConfigError, match=field):
        Setting(0, **wanted)
    with pytest.raises(ConfigError, match="without"):
        run_world(Setting(0), "x")


def test_faults_can_be_left_out() -> None:
    """``only`` keeps the named faults as they are, and no other."""
    everything = World(Setting(5)).faults
    some = World(Setting(5, only=(1, 3))).faults
    assert some == (everything[1], everything[3])


def test_an_outcome_counts() -> None:
    """What is told of a world beside its story adds up."""
    outcome: Outcome = run_world(Setting(2))
    assert outcome.ended_s > 36.0
    assert outcome.events > 500
    assert outcome.story.text().count(": owns, token") == outcome.owned
