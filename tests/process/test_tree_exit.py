"""What the program sees, and how its end is reported: as if a shell had started it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from leasekeeper.cli.tree.control import Exit, Tree, TreeState
from leasekeeper.clock import boottime
from leasekeeper.errors import ConfigError
from tests.process.trees import SRC, Command, grow, members, python, watcher

Start = Callable[..., Command]


@pytest.mark.usefixtures("mark")
@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("kill -INT $$", 130)],
)
def test_the_status_is_the_programs_own(script: str, status: int) -> None:
    """A program's status, or 128+N for signal N, is what the exit says, and that nobody here killed it."""
    with grow(["sh", "-c", script]) as tree:
        assert tree.wait(30) == Exit(status, killed_by_us=False)
        assert tree.state is TreeState.GONE


@pytest.mark.usefixtures("mark")
@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("no-such-program-anywhere", 127, "command not found"),
        ("/no/such/file", 127, "No such file"),
        ("/etc/passwd", 126, "Permission denied"),
        ("/etc", 126, "Permission denied"),
    ],
)
def test_a_program_that_cannot_start_has_a_shells_status(name: str, status: int, reason: str) -> None:
    """127 for a program that is not there and 126 for one that cannot be executed, with the reason in words."""
    with grow([name]) as tree:
        result = tree.wait(30)
    assert result is not None
    assert (result.status, result.killed_by_us) == (status, False)
    assert result.fault.startswith(f"{name}: {reason}")


@pytest.mark.usefixtures("mark")
def test_a_script_without_interpreter_line_is_run_by_sh(tmp_path: Path) -> None:
    """A text file that is executable runs as it does from a shell, found on the PATH of the given environment."""
    script = tmp_path / "greet-somebody"
    script.write_text('test "$1" = world && exit 5\n')
    script.chmod(0o755)
    now_s = boottime()
    env = {**os.environ, "PATH": f"/nonexistent:{tmp_path}:{os.environ['PATH']}"}
    with Tree.spawn(["greet-somebody", "world"], env=env, pause_at_s=now_s + 99, end_at_s=now_s + 99) as tree:
        assert tree.wait(30) == Exit(5, killed_by_us=False)


def test_nothing_to_run_is_a_configuration_error() -> None:
    """An empty command line is refused before anything is started."""
    with pytest.raises(ConfigError):
        Tree.spawn([], env={}, pause_at_s=1.0, end_at_s=2.0)


def test_a_pause_after_the_end_is_refused() -> None:
    """Deadlines in the wrong order are an error that names both."""
    with pytest.raises(ValueError, match=r"pause_at_s=2\.0.*end_at_s=1\.0"):
        Tree.spawn(["true"], env={}, pause_at_s=2.0, end_at_s=1.0)


