"""At a terminal: keys reach the program once, a shell can stop and continue the job, and the terminal is left as it was.

A real shell with job control runs on a real pseudo-terminal; the tests type.
"""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import signal
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.trees import HERE, SRC, STILL, Seen, look, marked, members, none_left, python
from tests.support import until

CTRL_C, CTRL_Z, CTRL_BACKSLASH = "\x03", "\x1a", "\x1c"


class Typist:
    """An interactive shell on a terminal; what it prints is kept."""

    def __init__(self, argv: list[str]) -> None:
        self.screen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvp(argv[0], argv)
        os.set_blocking(self.fd, False)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.fd, text.encode())

    def run(self, line: str) -> None:
        """A line and Enter."""
        self.type(line + "\n")

    def read(self) -> str:
        """All that was printed so far."""
        while select.select([self.fd], [], [], 0)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                break
            if not data:
                break
            self.screen += data.decode(errors="replace")
        return self.screen

    def sees(self, text: str, count: int = 1) -> None:
        """Wait until ``text`` has been printed ``count`` times."""

        def printed() -> bool:
            return self.read().count(text) >= count

        try:
            until(printed)
        except AssertionError:
            raise AssertionError(f"{text!r} was not printed {count} times; the screen: {self.screen!r}") from None

    def owner(self) -> int:
        """The foreground process group."""
        return os.tcgetpgrp(self.fd)

    def is_sane(self) -> bool:
        """Whether keys make signals, lines are edited and typing is echoed."""
        wanted = termios.ISIG | termios.ICANON | termios.ECHO
        return bool(termios.tcgetattr(self.fd)[3] & wanted == wanted)

    def jobs(self, mark: str) -> list[Seen]:
        """The members of trees that this shell runs."""
        return [seen for seen in members(mark) if seen.pid != self.pid]

    def close(self) -> None:
        """Hang up."""
        os.close(self.fd)
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self.pid, 0)


@pytest.fixture
def shell(mark: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Typist]:
    """Bash with job control, without anybody's start-up files."""
    monkeypatch.setenv("PYTHONPATH", SRC)
    monkeypatch.setenv("PS1", "$ ")
    typist = Typist(["bash", "--norc", "--noprofile", "--noediting", "-i"])
    typist.sees("$ ")
    # The prompt is cut in two so that its echo does not look like its output.
    typist.run("trap 'echo shell in''terrupted' INT; st() { echo sta''tus=$?=; }")
    yield typist
    typist.close()
    until(lambda: none_left(mark))


def command(
    *argv: str, supervise: bool = True, good_s: float = 3600.0, grace_s: float = 5.0, reports: str = "/dev/null"
) -> str:
    """The shell's line that runs a command."""
    settings = {
        "orders": "/dev/null",
        "reports": reports,
        "good_s": good_s,
        "grace_s": grace_s,
        "renew": True,
        "supervise": supervise,
        "too": (),
    }
    return shlex.join([sys.executable, str(HERE / "tree_command.py"), json.dumps(settings), *argv])


_NOTING = """
import os, signal, sys, time
def note(number, frame):
    with open(sys.argv[1], "a") as log: log.write(f"{signal.Signals(number).name}\\n")
    if number == signal.SIGQUIT: os._exit(3)
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, note)
print("rea" + "dy", flush=True)
while True: time.sleep(3600)
"""


def test_ctrl_c_reaches_the_program_once(shell: Typist, tmp_path: Path) -> None:
    """Each Ctrl-C is one INT for the program, and Ctrl-Backslash one QUIT; its status comes back to the shell."""
    log = tmp_path / "log"
    shell.run(command(*python(_NOTING, str(log))) + "; st")
    shell.sees("ready")
    for count in (1, 2, 3):
        shell.type(CTRL_C)
        until(lambda: log.exists() and len(log.read_text().split()) == count)  # noqa: B023
    shell.type(CTRL_BACKSLASH)
    shell.sees("status=3=")
    assert log.read_text().split() == ["SIGINT", "SIGINT", "SIGINT", "SIGQUIT"]


