"""Who dies with whom: whatever is killed, in whatever combination, nothing of the tree goes on unguarded."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from leasekeeper.cli.tree.control import Exit, TreeState
from tests.process.trees import (
    FAMILY_SIZE,
    Command,
    all_in_state,
    family,
    grow,
    hear,
    marked,
    members,
    none_left,
    python,
    settle,
    watcher,
)
from tests.support import until

Start = Callable[..., Command]

GUARDIAN = "tree-guardian"
SENTINEL = "tree-sentinel"


def kill(*pids: int) -> None:
    """All at once, as far as that can be had: one of them may have gone by itself before its turn came."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def grown_command(start_command: Start, mark: str) -> Command:
    """A command whose whole family is there."""
    command = start_command(family())
    settle(mark, FAMILY_SIZE)
    command.until_heard("Started")
    return command


def test_the_commands_death_takes_the_tree(mark: str, start_command: Start) -> None:
    """Kill -9 of the command: every process of the tree is gone, and so are guardian and sentinel."""
    command = grown_command(start_command, mark)
    kill(command.process.pid)
    until(lambda: none_left(mark))


def test_the_commands_death_takes_a_frozen_tree(mark: str, start_command: Start) -> None:
    """The same when the tree stands still."""
    command = start_command(family(), renew=False)
    settle(mark, FAMILY_SIZE)
    command.order("hold")
    until(lambda: all_in_state(mark, "T"))
    kill(command.process.pid)
    until(lambda: none_left(mark))


def test_the_commands_death_before_the_program_begins(mark: str, start_command: Start) -> None:
    """Nothing is started for a command that has died."""
    command = start_command(family(), good_s=-1.0, renew=False)
    command.until_heard("Guarding")
    kill(command.process.pid)
    until(lambda: none_left(mark))


@pytest.mark.parametrize("victim", ["command", GUARDIAN, SENTINEL])
def test_a_death_at_any_moment_of_the_start(mark: str, start_command: Start, victim: str) -> None:
    """Whoever is killed, and however early: nothing is left, and a command that lives ends."""
    for delay_ms in range(0, 150, 10):
        command = start_command(["sh", "-c", "setsid sleep 3600 & wait"], supervise=True)
        pid = command.process.pid
        if victim != "command":
            (pid, *_) = until(lambda: [seen.pid for seen in marked(mark) if "TREE_BOOT" in seen.line])
        time.sleep(delay_ms / 1000)
        # Before it has its name there is only the first process, which will be the sentinel.
        kill(next((seen.pid for seen in marked(mark) if seen.name == victim), pid))
        if victim != "command":
            command.order("LOST")  # a tree that has only lost its sentinel goes on
        command.process.wait(30)
        until(lambda: none_left(mark))


def test_the_guardians_death_takes_the_tree(mark: str) -> None:
    """Kill -9 of the guardian: the exit says so, and it comes when nothing is left."""
    with grow(family()) as tree:
        settle(mark, FAMILY_SIZE)
        hear(tree, lambda: tree.pid)
        kill(tree.guardian_pid)
        result = tree.wait(30)
        assert not marked(mark)
    assert result == Exit(137, killed_by_us=True, fault="the guardian died; the tree was killed")
    assert tree.state is TreeState.GONE


def test_the_guardians_death_takes_a_frozen_tree(mark: str) -> None:
    """The same when the tree stands still."""
    with grow(family()) as tree:
        settle(mark, FAMILY_SIZE)
        tree.hold()
        hear(tree, lambda: tree.state is TreeState.FROZEN)
        kill(tree.guardian_pid)
        assert tree.wait(30) is not None
        assert not marked(mark)


def test_the_sentinels_death_changes_nothing(mark: str) -> None:
    """Kill -9 of the sentinel: the tree is frozen, continued and ended as before."""
    with grow(family()) as tree:
        settle(mark, FAMILY_SIZE)
        hear(tree, lambda: tree.pid)
        kill(watcher(mark, SENTINEL))
        tree.hold()
        hear(tree, lambda: tree.state is TreeState.FROZEN)
        assert len(members(mark)) == FAMILY_SIZE
        tree.end()
        assert tree.wait(30) == Exit(137, killed_by_us=True)
        assert not marked(mark)


