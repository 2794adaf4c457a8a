"""Stopping, killing, and what is left of a tree after its program: the end is said only when nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leasekeeper.cli.tree.control import Exit, TreeState
from tests.process.trees import (
    FAMILY_SIZE,
    SRC,
    STILL,
    all_in_state,
    extend,
    family,
    grow,
    hear,
    look,
    marked,
    members,
    python,
    settle,
)
from tests.support import until


def test_end_kills_a_frozen_tree(mark: str) -> None:
    """C13: authority that is lost while the tree stands still kills it where it stands."""
    with grow(family()) as tree:
        settle(mark, FAMILY_SIZE)
        tree.hold()
        hear(tree, lambda: tree.state is TreeState.FROZEN)
        tree.end()
        assert tree.wait(30) == Exit(137, killed_by_us=True)
    assert not marked(mark)


def test_no_last_word_of_a_killed_frozen_tree(mark: str, tmp_path: Path) -> None:
    """The death of a frozen parent does not set its stopped children free for an instant, which the kernel would do."""
    log = tmp_path / "log"
    child = (
        "import os, signal, sys, time\n"
        "os.setpgid(0, 0)\n"
        "signal.signal(signal.SIGHUP, lambda *_: open(sys.argv[1], 'a').write('ran\\n'))\n"
        "while True: time.sleep(3600)\n"
    )
    for _ in range(5):
        with grow(["sh", "-c", '"$@" & "$@" & wait', "sh", *python(child, str(log))]) as tree:
            settle(mark, 3)
            until(lambda: len({os.getpgid(seen.pid) for seen in members(mark)}) == 3)
            tree.hold()
            hear(tree, lambda: tree.state is TreeState.FROZEN)
            tree.end()
            assert tree.wait(30) is not None
    assert not log.exists()


def test_stop_asks_and_the_programs_own_status_counts(mark: str) -> None:
    """C03: TERM first; a program that obeys within the grace time ends with its own status."""
    script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done"
    with grow(["sh", "-c", script]) as tree:
        until(lambda: any(seen.name == "sleep" for seen in members(mark)))
        tree.stop(30.0)
        assert tree.wait(30) == Exit(9, killed_by_us=False)


def test_stop_kills_after_the_grace(mark: str) -> None:
    """C03: a tree that ignores TERM is killed when the grace time is over."""
    with grow(family()) as tree:
        settle(mark, FAMILY_SIZE)
        tree.stop(0.3)
        assert tree.wait(30) == Exit(137, killed_by_us=True)
    assert not marked(mark)


def test_a_frozen_tree_gets_the_stop_when_it_goes_on(mark: str) -> None:
    """TERM to a frozen tree waits for authority, without which the program may do nothing, not even clean up."""
    with grow(["sh", "-c", "trap 'exit 9' TERM; while :; do sleep 0.01; done"]) as tree:
        until(lambda: any(seen.name == "sleep" for seen in members(mark)))
        tree.hold()
        hear(tree, lambda: tree.state is TreeState.FROZEN)
        tree.stop(60.0)
        time.sleep(0.2)
        assert all_in_state(mark, STILL)
        extend(tree)
        assert tree.wait(30) == Exit(9, killed_by_us=False)


def test_a_frozen_tree_is_killed_after_the_grace_too(mark: str) -> None:
    """The grace time counts while the tree is frozen."""
    with grow(family()) as tree:
        settle(mark, FAMILY_SIZE)
        tree.hold()
        hear(tree, lambda: tree.state is TreeState.FROZEN)
        tree.stop(0.3)
        assert tree.wait(30) == Exit(137, killed_by_us=True)
    assert not marked(mark)


def test_gone_means_everything(mark: str) -> None:
    """Descendants that outlive the program are asked with TERM, killed after the grace, and gone before the exit is known."""
    script = 'trap "" TERM; setsid sh -c "trap \'\' TERM; sleep 3600; :" & setsid sleep 3601 & sleep 0.3; exit 4'
    with grow(["sh", "-c", script], grace_s=0.5) as tree:
        until(lambda: len(members(mark)) >= 3)
        assert tree.wait(30) == Exit(4, killed_by_us=False)
        assert not members(mark)


def test_leftovers_that_obey_are_waited_for(mark: str, tmp_path: Path) -> None:
    """A descendant that needs a moment after TERM gets it, and the exit comes after that."""
    log = tmp_path / "log"
    child = f"trap 'sleep 0.5; echo done >{log}; exit 0' TERM; echo up >{log}.up; while :; do sleep 0.01; done"
    script = f'setsid sh -c "$1" & while ! test -e {log}.up; do sleep 0.01; done; exit 0'
    with grow(["sh", "-c", script, "sh", child], grace_s=60.0) as tree:
        assert tree.wait(50) == Exit(0, killed_by_us=False)
    assert log.read_text() == "done\n"


def test_leftovers_stand_still_without_authority(mark: str) -> None:
    """G5: also after the program's end nothing of the tree runs without authority; the kill comes all the same."""
    daemon = "trap '' TERM; while :; do sleep 0.01; done"
    with grow(["sh", "-c", 'setsid sh -c "$1" & sleep 0.2', "sh", daemon], grace_s=3.0) as tree:
        hear(tree, lambda: tree.pid and not look(tree.pid))
        tree.hold()
        until(lambda: all_in_state(mark, STILL))
        assert tree.wait(30) == Exit(0, killed_by_us=False)