def test_ctrl_c_ends_program_and_script(shell: Typist) -> None:
    """A program that dies by Ctrl-C is status 130, and a script around it got the interrupt as well."""
    shell.run(command("sleep", "3600") + "; st")
    until(lambda: shell.owner() not in (shell.pid, 0) and look(shell.owner()) and look(shell.owner()).name == "sleep")  # type: ignore[union-attr]
    shell.type(CTRL_C)
    shell.sees("status=130=")
    shell.run("sh -c " + shlex.quote(command("sleep", "3600") + "; echo went o''n") + "; st")
    until(lambda: (seen := look(shell.owner())) and seen.name == "sleep")
    shell.type(CTRL_C)
    shell.sees("status=130=", 2)
    assert "went on" not in shell.screen


def test_the_terminal_goes_to_the_program_and_back(shell: Typist, mark: str) -> None:
    """The program reads what is typed and owns the terminal; afterwards the shell has it again."""
    shell.run(command("sh", "-c", 'read line; echo "got:$line:"') + "; st")
    until(lambda: (seen := look(shell.owner())) and seen.name == "sh")
    shell.run("some words")
    shell.sees("got:some words:")
    shell.sees("status=0=")
    until(lambda: shell.owner() == shell.pid)


def test_ctrl_z_and_fg(shell: Typist, mark: str) -> None:
    """Ctrl-Z stops the job for the shell, fg continues it and the program reads on."""
    shell.run(command("cat") + "; st")
    until(lambda: (seen := look(shell.owner())) and seen.name == "cat")
    shell.run("one")
    shell.sees("one", 2)
    for count in (1, 2, 3):
        shell.type(CTRL_Z)
        shell.sees("Stopped", count)
        until(lambda: shell.owner() == shell.pid)
        until(lambda: {seen.state for seen in shell.jobs(mark)} == {"T"})
        shell.run("fg; st")
        until(lambda: (seen := look(shell.owner())) and seen.name == "cat")
        shell.run(f"again{count}")
        shell.sees(f"again{count}", 2)
    shell.type("\x04")
    shell.sees("status=0=")


def test_after_a_long_stop_authority_comes_first(shell: Typist, mark: str, tmp_path: Path) -> None:
    """C02 at a terminal: a job that was stopped past its authority continues only with new one, and then does."""
    number = tmp_path / "number"
    code = (
        "import sys, time\n"
        "from time import clock_gettime as now, CLOCK_BOOTTIME as B\n"
        "file = open(sys.argv[1], 'w')\n"
        "while True: file.seek(0); file.write(str(now(B))); file.flush()\n"
    )
    shell.run(command(*python(code, str(number)), good_s=0.6))
    until(lambda: number.exists() and number.read_text())
    shell.type(CTRL_Z)
    shell.sees("Stopped")
    stopped_at = number.read_text()
    time.sleep(1.5)
    assert number.read_text() == stopped_at
    shell.run("fg")
    until(lambda: number.read_text() != stopped_at)
    shell.type(CTRL_C)
    until(lambda: not shell.jobs(mark))


def test_a_background_job_reads_after_fg(shell: Typist, mark: str) -> None:
    """A job in the background runs; when it reads from the terminal the shell sees it stopped, and fg lets it read."""
    shell.run(command("sh", "-c", "echo un''derway; read line; echo \"got:$line:\"") + " &")
    shell.sees("underway")

    def told_of_the_stop() -> bool:
        shell.run("jobs")
        return "Stopped" in shell.read()

    until(told_of_the_stop)
    shell.run("fg")
    until(lambda: (seen := look(shell.owner())) and seen.name == "sh")
    shell.run("words")
    shell.sees("got:words:")


def test_a_pipeline_shares_the_terminal(shell: Typist, mark: str) -> None:
    """In a pipeline another part keeps the terminal and its keys work; Ctrl-C reaches all parts, the program once."""
    shell.run(
        command("sh", "-c", "trap 'echo IN''T; exit 0' INT; echo be''gun; while :; do sleep 0.01; done") + " | cat; st"
    )
    shell.sees("begun")
    shell.type(CTRL_C)
    shell.sees("status=130=")
    until(lambda: not shell.jobs(mark))


