"""Freezing and continuing: no process of the tree runs without authority, and all of them go on with it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from leasekeeper.cli.tree.control import Tree, TreeState
from leasekeeper.clock import boottime
from tests.process.trees import (
    FAMILY_SIZE,
    Command,
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
    watcher,
)
from tests.support import until

Start = Callable[..., Command]

_COUNTER = """
import sys, time
n = 0
while True:
    n += 1
    with open(sys.argv[1], "r+") as file: file.write(str(n))
"""


def counter(path: Path) -> list[str]:
    """A program that writes ever larger numbers into a file."""
    path.write_text("0")
    return python(_COUNTER, str(path))


def counts(path: Path) -> bool:
    """Whether the number in the file grows."""
    before = path.read_text()
    until(lambda: path.read_text() != before)
    return True


def stands_still(path: Path) -> bool:
    """Whether the number in the file stays for a while, during which it would have grown a thousand times."""
    before = path.read_text()
    time.sleep(0.2)
    return path.read_text() == before


def is_frozen(tree: Tree) -> Callable[[], bool]:
    """A condition."""
    return lambda: tree.state is TreeState.FROZEN


def is_running(tree: Tree) -> Callable[[], bool]:
    """A condition."""
    return lambda: tree.state is TreeState.RUNNING


def test_hold_stops_everything_and_good_continues_it(mark: str) -> None:
    """Daemons, sessions of their own and processes deaf to signals are all stopped, continued, stopped again, and killed."""
    with grow(family()) as tree:
        settle(mark, FAMILY_SIZE)
        for _ in range(3):
            tree.hold()
            hear(tree, is_frozen(tree))
            assert {seen.state for seen in members(mark)} == {"T"}
            assert len(members(mark)) == FAMILY_SIZE
            extend(tree)
            hear(tree, is_running(tree))
            until(lambda: all_in_state(mark, "SRD"))
        tree.end()
        result = tree.wait(30)
    assert result is not None
    assert (result.status, result.killed_by_us) == (137, True)
    assert not marked(mark)


def test_frozen_is_said_when_nothing_moves(mark: str, tmp_path: Path) -> None:
    """G5: after the report nothing happens any more; the counter goes on with the next authority, from where it stood."""
    number = tmp_path / "number"
    with grow(counter(number)) as tree:
        assert counts(number)
        tree.hold()
        hear(tree, is_frozen(tree))
        assert stands_still(number)
        held_at = int(number.read_text())
        extend(tree)
        assert counts(number)
        assert int(number.read_text()) > held_at
    assert not members(mark)


def test_the_guardian_shuts_the_gate_by_its_own_clock(mark: str) -> None:
    """G5: when no newer authority comes the tree is frozen, without an order; newer authority continues it (C26)."""
    with grow(family()) as tree:
        settle(mark, FAMILY_SIZE)
        extend(tree, 0.5)
        until(lambda: all_in_state(mark, "T"))
        hear(tree, is_frozen(tree))
        extend(tree)
        hear(tree, is_running(tree))
        assert len(members(mark)) == FAMILY_SIZE


def test_authority_that_is_past_continues_nothing(mark: str) -> None:
    """G3: an order that says when authority ended does not open the gate, however new it is."""
    with grow(["sleep", "3600"]) as tree:
        hear(tree, is_running(tree))
        tree.hold()
        hear(tree, is_frozen(tree))
        tree.good(boottime() - 0.001, boottime() + 3600)
        tree.signal(signal.SIGWINCH)  # and it has been read, since a later order was
        time.sleep(0.2)
        tree.pump(0.0)
        assert tree.state is TreeState.FROZEN
        assert all_in_state(mark, "T")


def test_renewed_authority_never_lets_it_freeze(mark: str, tmp_path: Path) -> None:
    """Authority that is renewed in time is never interrupted: no freeze is reported."""
    number = tmp_path / "number"
    with grow(counter(number), good_s=60.0) as tree:
        hear(tree, is_running(tree))
        heard = []
        for _ in range(50):
            extend(tree, 60.0)
            heard += tree.pump(0.01)
        assert heard == []
        assert counts(number)


def test_nothing_starts_without_authority(mark: str) -> None:
    """A program whose authority is past does not begin; it begins with the first authority that comes."""
    with grow(["sleep", "3600"], good_s=-1.0) as tree:
        guardian = watcher(mark, "tree-guardian")
        until(lambda: look(guardian))
        time.sleep(0.2)
        tree.pump(0.0)
        assert tree.state is TreeState.STARTING
        assert not members(mark)
        extend(tree)
        hear(tree, is_running(tree))
        assert len(members(mark)) == 1


def test_a_program_that_never_began_ends_at_once(mark: str) -> None:
    """TERM before the beginning means that it never begins: 143, and it was not killed."""
    with grow(["sleep", "3600"], good_s=-1.0) as tree:
        tree.stop(5.0)
        result = tree.wait(30)
    assert result is not None
    assert (result.status, result.killed_by_us, tree.pid) == (143, False, 0)
    assert not marked(mark)


def test_what_the_user_stopped_stays_stopped(mark: str) -> None:
    """A process that was stopped before the freeze is not continued by its end."""
    script = "sleep 3600 & echo $!; exec sleep 3601"
    with grow(["sh", "-c", script]) as tree:
        settle(mark, 2)
        # Born is not begun: for a moment the child is still a shell.
        (child,) = until(lambda: [seen.pid for seen in members(mark) if seen.line.startswith("sleep 3600")])
        os.kill(child, signal.SIGSTOP)
        until(lambda: (seen := look(child)) and seen.state == "T")
        tree.hold()
        hear(tree, is_frozen(tree))
        extend(tree)
        hear(tree, is_running(tree))
        until(lambda: (seen := look(tree.pid)) and seen.state == "S")
        seen = look(child)
        assert seen is not None
        assert seen.state == "T"


def test_somebodys_continue_is_taken_back(mark: str, tmp_path: Path) -> None:
    """A frozen process that an outsider continues is stopped again, the program and a detached one alike."""
    with grow(["sh", "-c", "setsid sleep 3600 & wait"]) as tree:
        settle(mark, 2)
        tree.hold()
        hear(tree, is_frozen(tree))
        for seen in members(mark):
            os.kill(seen.pid, signal.SIGCONT)
            until(lambda: all_in_state(mark, "T"))


_FORKING = """
import os, sys, time
while True:
    pid = os.fork()
    if pid == 0:
        if len(sys.argv) > 1: os.setsid()
        os._exit(0) if os.fork() else time.sleep(0.01)
        os._exit(0)
    os.waitpid(pid, 0)
