"""The demo tells its story, and the story ends as promised."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_demo_ends_with_no_write_by_two_owners() -> None:
    """G4, C01: cut off, the owner pauses; the next one has a larger token; the late write is refused; LOST is learnt."""
    done = subprocess.run(
        [sys.executable, "-c", "from leasekeeper.cli import main; main(['demo'])"],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    story = done.stdout
    steps = ["owns the lease now", "SUSPENDED", "pauses at its gate", "owns the lease now", "late write", "is LOST"]
    at = 0
    for step in steps:
        at = story.index(step, at) + 1
    assert "writes by two owners at once  0" in story


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """Told to stop in the middle, it ends etcd and the replicas, removes its files, and says nothing; 128+N."""
    demo = subprocess.Popen(
        [sys.executable, "-m", "leasekeeper", "demo"],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert demo.stdout is not None
        assert next(line for line in demo.stdout if "owns the lease now" in line)
        assert any(tmp_path.iterdir())
        demo.send_signal(number)
        _, errors = demo.communicate(timeout=50)
    finally:
        demo.kill()
        demo.wait()
    assert (demo.returncode, errors) == (128 + number, "")
    assert list(tmp_path.iterdir()) == []