def test_a_mebibyte_goes_through(start_command: Start) -> None:
    """Stdin and stdout are the command's own: 1 MiB comes out as it went in, and the pipes end when the program does."""
    data = os.urandom(1024 * 1024)
    command = start_command(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    output, _ = command.process.communicate(data, timeout=50)
    assert output == data
    assert command.process.returncode == 0


def test_a_pipe_ends_when_the_program_closes_it(start_command: Start) -> None:
    """Neither guardian nor sentinel holds a file of the program's open: the reader sees the end while the program lives."""
    readable, writable = os.pipe()
    program = python("import os, sys, time; os.close(int(sys.argv[1])); time.sleep(3600)", str(writable))
    command = start_command(program, pass_fds_too=(writable,))
    os.close(writable)
    with open(readable, "rb") as pipe:
        # The command itself had a copy, like any program that starts another; it closes it when told to.
        command.order("forget")
        assert pipe.read() == b""
    assert not command.heard("Exited")
    command.order("end")
    command.until_heard("exit")


_FDS = "import json, os; print(json.dumps([fd for fd in range(256) if os.path.exists(f'/proc/self/fd/{fd}')]))"


def test_no_descriptor_of_ours_reaches_the_program(start_command: Start) -> None:
    """The program has the three standard files and what the command itself had inherited, and nothing else."""
    given, other = os.pipe()
    command = start_command(python(_FDS), stdout=subprocess.PIPE, pass_fds_too=(given,))
    output, _ = command.process.communicate(timeout=50)
    os.close(given)
    os.close(other)
    assert sorted(json.loads(output)) == [0, 1, 2, given]


def test_closed_standard_files_stay_closed(start_command: Start) -> None:
    """A command without standard files runs its program without: no file of ours takes their numbers."""
    readable, writable = os.pipe()
    close = "import os, sys; [os.close(fd) for fd in range(3)]; os.execv(sys.argv[1], sys.argv[1:])"
    say = (
        f"import os; os.write({writable}, repr([os.path.exists(f'/proc/self/fd/{{fd}}') for fd in range(3)]).encode())"
    )
    command = start_command(python(say), before=python(close), pass_fds_too=(writable,))
    command.until_heard("exit")
    os.close(writable)
    with open(readable, "rb") as pipe:
        assert pipe.read() == b"[False, False, False]"


# The C library keeps signals 32 and 33 for itself; its posix_spawn, which Python uses from 3.13 on, ignores them.
_OURS = ~(0b11 << 31)


def test_signals_are_plain(start_command: Start) -> None:
    """No signal is blocked or ignored in the program, not even those that Python ignores."""
    command = start_command(["sh", "-c", "exec grep -E '^Sig(Blk|Ign)' /proc/self/status"], stdout=subprocess.PIPE)
    output, _ = command.process.communicate(timeout=50)
    names, masks = output.split()[::2], output.split()[1::2]
    assert names == [b"SigBlk:", b"SigIgn:"]
    assert [int(mask, 16) & _OURS for mask in masks] == [0, 0]


def test_what_nohup_ignores_stays_ignored(start_command: Start) -> None:
    """A signal that the command was started with ignored is ignored by the program too, as under nohup."""
    command = start_command(
        ["grep", "SigIgn", "/proc/self/status"],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    output, _ = command.process.communicate(timeout=50)
    assert int(output.split()[1], 16) & _OURS == 1 << (signal.SIGHUP - 1)


@pytest.mark.usefixtures("mark")
def test_the_environment_is_the_one_given(tmp_path: Path) -> None:
    """The program sees the environment it was given, odd bytes included, and none of ours."""
    seen = tmp_path / "seen"
    env = {"PATH": os.environ["PATH"], "ODD": "a\udcff\n", "LEASEKEEPER_TOKEN": "7"}
    now_s = boottime()
    with Tree.spawn(
        ["sh", "-c", f"cat /proc/$$/environ >{seen}"], env=env, pause_at_s=now_s + 99, end_at_s=now_s + 99
    ) as tree:
        tree.wait(30)
    assert sorted(seen.read_bytes().rstrip(b"\0").split(b"\0")) == [
        b"LEASEKEEPER_TOKEN=7",
        b"ODD=a\xff\n",
        b"PATH=" + os.environ["PATH"].encode(),
    ]


def test_the_program_leads_its_own_group(mark: str) -> None:
    """Program, guardian, sentinel and command are in four process groups; only the sentinel left the session."""
    with grow(["sleep", "3600"]) as tree:
        while not tree.pid:
            tree.pump(1.0)
        (program,) = members(mark)
        assert program.pid == tree.pid == os.getpgid(tree.pid)
        assert len({os.getpgid(0), os.getpgid(tree.guardian_pid), tree.pid}) == 3
        assert os.getsid(tree.pid) == os.getsid(tree.guardian_pid) == os.getsid(0)
        sentinel = watcher(mark, "tree-sentinel")
        assert os.getsid(sentinel) == os.getpgid(sentinel) == sentinel


def test_the_guardian_shares_nothing_with_grpc() -> None:
    """Importing all that guardian and sentinel need, as they do, brings neither grpc nor the package's own top."""
    code = "import sys, leasekeeper.cli.tree.sentinel; print('\\n'.join(sys.modules))"
    boot = (
        "import sys, types\n"
        "for name, place in (('leasekeeper', sys.argv[1]), ('leasekeeper.cli', sys.argv[1] + '/cli')):\n"
        "    sys.modules[name] = types.ModuleType(name); sys.modules[name].__path__ = [place]\n"
    )
    import leasekeeper.clock

    root = str(Path(leasekeeper.clock.__file__).parent)
    ran = subprocess.run(python(boot + code, root), capture_output=True, text=True, check=True)
    ours = {name for name in ran.stdout.split() if name.startswith("leasekeeper") and ".tree" not in name}
    assert ours == {"leasekeeper", "leasekeeper.cli", "leasekeeper.clock"}
    assert "grpc" not in ran.stdout


_TOO_LATE = """
import os
from leasekeeper.cli.tree.launch import fork_program, outcome
from leasekeeper.cli.tree.messages import Start
from leasekeeper.clock import boottime
now_s = boottime()
start = Start(("touch", os.environ["TOUCHED"]), dict(os.environ), now_s, now_s, 1.0, (), (), 0, False)
for pause_at_s in (now_s, now_s + 60.0):
    launched = fork_program(start, pause_at_s=pause_at_s, terminal=None)
    os.waitpid(launched.pid, 0)
    failure = outcome(launched.report_fd)
    print(failure and failure.text, os.path.exists(os.environ["TOUCHED"]))
"""


def test_the_child_itself_looks_at_the_clock_last(tmp_path: Path) -> None:
    """G3: a child that was forked in time and is late when it would begin does not begin."""
    env = {**os.environ, "PYTHONPATH": SRC, "TOUCHED": str(tmp_path / "touched")}
    ran = subprocess.run([sys.executable, "-c", _TOO_LATE], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["too late False", "None True"]