"""


def test_a_forking_tree_is_frozen_and_killed(mark: str) -> None:
    """Processes that are born while the freeze goes on are stopped too, and none escapes the kill."""
    for arguments in ([], ["setsid"]):
        with grow(python(_FORKING, *arguments)) as tree:
            hear(tree, is_running(tree))
            until(lambda: len(members(mark)) > 1)
            for _ in range(5):
                tree.hold()
                hear(tree, is_frozen(tree))
                assert {seen.state for seen in members(mark)} == {"T"}
                extend(tree)
                hear(tree, is_running(tree))
            tree.end()
            assert tree.wait(30) is not None
            assert not marked(mark)


_THREADS = """
import ctypes, os, sys, threading, time
def busy():
    while True: time.sleep(0.001)
for _ in range(4): threading.Thread(target=busy).start()
with open(sys.argv[1], "w") as file: file.write(str(os.getpid()))
ctypes.CDLL(None).pthread_exit(None)
"""


def thread_states(pid: int) -> str:
    """The states of a process's threads, sorted; empty when it is gone."""
    try:
        statuses = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    except OSError:
        return ""
    return "".join(sorted(status.partition("State:\t")[2][0] for status in statuses))


def test_a_process_whose_main_thread_is_dead_is_still_a_process(mark: str, tmp_path: Path) -> None:
    """Threads that outlive their main thread make a process that /proc calls a zombie; it is stopped and killed all the same."""
    pid_file = tmp_path / "pid"
    with grow(["sh", "-c", '"$@" & wait', "sh", *python(_THREADS, str(pid_file))]) as tree:
        until(lambda: pid_file.exists() and pid_file.read_text())
        pid = int(pid_file.read_text())
        until(lambda: thread_states(pid)[-1:] == "Z")
        tree.hold()
        hear(tree, is_frozen(tree))
        assert thread_states(pid) == "TTTTZ"
        extend(tree)
        hear(tree, is_running(tree))
        until(lambda: "T" not in thread_states(pid))
        tree.end()
        assert tree.wait(30) is not None
    assert not thread_states(pid)


def test_a_shell_does_not_notice_the_pause(mark: str, tmp_path: Path) -> None:
    """A shell with job control waits through a freeze: its child is continued before it can see it stopped."""
    log = tmp_path / "log"
    script = f"set -m; sleep 2; echo status $? >{log}"
    with grow(["bash", "-c", script]) as tree:
        settle(mark, 2)
        for _ in range(40):
            tree.hold()
            hear(tree, is_frozen(tree))
            extend(tree)
            hear(tree, is_running(tree))
        assert tree.wait(30) is not None
    assert log.read_text() == "status 0\n"


def test_a_stopped_command_lets_nothing_run(mark: str, start_command: Start) -> None:
    """C02, G5: after SIGSTOP of the command the tree is frozen by the guardian, and goes on when the command does."""
    command = start_command(family(), good_s=1.0)
    settle(mark, FAMILY_SIZE)
    os.kill(command.process.pid, signal.SIGSTOP)
    until(lambda: all_in_state(mark, "T"))
    assert len(members(mark)) == FAMILY_SIZE
    os.kill(command.process.pid, signal.SIGCONT)
    until(lambda: all_in_state(mark, "SRD"))
    command.order("end")
    command.until_heard("exit")


def test_a_guardian_that_is_stopped_is_woken(mark: str, tmp_path: Path) -> None:
    """The sentinel continues a guardian that somebody stopped, so its gate still shuts."""
    number = tmp_path / "number"
    with grow(counter(number), good_s=2.0) as tree:
        hear(tree, is_running(tree))
        for _ in range(20):
            os.kill(tree.guardian_pid, signal.SIGSTOP)
            time.sleep(0.01)
        until(lambda: all_in_state(mark, "T"))
        assert stands_still(number)


def test_guardian_and_command_stopped_together(mark: str, start_command: Start, tmp_path: Path) -> None:
    """C02: both stopped at once, the guardian is woken and reads the clock before anything else."""
    number = tmp_path / "number"
    command = start_command(counter(number), good_s=1.0)
    assert counts(number)
    for pid in (command.process.pid, watcher(mark, "tree-guardian")):
        os.kill(pid, signal.SIGSTOP)
    until(lambda: all_in_state(mark, "T"))
    assert stands_still(number)
    os.kill(command.process.pid, signal.SIGCONT)
    assert counts(number)
    command.order("end")
    command.until_heard("exit")
