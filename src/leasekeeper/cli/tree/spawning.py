"""Starting the sentinel, which starts the guardian: a bare interpreter that shares nothing with the command.

It runs `python -I -S -c`: neither site-packages nor the package's own ``__init__`` is executed, so it is up in a few
hundredths of a second and has nothing of grpc. What to run comes by the environment and the program's arguments by the
socket: the command line, which ``pkill -f`` looks at, has nothing in common with the command's own, not even the path of
the interpreter, or one kill by name could take all three processes at once.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from leasekeeper.cli.tree.launch import inherited_files
from leasekeeper.errors import ConfigError

__all__ = ["at_terminal", "inherited_ignored", "spawn_sentinel"]

# The running program, whatever its path: Python finds its own library from there, as from any symbolic link to it.
_THIS = "/proc/self/exe"

_RUN = "import os; exec(os.environ.pop('TREE_BOOT'))"
_BOOT = """
import importlib, sys, types
for name, place in (("leasekeeper", {root!r}), ("leasekeeper.cli", {cli!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [place]
importlib.import_module("leasekeeper.cli.tree.sentinel").main(*map(int, sys.argv[1:]))
"""


def spawn_sentinel() -> tuple[subprocess.Popen[bytes], socket.socket, set[signal.Signals]]:
    """The process, our end of its socket, and the signals that were blocked here before.

    Files that this process inherited stay open for the program, as for one that a shell starts; everything that was
    opened here is closed on execution, as Python does by default. Raises ConfigError where there is no interpreter to run.
    """
    if not sys.executable:
        raise ConfigError("sys.executable is empty; run needs the path of the Python interpreter")
    ours, theirs = map(_beyond_standard_files, socket.socketpair())
    with theirs:
        # The sentinel starts with all signals blocked: a Ctrl-C must not find it before it is deaf to it.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            sentinel = subprocess.Popen(
                _argv(theirs.fileno()),
                executable=_interpreter(),
                env=_env(),
                pass_fds=(theirs.fileno(), *inherited_files()),
            )
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return sentinel, ours, {signal.Signals(number) for number in blocked}


def _beyond_standard_files(end: socket.socket) -> socket.socket:
    """The same, on a descriptor that is not a standard file's, should one of those have been closed."""
    with end:
        return socket.socket(fileno=fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3))


def _argv(fd: int) -> list[str]:
    shown = _THIS if os.path.exists(_THIS) else sys.executable
    return [shown, "-I", "-S", "-c", _RUN, str(fd), str(os.getpid())]


def _interpreter() -> str:
    """The installed interpreter: one that was copied into a virtual environment finds its library only by its own path."""
    installed = getattr(sys, "_base_executable", None)
    return installed if installed and os.access(installed, os.X_OK) else sys.executable


def _env() -> dict[str, str]:
    cli = Path(__file__).parent.parent
    return {**os.environ, "TREE_BOOT": _BOOT.format(root=str(cli.parent), cli=str(cli))}


def inherited_ignored() -> tuple[int, ...]:
    """The signals that this process ignores and so do its children, those apart that Python itself ignores."""
    own = {signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)}
    return tuple(
        int(number)
        for number in sorted(signal.valid_signals())
        if number not in own and signal.getsignal(number) == signal.SIG_IGN
    )


def at_terminal() -> bool:
    """Whether this process is in the foreground and both reads from and writes to the terminal.

    A part of a pipeline is not: another part may need the terminal, as a pager does.
    """
    try:
        return all(os.tcgetpgrp(fd) == os.getpgrp() for fd in (0, 1))
    except OSError:
        return False