def test_signals_reach_the_program(mark: str, tmp_path: Path) -> None:
    """HUP, USR1, USR2 and TERM go to the program, each once; a child of it does not get them."""
    log = tmp_path / "log"
    code = (
        "import os, signal, sys, time\n"
        "def note(number, frame):\n"
        "    with open(sys.argv[1], 'a') as log: log.write(f'{number}\\n')\n"
        "for number in (1, 10, 12, 15): signal.signal(number, note)\n"
        "os.fork()\n"
        "while True: time.sleep(3600)\n"
    )
    with grow(python(code, str(log))) as tree:
        settle(mark, 2)
        # Asleep for an hour: the handlers are in place.
        until(lambda: all_in_state(mark, "S"))
        for number in (1, 10, 12, 15):
            tree.signal(number)
            until(lambda: log.exists() and log.read_text().endswith(f"{number}\n"))  # noqa: B023
    assert log.read_text().split() == ["1", "10", "12", "15"]


def test_a_signal_before_the_beginning_is_not_lost(mark: str, tmp_path: Path) -> None:
    """A TERM that comes with the start finds the program, however early: it ends by it, before or after it began."""
    for _ in range(10):
        with grow(["sleep", "3600"]) as tree:
            tree.signal(signal.SIGTERM)
            assert tree.wait(30) == Exit(143, killed_by_us=False)


_NOT_YET = """
import os, signal, socket, time
from leasekeeper.cli.tree.guardian import Guardian
ours, theirs = socket.socketpair()
guardian = Guardian(theirs.detach(), os.getpid(), [])
guardian.report_fd, guardian.pid = 99, os.fork()
if guardian.pid == 0: time.sleep(3600)
guardian.pass_on(signal.SIGTERM)
time.sleep(0.2)
print(os.waitpid(guardian.pid, os.WNOHANG), guardian.unsent, flush=True)
guardian.has_begun()
os.waitpid(guardian.pid, 0)
"""


def test_a_signal_waits_until_the_program_has_begun() -> None:
    """Between fork and execution a signal would hit a process that ignores it; it is kept until the program is there."""
    env = {**os.environ, "PYTHONPATH": SRC}
    ran = subprocess.run(
        [sys.executable, "-c", _NOT_YET], env=env, capture_output=True, text=True, check=True, timeout=50
    )
    assert ran.stdout.startswith("(0, 0) [")


_SUCCESS = """
import os, socket
from leasekeeper.cli.tree import messages as m
from leasekeeper.cli.tree.guardian import Guardian
ours, theirs = socket.socketpair()
guardian = Guardian(theirs.detach(), os.getpid(), [])
guardian.begin(m.Start(("sh",), {}, 0.0, 0.0, 1.0, (), (), 0, False))
guardian.pid, guardian.killing = 99999, KILLING
guardian.program_ended(0)
print(guardian.status, guardian.killed, flush=True)
"""


@pytest.mark.parametrize(("killing", "reported"), [(True, "137 True\n"), (False, "0 False\n")])
def test_a_success_during_the_kill_is_none(killing: bool, reported: str) -> None:
    """A shell whose child was killed before itself may end with 0; a supervisor must not take that for work that is done."""
    code = _SUCCESS.replace("KILLING", str(killing))
    env = {**os.environ, "PYTHONPATH": SRC}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=50)
    assert ran.stdout == reported


def test_orphans_are_reaped(mark: str) -> None:
    """Dead orphans do not pile up: the guardian has no zombies while the program runs."""
    script = "i=0; while test $i -lt 200; do (sleep 0.001 &); i=$((i+1)); done; exec sleep 3600"
    with grow(["sh", "-c", script]) as tree:
        until(lambda: [seen.line for seen in members(mark)] == ["sleep 3600 "])

        def only_child() -> bool:
            children = Path(f"/proc/{tree.guardian_pid}/task/{tree.guardian_pid}/children").read_text()
            return children.split() == [str(tree.pid)]

        hear(tree, lambda: tree.pid)
        until(only_child)


def test_leaving_the_block_ends_the_tree(mark: str) -> None:
    """An error in the command's own code takes the tree with it."""
    tree = grow(family())
    settle(mark, FAMILY_SIZE)
    with pytest.raises(ZeroDivisionError), tree:
        _ = 1 / 0
    assert tree.state is TreeState.GONE
    assert not marked(mark)
