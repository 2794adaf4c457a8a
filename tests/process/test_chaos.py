"""Storms on the real thing: short, of fixed seeds."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.errors import ConfigError, Unavailable
from leasekeeper.testing.chaos import Storm, Weather, judge
from leasekeeper.testing.homes import make_home

ROOT = Path(__file__).parents[2]
# What the console script does; the current directory is not among the places where modules are looked for.
START = f"import sys; sys.path[0] = {str(ROOT / 'src')!r}; from leasekeeper.cli import main; main()"

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="partitions between members need Linux"),
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(400),
]


def test_a_storm_of_everything(tmp_path: Path) -> None:
    """A29, B29: faults of all lanes at once on a real cluster; every promise is kept, and the command says so."""
    command = [sys.executable, "-m", "leasekeeper", "chaos", "--seed", "7", "--seconds", "25", "-o", "json"]
    done = subprocess.run(
        [*command, "--report", str(tmp_path / "report")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["verdict"] == "kept"
    assert report["figures"]["accepted"] > 0
    assert report["figures"]["owners"] >= 3
    assert len(report["figures"]["faults"]) >= 3
    assert json.loads((tmp_path / "report" / "report.json").read_text()) == report
    assert "Every promise was kept" in (tmp_path / "report" / "index.html").read_text()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("target", "kept"), [("tests.programs.targets:unfenced", False), ("tests.programs.targets:Guarded", True)]
)
def test_a_target_of_ones_own(target: str, kept: bool) -> None:
    """B28, G4: a resource without a fence is caught taking an older owner's write, one with a guard is not."""
    found: list[str] = []
    for seed in range(2, 9):
        weather = Weather(seed=seed, seconds=25 if kept else 40, kinds=("freeze",), target=target)
        found += judge(Storm(weather).run()).violations
        if kept or found:
            break
    if kept:
        assert not found
    else:
        assert any("was accepted" in what for what in found)


def test_a_wrong_target_is_told_before_anything_else_starts() -> None:
    """Nothing is started for a target that does not exist."""
    with pytest.raises(ConfigError, match="nowhere"):
        Storm(Weather(seconds=5, target="nowhere:at_all")).run()


@pytest.mark.parametrize(
    ("target", "why"), [("crashes", "ended by itself with status 9"), ("hangs", "a write did not return within 30 s")]
)
def test_a_target_that_fails(target: str, why: str) -> None:
    """A resource that ends or hangs breaks the storm off: that is said, and is no promise broken and none kept."""
    weather = Weather(seconds=120, kinds=("compaction",), target=f"tests.programs.targets:{target}")
    started = time.monotonic()
    verdict = judge(Storm(weather).run())
    assert time.monotonic() - started < 110
    assert verdict.word == "unknown", verdict.violations
    assert why in verdict.unjudged
    assert verdict.figures.accepted > 0


@pytest.mark.parametrize("part", ["_calm", "_wait_empty"])
def test_an_etcd_that_does_not_come_back(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An etcd that this machine does not bring back in time breaks no promise, and takes no report away."""

    def fails(storm: Storm, stage: object) -> None:
        raise Unavailable("etcd does not serve after 60 s\nand a long log", operation="start")

    monkeypatch.setattr(Storm, part, fails)
    verdict = judge(Storm(Weather(seconds=5, members=1, replicas=1, kinds=("kill",))).run())
    assert verdict.word == "unknown", verdict.violations
    assert verdict.unjudged == "etcd does not serve after 60 s"
    assert verdict.figures.accepted > 0


def test_a_ledger_that_cannot_be_written_ends_the_resource(tmp_path: Path) -> None:
    """When the disk is full nothing is decided that nobody could judge: the resource ends and says why."""
    config = {"ledger": "/dev/full", "target": "", "zero_s": 0.0, "port": str(tmp_path / "port"), "path": []}
    command = [sys.executable, "-m", "leasekeeper.testing.chaos.effects", json.dumps(config)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as resource:
        try:
            until = time.monotonic() + 60
            while not (tmp_path / "port").exists():
                assert time.monotonic() < until
                time.sleep(0.05)
            write = {"holder": "r0.1", "token": 5, "claim": "c", "work": "w", "gate_s": 1.0}
            with socket.create_connection(("127.0.0.1", int((tmp_path / "port").read_text())), timeout=60) as wire:
                wire.sendall(json.dumps(write).encode() + b"\n")
                assert wire.recv(1) == b""
            said = resource.communicate(timeout=60)[1]
        finally:
            resource.kill()
    assert resource.returncode == 3
    assert said.splitlines()[-1] == "the ledger cannot be written: [Errno 28] No space left on device"


def test_an_epoch_that_nobody_raises() -> None:
    """G4: an operator who restores a backup and forgets the epoch has tokens given again; the resource takes none of them."""
    verdict = judge(Storm(Weather(seed=1, seconds=25, kinds=("restore-unraised", "kill"))).run())
    assert verdict.word == "kept", verdict.violations
    assert verdict.figures.faults["restore-unraised"] == 1


def test_what_cannot_be_done_is_told() -> None:
    """A fault that one member cannot have is left out by name; when nothing else was asked for, that is an error."""
    weather = Weather(seconds=5, members=1, replicas=1, kinds=("member-apart", "kill"))
    story = Storm(weather).run()
    assert story.left_out == {"member-apart": "one member has no other"}
    assert judge(story).ok
    with pytest.raises(ConfigError, match="one member has no other"):
        Storm(Weather(seconds=5, members=1, replicas=1, kinds=("member-apart",))).run()


def test_a_report_that_cannot_be_written_is_told_first(tmp_path: Path) -> None:
    """A storm whose report has no place is not begun."""
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "leasekeeper", "chaos", "--report", str(tmp_path / "file" / "below")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--report" in done.stderr
    assert "starting" not in done.stderr


def test_what_lies_about_does_no_harm(tmp_path: Path) -> None:
    """Files named like modules in the current directory, and the caller's variables, do not reach the replicas."""
    for name in ("json", "socket", "random"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')")
    strange = {"LEASEKEEPER_ENDPOINTS": "127.0.0.1:1", "LEASEKEEPER_NAMESPACE": "mine", "LEASEKEEPER_USER": "me:secret"}
    command = ["chaos", "--seconds", "5", "--replicas", "1"]
    done = subprocess.run(
        [sys.executable, "-c", START, *command, "--members", "1", "--fault", "kill"],
        cwd=tmp_path,
        env={**os.environ, **strange},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def children(pid: int) -> set[int]:
    """All processes below one."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found |= {int(child)} | children(int(child))
    return found


def gone(pid: int) -> bool:
    """Whether a process does not run any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C and TERM leave no process and no file; a kill leaves no process, and no file when the next storm has begun."""
    environment: dict[str, Any] = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "leasekeeper", "chaos", "--seconds", "300", "--fault", "freeze"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as storm:
        assert storm.stderr is not None
        while " s  " not in (line := storm.stderr.readline()):
            assert line, "it ended by itself"
        below = children(storm.pid)
        assert len(below) >= 7  # three members, three replicas, the resource
        storm.send_signal(number)
        storm.communicate(timeout=120)
    assert storm.returncode == (-9 if number is signal.SIGKILL else 128 + number)
    until = time.monotonic() + 60
    while not all(gone(pid) for pid in below):
        assert time.monotonic() < until
        time.sleep(0.1)
    if number is signal.SIGKILL:
        assert list(tmp_path.iterdir())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(tmp_path))
            make_home().remove()
    assert not list(tmp_path.iterdir())
