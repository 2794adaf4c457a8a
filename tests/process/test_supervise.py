"""The loop of ``run`` under a lease whose state is scripted: authority, signals and the end, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.trees import FAMILY_SIZE, Command, all_in_state, family, members, python, settle, watcher
from tests.support import until

Start = Callable[..., Command]


def outcome(command: Command) -> list[object]:
    """Status, whether authority was lost, whether we killed the program; and the command's exit code is that status."""
    _, status, lost, killed = command.until_heard("outcome")
    assert command.process.wait(30) == status
    return [status, lost, killed]


def test_suspended_freezes_held_continues(mark: str, start_command: Start) -> None:
    """C26, B26: SUSPENDED stops the tree, HELD continues it, as often as that happens; a person is told both times."""
    command = start_command(family(), supervise=True)
    settle(mark, FAMILY_SIZE)
    for count in (1, 2, 3):
        command.order("SUSPENDED")
        until(lambda: all_in_state(mark, "T"))
        assert len(members(mark)) == FAMILY_SIZE
        command.order("HELD")
        until(lambda: all_in_state(mark, "SRD"))
        command.until_heard("notice", 2 * count)
    notices = [str(text) for _, text in command.heard("notice")]
    assert [text.split(";")[0] for text in notices] == ["scripted: SUSPENDED", "scripted: HELD again"] * 3
    command.order("LOST")
    assert outcome(command) == [76, True, True]


@pytest.mark.parametrize("first", ["HELD", "SUSPENDED"])
def test_lost_kills(mark: str, start_command: Start, first: str) -> None:
    """C13: LOST kills the tree, running or frozen, and the command ends with 76 when nothing is left."""
    command = start_command(family(), supervise=True)
    settle(mark, FAMILY_SIZE)
    if first == "SUSPENDED":
        command.order(first)
        until(lambda: all_in_state(mark, "T"))
    command.order("LOST")
    command.until_heard("outcome")
    assert not members(mark)
    assert outcome(command) == [76, True, True]


def test_a_success_does_not_hide_a_loss(mark: str, start_command: Start, tmp_path: Path) -> None:
    """C15: a program that ends well after the lease was lost does not make the command succeed."""
    up = tmp_path / "up"
    # A leftover that does not obey TERM keeps the tree there after the program's own end.
    leftover = f"trap '' TERM; echo >{up}; sleep 3600"
    script = f'setsid sh -c "$1" & while ! test -e {up}; do sleep 0.01; done; exit 0'
    command = start_command(["sh", "-c", script, "sh", leftover], supervise=True, grace_s=60.0)
    until(lambda: up.exists() and not [seen for seen in members(mark) if script in seen.line])
    command.order("LOST")
    assert outcome(command) == [76, True, False]


def test_the_programs_own_failure_wins(start_command: Start) -> None:
    """C15: the program's own status is passed through."""
    command = start_command(["sh", "-c", "exit 3"], supervise=True)
    assert outcome(command) == [3, False, False]


def test_the_program_knows_its_lease(start_command: Start) -> None:
    """Name, token and key are in the program's environment, over inherited ones."""
    command = start_command(
        ["sh", "-c", 'echo "$LEASEKEEPER_NAME $LEASEKEEPER_TOKEN $LEASEKEEPER_KEY"'],
        supervise=True,
        stdout=subprocess.PIPE,
        env={"LEASEKEEPER_TOKEN": "7", "LEASEKEEPER_NAME": "outer"},
    )
    output, _ = command.process.communicate(timeout=50)
    assert output == b"scripted 42 leasekeeper/default/lease/scripted/1\n"


_NOTING = """
import signal, sys, time
def note(number, frame):
    with open(sys.argv[1], "a") as log: log.write(f"{number}\\n")
for number in (1, 2, 3, 10, 12, 28): signal.signal(number, note)
open(sys.argv[1], "a").close()
while True: time.sleep(3600)
"""


def test_each_signal_is_passed_on_once(mark: str, start_command: Start, tmp_path: Path) -> None:
    """HUP, INT, QUIT, USR1, USR2 and WINCH to the command reach the program, each once."""
    log = tmp_path / "log"
    command = start_command(python(_NOTING, str(log)), supervise=True)
    until(log.exists)
    until(lambda: all_in_state(mark, "S"))
    sent = [1, 2, 3, 10, 12, 28]
    for count, number in enumerate(sent, start=1):
        os.kill(command.process.pid, number)
        until(lambda: len(log.read_text().split()) == count)  # noqa: B023
    assert [int(number) for number in log.read_text().split()] == sent
    command.order("LOST")
    assert outcome(command) == [76, True, True]


