"""The demo tells its story, and the story ends as promised."""

from __future__ import annotations

import subprocess
import sys

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