def test_ctrl_z_stops_a_pipeline(shell: Typist, mark: str) -> None:
    """In a pipeline, where the command keeps the terminal, Ctrl-Z stops the program as well, and fg continues it; bg too."""
    shell.run(command("sh", "-c", "while :; do sleep 0.01; done") + " | cat")
    until(lambda: len(shell.jobs(mark)) >= 2)
    home = shell.owner()
    for count, words in enumerate((["fg"], ["bg", "fg"], ["fg"]), start=1):
        shell.type(CTRL_Z)
        shell.sees("Stopped", count)
        until(lambda: {seen.state for seen in shell.jobs(mark)} <= set(STILL))
        for word in words:
            shell.run(word)
            until(lambda: "T" not in {seen.state for seen in shell.jobs(mark)})
        until(lambda: shell.owner() == home)
    shell.type(CTRL_C)
    until(lambda: not shell.jobs(mark))


def test_a_program_deep_in_a_pipeline_gets_the_terminal_on_demand(shell: Typist, mark: str) -> None:
    """A program whose output is a pipe may still read from the terminal: it is lent when it does."""
    shell.run(command("sh", "-c", 'read line; echo "got:$line:"') + " | cat; st")
    until(lambda: (seen := look(shell.owner())) and seen.name == "sh")
    shell.run("words")
    shell.sees("got:words:")
    shell.sees("status=0=")


_RAW = "import termios, tty, time; tty.setraw(0); print('un' + 'cooked', flush=True); time.sleep(3600)"


def test_a_killed_program_leaves_the_terminal_sane(shell: Typist, mark: str) -> None:
    """A program that dies in raw mode does not leave the terminal raw."""
    shell.run(command(*python(_RAW)) + "; st")
    shell.sees("uncooked")
    assert not shell.is_sane()
    (program,) = shell.jobs(mark)
    os.kill(program.pid, signal.SIGKILL)
    shell.sees("status=137=")
    until(shell.is_sane)


@pytest.mark.parametrize("victim", ["tree-guardian", "tree-sentinel", "tree_command"])
def test_whoever_dies_the_terminal_is_usable(shell: Typist, mark: str, victim: str) -> None:
    """Kill -9 of guardian, or command, while the program owns a raw terminal: the shell works afterwards, in sane mode."""
    shell.run(command(*python(_RAW)) + "; st")
    shell.sees("uncooked")
    for seen in marked(mark):
        if victim in (seen.name, *seen.line.replace("/", " ").replace(".py", " ").split()):
            os.kill(seen.pid, signal.SIGKILL)
    if victim == "tree-sentinel":
        os.kill(shell.jobs(mark)[0].pid, signal.SIGKILL)
    shell.sees("status=137=")
    until(shell.is_sane)
    shell.run("echo us''able")
    shell.sees("usable")


def test_an_interactive_shell_runs_as_the_program(shell: Typist, mark: str) -> None:
    """A shell with job control works inside: its own jobs are stopped and continued without us noticing."""
    shell.run(command("bash", "--norc", "--noprofile", "--noediting", "-i") + "; st")
    shell.run("echo in''side")
    shell.sees("inside")
    shell.run("sleep 3600")
    until(lambda: (seen := look(shell.owner())) and seen.name == "sleep")
    shell.type(CTRL_Z)
    shell.sees("Stopped")
    shell.run("echo still in''side")
    shell.sees("still inside")
    shell.run("fg")
    until(lambda: (seen := look(shell.owner())) and seen.name == "sleep")
    shell.type(CTRL_C)
    shell.run("exit 5")
    shell.sees("status=5=")


def test_a_terminal_stop_that_nobody_could_undo_is_undone(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a shell above (a container's first process) Ctrl-Z is without effect, as it is for any program there."""
    monkeypatch.setenv("PYTHONPATH", SRC)
    typist = Typist(shlex.split(command("cat")))
    try:
        until(lambda: (seen := look(typist.owner())) and seen.name == "cat")
        typist.type(CTRL_Z)
        typist.run("one")
        typist.sees("one", 2)
    finally:
        typist.close()
    until(lambda: none_left(mark))


def test_a_hang_up_ends_the_job(mark: str, monkeypatch: pytest.MonkeyPatch, shell: Typist) -> None:
    """A closed terminal hangs up on the program, and all is gone."""
    shell.run(command("sleep", "3600"))
    until(lambda: (seen := look(shell.owner())) and seen.name == "sleep")
    os.kill(shell.pid, signal.SIGHUP)
    until(lambda: not shell.jobs(mark))
