"""Trees that multiply: processes that fork without pause and die at once are frozen, continued and killed like any other."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from leasekeeper.cli.tree.burial import Left, reap
from leasekeeper.cli.tree.control import TreeState
from tests.process.trees import SRC, extend, grow, hear, marked, python

# Each process lives only until its child is there, so no process that was seen is still there a moment later, and the dead
# come as fast as the machine can make them.
_HOPPERS = """
import os, sys
log = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND)
def hop(apart):
    while True:
        if os.fork(): os._exit(0)
        os.write(log, b".")
        if apart: os.setsid()
for _ in range(int(sys.argv[1])):
    if not os.fork(): hop(sys.argv[2] == "apart")
os.wait()
while True:
    try: os.wait()
    except ChildProcessError: break
import time
time.sleep(3600)
"""
PLACES = {"together": 32, "apart": 12}
UNDER_WAY = 2000


def crowd(place: str, log: Path) -> list[str]:
    """A program that becomes a crowd and writes a byte for each birth."""
    log.touch()
    return python(_HOPPERS, str(PLACES[place]), place, str(log))


def is_under_way(log: Path) -> bool:
    """Whether there have been births enough to keep a guardian busy."""
    return log.stat().st_size >= UNDER_WAY


@pytest.mark.parametrize("place", PLACES)
def test_a_crowd_is_frozen_and_continued(mark: str, tmp_path: Path, place: str) -> None:
    """G5: all in one group, or each in a session of its own: the guardian freezes them, continues them, and kills them."""
    with grow(crowd(place, tmp_path / "births")) as tree:
        hear(tree, lambda: is_under_way(tmp_path / "births"))
        for _ in range(2):
            tree.hold()
            hear(tree, lambda: tree.state is TreeState.FROZEN)
            extend(tree)
            hear(tree, lambda: tree.state is TreeState.RUNNING)
        tree.end()
        result = tree.wait(30)
    assert result is not None
    assert (result.killed_by_us, result.fault) == (True, "")
    assert not marked(mark)


@pytest.mark.parametrize("place", PLACES)
def test_a_crowd_whose_guardian_dies_is_killed(mark: str, tmp_path: Path, place: str) -> None:
    """The sentinel kills while it buries: without an end of the dying it would never come to the living."""
    with grow(crowd(place, tmp_path / "births")) as tree:
        hear(tree, lambda: is_under_way(tmp_path / "births"))
        tree._give_up_guardian()
        assert tree.wait(30) is not None
    assert not marked(mark)


def test_reaping_ends_although_the_dying_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many dead there are, a call is over in time and says that there may be more."""
    noted: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "waitpid", lambda pid, options: (7, 0))
    assert reap(0.01, lambda pid, status: noted.append((pid, status))) is Left.MAYBE_DEAD
    assert set(noted) == {(7, 0)}


_ENDLESS = """
import os, socket, sys
sys.path.insert(0, sys.argv[1])
from leasekeeper.cli.tree.guardian import Guardian
command, ours = socket.socketpair()
guardian = Guardian(ours.detach(), os.getpid(), [])
os.waitpid = lambda pid, options: (7, 0)
for _ in range(3): assert not guardian.turn()
print(guardian.childless, guardian.next_look_s(1.0))
"""


def test_a_turn_of_the_guardian_ends_although_the_dying_does_not() -> None:
    """G5: it looks at the clock and at its orders again, and takes the next turn at once."""
    ran = subprocess.run(python(_ENDLESS, SRC), capture_output=True, text=True, timeout=30, check=False)
    assert (ran.stdout, ran.stderr) == ("False 1.0\n", "")


def test_the_guardian_goes_first_and_the_program_does_not(mark: str) -> None:
    """Where it may, the guardian has a processor before the tree has one; the program runs with the command's niceness."""
    with grow(["sleep", "3600"]) as tree:
        hear(tree, lambda: tree.state is TreeState.RUNNING)
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, tree.pid) == own
        assert os.getpriority(os.PRIO_PROCESS, tree.guardian_pid) == (-20 if os.geteuid() == 0 else own)
