"""`leasekeeper sim`: exit codes, the story, the replay, JSON, Ctrl-C."""

from __future__ import annotations

import shlex
import signal

import pytest

from leasekeeper.testing.sim import GUARDS, MIXES
from tests.commands import Command, call


def test_clean_worlds_end_with_0() -> None:
    """Without a violation it exits with 0 and one line that counts what happened."""
    done = call("sim", "--worlds", "5", "--seconds", "30")
    assert (done.code, done.err) == (0, "")
    (line,) = done.out.splitlines()
    assert line.startswith("5 worlds, no promise broken: ")


def test_a_violation_ends_with_1_and_its_replay_tells_the_same() -> None:
    """B30: a missing guard is found; the printed command shows the same violation again, and without the option it is clean."""
    found = call("sim", "--without", "margin")
    assert found.code == 1
    first = found.out.splitlines()[0]
    assert first.startswith("G3: ")
    replay = shlex.split(found.out.rpartition("Once more: leasekeeper ")[2])
    again = call(*replay)
    assert again.code == 1
    assert again.out == found.out
    at = replay.index("--without")
    clean = call(*replay[:at], *replay[at + 2 :])
    assert clean.code == 0
    assert clean.out.startswith("no violation in the world of seed ")


def test_json_of_a_violation() -> None:
    """With -o json the violation, its faults and the command that replays it are one object."""
    done = call("sim", "--without", "gate-clock", "-o", "json")
    assert done.code == 1
    assert set(done.json) == {"tally", "violation"}
    violation = done.json["violation"]
    assert violation["without"] == "gate-clock"
    assert violation["promise"] in ("G3", "G5")
    assert violation["replay"].startswith(f"leasekeeper sim --replay {violation['seed']}:")
    replayed = call(*shlex.split(violation["replay"])[1:], "-o", "json")
    assert {key: replayed.json[key] for key in violation} == violation
    assert len(replayed.json["story"]) > 3


def test_json_of_clean_worlds() -> None:
    """With -o json the counts are numbers."""
    done = call("sim", "--worlds", "2", "--seconds", "20", "--replicas", "2", "--mix", "late", "-o", "json")
    assert done.code == 0
    assert done.json["violation"] is None
    assert done.json["tally"]["worlds"] == 2
    assert done.json["tally"]["events"] > 100


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--without", "nothing"], list(GUARDS)),
        (["--mix", "nothing"], list(MIXES)),
        (["--replay", "x"], ["SEED:FAULT"]),
        (["--replay", "3:a"], ["SEED:FAULT"]),
        (["--worlds", "0"], ["--worlds"]),
        (["--replicas", "0"], ["--replicas"]),
        (["--seconds", "1"], ["--seconds"]),
        (["--seed", "-1"], ["--seed"]),
    ],
)
def test_a_wrong_value_ends_with_2(args: list[str], told: list[str]) -> None:
    """A value that cannot be is refused in one line that says what would be right."""
    done = call("sim", *args)
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert all(word in done.err for word in told)


def test_ctrl_c_ends_it_and_tells_how_far_it_was() -> None:
    """A long run tells of its progress; on Ctrl-C it ends with 130 and says what it has seen until then."""
    with Command("sim", "--worlds", "100000") as command:
        command.until(lambda: "a minute" in command.err)
        command.signal(signal.SIGINT)
        done = command.end()
    assert done.code == 130
    assert done.out == ""
    assert "without a violation" in done.err.splitlines()[-1]
