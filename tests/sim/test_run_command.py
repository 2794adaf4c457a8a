"""`leasekeeper sim --workload runs`: exit codes, the summary, the story, the replay, JSON."""

from __future__ import annotations

import shlex

import pytest

from leasekeeper.testing.sim import RUN_GUARDS, RUN_MIXES
from tests.commands import call


def test_clean_worlds_end_with_0() -> None:
    """Without a violation it exits with 0 and one line that counts what happened to runs."""
    done = call("sim", "--workload", "runs", "--worlds", "2", "--seconds", "20", "--replicas", "3")
    assert done.code == 0
    (line,) = done.out.splitlines()
    assert line.startswith("2 worlds, no promise broken: ")
    assert "steps done by" in line


def test_a_violation_ends_with_1_and_its_replay_tells_the_same() -> None:
    """B30: a missing guard is found; the printed command shows the same violation again, and without the option it is clean."""
    found = call("sim", "--workload", "runs", "--without", "run-halt")
    assert found.code == 1
    assert found.out.splitlines()[0].startswith("halt: ")
    replay = shlex.split(found.out.rpartition("Once more: leasekeeper ")[2])
    again = call(*replay)
    assert (again.code, again.out) == (1, found.out)
    at = replay.index("--without")
    clean = call(*replay[:at], *replay[at + 2 :])
    assert clean.code == 0
    assert clean.out.startswith("no violation in the world of seed ")


def test_json_counts_what_runs_came_to() -> None:
    """With -o json the counts of runs are numbers; for leases there are none."""
    done = call("sim", "--worlds", "1", "--seconds", "20", "--workload", "runs", "-o", "json")
    assert done.code == 0
    assert done.json["violation"] is None
    counts = done.json["tally"]["counts"]
    assert set(counts) == {"alarms", "applied", "calls", "done", "doubts", "finished", "lives", "refused"}
    assert counts["lives"] > 0
    assert call("sim", "--worlds", "1", "--seconds", "10", "-o", "json").json["tally"]["counts"] == {}


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--workload", "runs", "--without", "margin"], list(RUN_GUARDS)),
        (["--mix", "blind", "--workload", "runs"], list(RUN_MIXES)),
        (["--workload", "nothing"], ["leases", "runs"]),
        (["--mix", "strikes"], ["everything"]),
    ],
)
def test_a_wrong_value_ends_with_2(args: list[str], told: list[str]) -> None:
    """What is of the other workload, or of none, is refused in one line that says what would be right, in any order."""
    done = call("sim", *args)
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert all(word in done.err for word in told)