def test_a_signal_to_the_commands_group_comes_once(mark: str, start_command: Start, tmp_path: Path) -> None:
    """A signal to the command's whole process group, as from ``timeout``, reaches the program once."""
    log = tmp_path / "log"
    command = start_command(python(_NOTING, str(log)), supervise=True, start_new_session=True)
    until(log.exists)
    until(lambda: all_in_state(mark, "S"))
    os.killpg(command.process.pid, signal.SIGHUP)
    until(lambda: log.read_text())
    os.killpg(command.process.pid, signal.SIGUSR1)
    until(lambda: len(log.read_text().split()) >= 2)
    assert log.read_text().split() == ["1", "10"]
    command.order("LOST")
    outcome(command)


def test_term_waits_for_the_work(start_command: Start, tmp_path: Path) -> None:
    """C03: TERM to the command: the work is asked, needs two seconds under a lease that is still held, and then it is over."""
    log = tmp_path / "log"
    script = f"trap 'sleep 2; echo done >{log}; exit 0' TERM; echo up >{log}; while :; do sleep 0.01; done"
    command = start_command(["sh", "-c", script], supervise=True, grace_s=60.0, good_s=1.0)
    until(lambda: log.exists() and log.read_text())
    command.process.terminate()
    assert outcome(command) == [0, False, False]
    assert log.read_text() == "done\n"


def test_term_kills_what_does_not_stop(mark: str, start_command: Start) -> None:
    """C03: work that does not stop in the grace time is killed, all of it, before the command ends."""
    command = start_command(family(), supervise=True, grace_s=0.5)
    settle(mark, FAMILY_SIZE)
    command.process.terminate()
    command.until_heard("outcome")
    assert not members(mark)
    assert outcome(command) == [137, False, True]


def test_a_second_interrupt_ends_a_frozen_program(mark: str, start_command: Start) -> None:
    """A frozen program gets the first interrupt later; the second one ends it, since a person wants out."""
    command = start_command(["sleep", "3600"], supervise=True)
    settle(mark, 1)
    command.order("SUSPENDED")
    until(lambda: all_in_state(mark, "T"))
    command.until_heard("notice")

    def asked_again() -> bool:
        return any("interrupt again" in str(text) for _, text in command.heard("notice"))

    def interrupted() -> bool:
        """The first may come before the command knows of the freeze. One too many would hit it when it has ended its work."""
        os.kill(command.process.pid, signal.SIGINT)
        patience_s = time.monotonic() + 5.0
        while not asked_again() and time.monotonic() < patience_s:
            time.sleep(0.01)
        return asked_again()

    until(interrupted)
    os.kill(command.process.pid, signal.SIGINT)
    assert outcome(command) == [137, False, True]


def test_a_program_that_waits_for_authority_can_be_interrupted(mark: str, start_command: Start) -> None:
    """Before the program has begun TERM ends the command at once."""
    command = start_command(["sleep", "3600"], supervise=True, good_s=-1.0)
    until(lambda: catches(command.process.pid, signal.SIGTERM))
    command.process.terminate()
    assert outcome(command) == [143, False, False]


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigCgt:\t")[2].split()[0], 16) >> (number - 1) & 1)


def test_a_dead_guardian_is_reported(mark: str, start_command: Start) -> None:
    """Kill -9 of the guardian: the tree is gone, a person is told why, and the status is that of a kill."""
    command = start_command(family(), supervise=True)
    settle(mark, FAMILY_SIZE)
    os.kill(watcher(mark, "tree-guardian"), signal.SIGKILL)
    assert outcome(command) == [137, False, True]
    assert command.heard("notice") == [["notice", "the guardian died; the tree was killed"]]


def test_a_program_that_is_not_there(start_command: Start) -> None:
    """127 and one line that says which."""
    command = start_command(["no-such-program"], supervise=True)
    assert outcome(command) == [127, False, False]
    assert command.heard("notice") == [["notice", "no-such-program: command not found"]]
