"""The outside world outlives whoever acts on it, and nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from leasekeeper.testing.outside import OutsideWorld, Trouble, call
from tests.support import until

STARTER = """
import sys, time
from pathlib import Path
from leasekeeper.testing.outside import OutsideWorld

world = OutsideWorld(Path(sys.argv[1]))
world.start()
print(world.pid, flush=True)
time.sleep(600)
"""

ACTOR = """
import sys
from leasekeeper.testing.outside import call

call(sys.argv[1], "POST", "/charges", {"order": "o", "amount_cents": 1}, timeout_s=600)
"""


def is_gone(pid: int) -> bool:
    """True when no such process runs (one that nobody has reaped yet does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's death signal")
def test_a_world_dies_with_a_killed_starter(tmp_path: Path) -> None:
    """SIGKILL for the process that started a world ends the world, too."""
    with subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        starter.kill()
    until(lambda: is_gone(pid))


def test_a_world_outlives_a_killed_actor() -> None:
    """Killed while it waits for the answer: the charge stands, and its request is in the ledger."""
    with OutsideWorld() as world:
        world.trouble(Trouble("delay_reply", "payments.charge", ms=60_000))
        with subprocess.Popen([sys.executable, "-c", ACTOR, world.url]) as actor:
            world.wait_applied("payments.charge")
            os.kill(actor.pid, signal.SIGKILL)
        world.heal()
        (charge,) = call(world.url, "GET", "/charges", query={"order": "o"})["charges"]
        assert charge["status"] == "paid"
        assert len(world.received("payments.charge", "o")) == 1
