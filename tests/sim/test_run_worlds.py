"""Simulated worlds of runs: what a seed decides, and that no promise is broken in any of them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasekeeper.errors import ConfigError
from leasekeeper.testing.sim import (
    FAULTS,
    MIXES,
    RUN_FAULTS,
    RUN_MIXES,
    RunWorld,
    Setting,
    replay_command,
    report,
    run_world,
    search,
)
from leasekeeper.testing.sim.runs.fortune import CALLS, NAMED, TALKS
from leasekeeper.testing.worlds import simulate

A_STORY = (
    "import sys; from leasekeeper.testing.sim import *;"
    " print(run_world(Setting(int(sys.argv[1]), workload='runs')).story.text())"
)


def of(seed: int, **more: Any) -> Setting:
    """A setting of a world of runs."""
    return Setting(seed, workload="runs", **more)


@pytest.mark.parametrize("seed", [7])
def test_one_seed_is_one_world(seed: int) -> None:
    """The same seed twice gives the same story to the last byte, whatever was run before."""
    once = run_world(of(seed))
    run_world(of(seed + 1, seconds=20.0))
    again = run_world(of(seed))
    assert again.story.text() == once.story.text()
    assert (again.events, again.counts) == (once.events, once.counts)


@pytest.mark.slow
def test_a_world_does_not_depend_on_the_order_of_sets() -> None:
    """Two processes with other hash seeds tell the same story."""
    stories = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", A_STORY, "11"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
        stories.append(done.stdout.removesuffix("\n"))
    assert stories[0] == stories[1] == run_world(of(11)).story.text()


def test_every_fault_is_of_some_mix() -> None:
    """What a mix names can happen, whatever can happen to runs is in the mix of everything, or in one of its own."""
    known = {*FAULTS, *RUN_FAULTS}
    assert all(set(mix) <= known for mix in RUN_MIXES.values())
    happens = {name for mix in RUN_MIXES.values() for name, weight in mix.items() if weight}
    assert set(RUN_FAULTS) <= happens
    assert set(RUN_FAULTS) <= set(RUN_MIXES["everything"])


def test_every_point_of_a_conduct_can_be_struck() -> None:
    """A24: a process is killed before and after each plan and each call that a run's conducts make."""
    points = {f"{name}:{side}" for name in TALKS for side in ("send", "reply")}
    points |= {f"{name}:{side}" for name in CALLS for side in ("call", "return")}
    assert points == set(NAMED)


def test_the_points_that_are_struck_are_those_that_are_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A24: no point that worlds pass is missing among those that a strike can name."""
    from leasekeeper.testing.sim.runs.replica import RunReplica

    passed: set[str] = set()
    before = RunReplica.passing

    def passing(replica: RunReplica, point: str) -> None:
        passed.add(point)
        before(replica, point)

    monkeypatch.setattr(RunReplica, "passing", passing)
    tally, found = search(of(0, seconds=40.0), 2)
    assert found is None, report(found)
    assert tally.worlds == 2
    assert passed <= set(NAMED)
    assert {"intent:send", "intent:reply", "effect:call", "effect:return", "outcome:send", "outcome:reply"} <= passed


@pytest.mark.parametrize("mix", list(RUN_MIXES))
def test_no_promise_is_broken(mix: str) -> None:
    """A13, A24: at most one effect a step, and all that the judge examines, in worlds of each kind; and there are some."""
    tally, found = search(of(100, mix=mix, seconds=40.0), 1)
    assert found is None, report(found)
    assert tally.faults > 5
    assert tally.counts["calls"] > 10
    assert tally.counts["finished"] > 1


@pytest.mark.slow
@pytest.mark.parametrize("mix", list(RUN_MIXES))
def test_no_promise_is_broken_in_many_worlds(mix: str) -> None:
    """A13, A24: the same in thirty worlds of each kind."""
    tally, found = search(of(1000, mix=mix), 30)
    assert found is None, report(found)
    assert tally.counts["calls"] > 800


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), replicas=st.integers(1, 9))
def test_no_promise_is_broken_anywhere(seed: int, replicas: int) -> None:
    """A13, A24: in any world, also with one replica or many."""
    outcome = run_world(of(seed, replicas=replicas))
    assert outcome.violation is None, report(outcome)


def test_a_world_without_faults_is_quiet() -> None:
    """Where nothing befalls anybody, all runs are finished, and each effect is called once."""
    outcome = run_world(of(3, only=()))
    assert outcome.violation is None
    assert outcome.counts["finished"] > 5
    assert "LeaseLost" not in outcome.story.text()
    assert outcome.counts["calls"] == outcome.counts["applied"]


@pytest.mark.parametrize(
    ("wanted", "field"),
    [({"workload": "x"}, "workload"), ({"workload": "runs", "mix": "blind"}, "mix"), ({"mix": "strikes"}, "mix")],
)
def test_a_setting_that_cannot_be_is_refused(wanted: dict[str, Any], field: str) -> None:
    """A workload that is none, and a mix of another one, is a ConfigError that names it; so is a guard of another one."""
    with pytest.raises(ConfigError, match=field):
        Setting(0, **wanted)
    with pytest.raises(ConfigError, match="without"):
        run_world(of(0), "margin")
    with pytest.raises(ConfigError, match="without"):
        run_world(Setting(0), "run-fence")
    assert not set(MIXES) & {"strikes", "outages"}


def test_a_world_of_runs_can_be_asserted_and_replayed() -> None:
    """The fixture's function takes a workload, and the command that shows a world again names it."""
    tally = simulate(5, workload="runs", seconds=20.0, replicas=2)
    assert tally.counts["lives"] > 0
    outcome = run_world(of(5, seconds=20.0))
    assert replay_command(outcome) == "leasekeeper sim --replay 5 --workload runs --seconds 20"
    assert len(RunWorld(of(5)).scripts) > 5
