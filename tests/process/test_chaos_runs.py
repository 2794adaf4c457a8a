"""Storms over durable runs, on the real thing: short, of fixed seeds."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from leasekeeper.errors import Unavailable
from leasekeeper.testing.chaos import Weather
from leasekeeper.testing.chaos.runs import RunsStorm, judge_runs
from leasekeeper.testing.chaos.runs.stage import RunsStage

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="partitions between members need Linux"),
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(400),
]


def test_a_storm_of_everything(tmp_path: Path) -> None:
    """A31, B27, B28, B29: workers over runs, faults of all lanes at once: each effect once, every chain whole, all runs end."""
    command = [sys.executable, "-m", "leasekeeper", "chaos", "--workload", "runs", "--seed", "7", "--seconds", "25"]
    done = subprocess.run(
        [*command, "-o", "json", "--report", str(tmp_path / "report")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["verdict"] == "kept"
    assert report["workload"] == "runs"
    figures = report["figures"]
    assert figures["steps_done"] > 20
    assert figures["finished"] + figures["taken_by_restore"] >= figures["runs"]
    assert figures["lives"] > figures["runs"]
    assert len(figures["faults"]) >= 3
    assert json.loads((tmp_path / "report" / "report.json").read_text()) == report
    assert "Every promise was kept" in (tmp_path / "report" / "index.html").read_text()


def test_killed_again_and_again() -> None:
    """A24, A25, B16: kills alone: what kills each life is put aside, told once and cured; a model is asked once more a crash."""
    verdict = judge_runs(RunsStorm(Weather(seed=3, seconds=20, members=1, kinds=("kill",), workload="runs")).run())
    assert verdict.ok, verdict.violations
    assert verdict.figures.quarantined >= 1
    assert verdict.figures.memo_calls <= verdict.figures.runs + verdict.figures.memo_repeated


def test_a_restore() -> None:
    """B29: etcd set back to a backup: runs that it forgot in part stop at their anchor, the others go on under a new epoch."""
    verdict = judge_runs(RunsStorm(Weather(seed=1, seconds=20, members=1, kinds=("restore",), workload="runs")).run())
    assert verdict.ok, verdict.violations
    assert verdict.figures.faults.get("restore") == 1


def test_a_world_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the outside world nothing more can be judged: that is said, and is no promise broken and none kept."""

    def ends(stage: RunsStage, blow: object) -> None:
        stage.world.kill()

    monkeypatch.setattr(RunsStage, "strike_world", ends)
    weather = Weather(seed=3, seconds=60, members=1, kinds=("outage",), workload="runs")
    verdict = judge_runs(RunsStorm(weather).run())
    assert verdict.word == "unknown", verdict.violations
    assert "the resource ended by itself" in verdict.unjudged


@pytest.mark.parametrize("part", ["_calm", "_catch_up"])
def test_an_etcd_that_does_not_come_back(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An etcd that this machine does not bring back in time breaks no promise, and takes no report away."""

    def fails(*_: object) -> None:
        raise Unavailable("etcd does not serve after 60 s\nand a long log", operation="start")

    monkeypatch.setattr(RunsStorm if part == "_calm" else RunsStage, part, fails)
    verdict = judge_runs(RunsStorm(Weather(seconds=5, members=1, replicas=1, kinds=("kill",), workload="runs")).run())
    assert verdict.word == "unknown", verdict.violations
    assert verdict.unjudged == "etcd does not serve after 60 s"


@pytest.mark.checkout
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["run-halt", "run-key"])
def test_a_guard_is_missed(name: str) -> None:
    """B30: with a guard taken out of a copy, a storm finds a violation; `scripts/storm_without.py` tries all of them."""
    script = runpy.run_path(str(ROOT / "scripts/storm_without.py"))
    assert script["missed"](name, script["GUARDS"][name])
