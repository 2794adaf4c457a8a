"""Starting the program: a fork whose child becomes a plain process and then the program.

The child has what a shell would give it: its own process group, the terminal if it is meant to have it, the command's
working directory, umask and open files, default signals (or those that the command itself inherited ignored, as under
``nohup``), and the environment it was sent. It also asks the kernel to kill it when the guardian dies.

What it could not do it tells through a pipe that closes by itself when the program begins.
"""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from leasekeeper.cli.tree import kernel, proc
from leasekeeper.cli.tree.messages import Start
from leasekeeper.cli.tree.terminal import Terminal
from leasekeeper.clock import boottime

__all__ = [
    "TOO_LATE",
    "Failure",
    "Launched",
    "fork_program",
    "inherited_files",
    "let_go",
    "outcome",
]

NOT_FOUND = 127
NOT_EXECUTABLE = 126
TOO_LATE = "too late"
_REPORT_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no program, and the exit status that a shell gives for that."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class Launched:
    """A child on its way to become the program; ``report_fd`` ends when it is."""

    pid: int
    report_fd: int


def fork_program(start: Start, *, pause_at_s: float, terminal: Terminal | None, nice: int | None = None) -> Launched:
    """Fork; the child executes the program unless ``pause_at_s`` has passed by then. OSError when there is no fork."""
    guardian = os.getpid()
    for_us, for_child = os.pipe()
    pid = os.fork()
    if pid == 0:
        if nice is not None:
            kernel.take_turns(nice)
        _become(start, guardian=guardian, pause_at_s=pause_at_s, terminal=terminal, report_fd=for_child)
    os.close(for_child)
    os.set_blocking(for_us, False)
    _lead_group(pid)
    return Launched(pid, for_us)


def outcome(report_fd: int) -> Failure | None:
    """What became of the launch: None for success; BlockingIOError while that is open."""
    report = os.read(report_fd, _REPORT_BYTES_MAX)
    if not report:
        return None
    number, text = json.loads(report)
    status = NOT_FOUND if number in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE
    return Failure(status, str(text))


def inherited_files() -> list[int]:
    """Files beyond the standard three that this process was given and that go on to the program."""
    fds = os.listdir("/proc/self/fd") if proc.listable() else map(str, range(3, 1024))
    return [fd for fd in map(int, fds) if fd > 2 and _is_inheritable(fd)]


def let_go(files: Iterable[int]) -> None:
    """Close these and the standard three: a pipe must end when the program closes its end of it."""
    with open(os.devnull, "r+b", buffering=0) as nothing:
        for standard in range(3):
            os.dup2(nothing.fileno(), standard)
    for fd in files:
        os.close(fd)


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def _become(start: Start, *, guardian: int, pause_at_s: float, terminal: Terminal | None, report_fd: int) -> None:
    """Never returns."""
    try:
        _lead_group(0)
        if terminal is not None and start.lend:
            os.tcsetpgrp(terminal.fd, os.getpid())
        _plain_signals(start)
        kernel.die_with_parent()
        if os.getppid() != guardian:
            os._exit(NOT_EXECUTABLE)
        # The last look at the clock: a guardian that was stopped on its way here must not start anything.
        if boottime() >= pause_at_s:
            _tell(report_fd, 0, TOO_LATE)
            os._exit(NOT_EXECUTABLE)
        _execute(start.argv, start.env)
    except OSError as error:
        _tell(report_fd, error.errno or 0, f"{start.argv[0]}: {error.strerror or error}")
    except BaseException as error:  # noqa: BLE001 - the child must not go on as a second guardian
        _tell(report_fd, 0, f"{start.argv[0]}: {error}")
    finally:
        os._exit(NOT_EXECUTABLE)


def _tell(fd: int, number: int, text: str) -> None:
    os.write(fd, json.dumps([number, text[:500]]).encode("ascii"))


def _lead_group(pid: int) -> None:
    # Parent and child both ask, whoever comes first; once the program runs the kernel refuses the parent's request.
    try:
        os.setpgid(pid, pid)
    except OSError:
        pass


def _plain_signals(start: Start) -> None:
    ignored = set(start.ignored)
    for number in signal.valid_signals():
        if number in (signal.SIGKILL, signal.SIGSTOP):
            continue
        try:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        except (OSError, ValueError):
            pass  # reserved by the C library
    signal.pthread_sigmask(signal.SIG_SETMASK, start.blocked)


def _execute(argv: tuple[str, ...], env: Mapping[str, str]) -> None:
    """Execute as a shell does: search PATH; a text file without an interpreter line goes to /bin/sh. Raises OSError."""
    failure: OSError = FileNotFoundError(errno.ENOENT, "command not found")
    for path in _candidates(argv[0], env):
        try:
            os.execve(path, argv, env)
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                os.execve("/bin/sh", ["/bin/sh", path, *argv[1:]], env)
            # As in a shell: go on searching, but remember that there was a file of that name.
            if error.errno not in (errno.ENOENT, errno.ENOTDIR) or "/" in argv[0]:
                failure = error
    raise failure


def _candidates(name: str, env: Mapping[str, str]) -> Iterator[str]:
    if "/" in name:
        yield name
        return
    for directory in env.get("PATH", os.defpath).split(os.pathsep):
        yield os.path.join(directory or ".", name)
