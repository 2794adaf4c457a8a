"""One child process that never outlives this one, and the signals that a test sends it.

On Linux the child is killed by the kernel when this process ends, also by ``kill -9``. The kernel
counts the *thread* that forked as the parent, so every child is forked by one thread that lives as
long as the process. Elsewhere a child is killed at interpreter exit, and a ``kill -9`` of this
process leaves it running.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import IO

from leasekeeper.errors import Misuse, Unavailable

LAUNCHER = Path(__file__).with_name("launcher.py")
SPAWN_TIMEOUT_S = 30.0
REAP_TIMEOUT_S = 10.0
STOPPED_TIMEOUT_S = 10.0
POLL_S = 0.005
KEPT_VARIABLES = ("ETCD_UNSUPPORTED_ARCH",)


class ChildProcess:
    """A running program: its pid, whether it lives, and how to stop, kill, freeze and thaw it."""

    def __init__(self, command: list[str], *, log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._popen = _spawn(command, output)
        self.pid = self._popen.pid
        self._finalizer = weakref.finalize(self, _kill_own, self._popen, os.getpid())

    @property
    def alive(self) -> bool:
        """True while the program runs (a frozen one does)."""
        return self._popen.poll() is None

    def signal(self, name: str) -> None:
        """Send a signal by name; Misuse where the platform has no such signal."""
        number = getattr(signal, name, None)
        if number is None:
            raise Misuse(f"this platform has no {name}: a process cannot be frozen here")
        self._popen.send_signal(number)

    def freeze(self) -> None:
        """Stop its execution as a paused machine would: sockets stay open, nobody answers.

        Returns when every thread of it has stopped, which takes a moment after the signal.
        """
        self.signal("SIGSTOP")
        deadline = time.monotonic() + STOPPED_TIMEOUT_S
        while self.alive and not _has_stopped(self.pid):
            if time.monotonic() >= deadline:
                raise Unavailable(f"process {self.pid} does not stop", operation="freeze")
            time.sleep(POLL_S)

    def thaw(self) -> None:
        """Let a frozen program go on."""
        self.signal("SIGCONT")

    def stop(self, timeout_s: float) -> None:
        """End it: TERM (and CONT, so that a frozen one hears it), after ``timeout_s`` KILL."""
        if self.alive:
            self._popen.terminate()
            if hasattr(signal, "SIGCONT"):
                self._popen.send_signal(signal.SIGCONT)
            try:
                self._popen.wait(timeout_s)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self) -> None:
        """End it at once, as a power cut would, and reap it."""
        if self.alive:
            self._popen.kill()
        self._popen.wait(REAP_TIMEOUT_S)
        self._finalizer.detach()

    def save_log(self) -> None:
        """Nothing to do: the program writes its log itself."""

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._popen.poll()


def clean_environment() -> dict[str, str]:
    """This process's environment without the variables that etcd and etcdctl take for flags."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ETCD_", "ETCDCTL_")) or name in KEPT_VARIABLES
    }


class _Spawner:
    """The thread that forks: it must live as long as the process, see the module's head."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[tuple[list[str], IO[bytes], Future[subprocess.Popen[bytes]]]] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None

    def spawn(self, command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="leasekeeper-testing-spawner", daemon=True)
                self._thread.start()
        done: Future[subprocess.Popen[bytes]] = Future()
        self._orders.put((command, output, done))
        return done.result(SPAWN_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            command, output, done = self._orders.get()
            try:
                done.set_result(_popen(command, output))
            except OSError as error:
                done.set_exception(error)


def _popen(command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    if sys.platform != "win32":
        command = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *command]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=clean_environment(),
        # A session of its own: Ctrl-C in the terminal ends the tests, which then end the server.
        start_new_session=True,
    )


def _spawn(command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return _spawner.spawn(command, output)
    except OSError as error:
        raise Unavailable(f"cannot start {command[0]}: {error}", operation="start") from error


def _kill_own(popen: subprocess.Popen[bytes], owner_pid: int) -> None:
    """Kill what was forgotten; a forked copy of the owner must not kill the original's child."""
    if os.getpid() == owner_pid and popen.poll() is None:
        popen.kill()
        popen.wait(REAP_TIMEOUT_S)


def _has_stopped(pid: int) -> bool:
    """True when the kernel has reported the child as stopped; without waitid there is only the signal to trust."""
    if sys.platform == "win32" or not hasattr(os, "waitid"):
        return True
    # The report is left where it is, so that asking again about a stopped child says the same.
    return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None


def _renew_spawner() -> None:
    global _spawner  # noqa: PLW0603 -- threads do not survive fork: the child needs its own
    _spawner = _Spawner()


_spawner = _Spawner()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_spawner)