def test_guardian_and_sentinel_dead_the_command_kills(mark: str) -> None:
    """Both killed: the orphans fall to the command, which kills them; a child that it had before is spared."""
    mine = os.fork()
    if mine == 0:
        signal.pause()
        os._exit(0)
    try:
        with grow(family()) as tree:
            settle(mark, FAMILY_SIZE)
            hear(tree, lambda: tree.pid)
            kill(watcher(mark, SENTINEL), tree.guardian_pid)
            assert tree.wait(30) is not None
            assert not members(mark)
        assert os.waitpid(mine, os.WNOHANG) == (0, 0)
    finally:
        os.kill(mine, signal.SIGKILL)
        os.waitpid(mine, 0)


@pytest.mark.parametrize("other", [GUARDIAN, SENTINEL])
def test_command_and_another_dead_the_third_kills(mark: str, start_command: Start, other: str) -> None:
    """The command and one of the two killed: the last one kills the tree."""
    command = grown_command(start_command, mark)
    kill(command.process.pid, watcher(mark, other))
    until(lambda: none_left(mark))


def test_ignored_children_hide_no_death(mark: str, start_command: Start) -> None:
    """A command that was started with SIGCHLD ignored cannot ask how the sentinel died, and kills the orphans all the same."""
    ignore = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = start_command(family(), supervise=True, before=python(ignore))
    settle(mark, FAMILY_SIZE)
    kill(watcher(mark, SENTINEL), watcher(mark, GUARDIAN))
    assert command.process.wait(30) == 137
    assert none_left(mark)


def test_a_kill_by_process_group_leaves_a_guardian(mark: str, start_command: Start) -> None:
    """Kill -9 of the command's process group does not hit guardian and sentinel, so the tree is killed."""
    command = start_command(family(), start_new_session=True)
    settle(mark, FAMILY_SIZE)
    os.killpg(command.process.pid, signal.SIGKILL)
    until(lambda: none_left(mark))


def test_a_kill_by_name_leaves_a_guardian(mark: str, start_command: Start) -> None:
    """Neither guardian nor sentinel can be found by the command's name or place, or by the name of the program."""
    command = start_command(python("import time; time.sleep(3600)", "unlikely-argument"))
    command.until_heard("Started")
    for name in (GUARDIAN, SENTINEL):
        (seen,) = [seen for seen in marked(mark) if seen.name == name]
        assert "leasekeeper" not in seen.line
        assert sys.prefix not in seen.line
        assert sys.base_prefix not in seen.line
        assert "unlikely-argument" not in seen.line
    command.order("end")
    command.until_heard("exit")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP])
def test_the_watchers_are_deaf(mark: str, number: int) -> None:
    """A signal meant for others ends neither guardian nor sentinel."""
    with grow(["sleep", "3600"]) as tree:
        hear(tree, lambda: tree.pid)
        for pid in (tree.guardian_pid, watcher(mark, SENTINEL)):
            os.kill(pid, number)
        tree.hold()
        hear(tree, lambda: tree.state is TreeState.FROZEN)
        assert watcher(mark, SENTINEL)


def test_a_guardian_that_does_not_answer_is_given_up(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An order to kill that is not carried out in time kills the guardian, and with it the tree."""
    from leasekeeper.cli.tree import control

    monkeypatch.setattr(control, "ANSWER_S", 1.0)
    with grow(family()) as tree:
        settle(mark, FAMILY_SIZE)
        hear(tree, lambda: tree.pid)
        # A guardian that is continued can only be silenced by a debugger; stop its sentinel as well, and do not wake it.
        monkeypatch.setattr(tree._sentinel, "send_signal", lambda number: None)
        os.kill(watcher(mark, SENTINEL), signal.SIGSTOP)
        os.kill(tree.guardian_pid, signal.SIGSTOP)
        tree.end()
        hear(tree, lambda: tree._cut_off)
        monkeypatch.undo()
        result = tree.wait(30)
    assert result is not None
    assert result.fault.startswith("the guardian did not answer within 1 s")
    os.environ.pop("TREE_TEST_MARK", None)
    until(lambda: none_left(mark))
