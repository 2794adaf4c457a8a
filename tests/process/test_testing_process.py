"""Servers under test and the process that started them: neither outlives or harms what it must not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from leasekeeper.testing import EtcdServer, FaultProxy
from tests.support import until

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's death signal")

STARTER = """
import sys, threading, time
from leasekeeper.testing import EtcdServer

server = EtcdServer(fsync=False)
starter = threading.Thread(target=server.start)
starter.start()
starter.join()
print(server.pid, server.endpoint, flush=True)
time.sleep(600)
"""


def is_gone(pid: int) -> bool:
    """True when no such process runs (one that nobody has reaped yet does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def start_in_another_process(scratch: Path) -> tuple[subprocess.Popen[str], int, str]:
    """Start Python that starts etcd in a thread which then ends; return it, etcd's pid and endpoint."""
    environment = {**os.environ, "TMPDIR": str(scratch)}  # nobody will be left to remove the data
    starter = subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True, env=environment)
    assert starter.stdout is not None
    pid, endpoint = starter.stdout.readline().split()
    return starter, int(pid), endpoint


@linux_only
@pytest.mark.parametrize("frozen", [False, True])
def test_a_server_dies_with_a_killed_starter(frozen: bool, tmp_path: Path) -> None:
    """SIGKILL for the process that started etcd ends etcd too, also a frozen one."""
    starter, pid, _ = start_in_another_process(tmp_path)
    with starter:
        if frozen:
            os.kill(pid, signal.SIGSTOP)
        starter.kill()
        starter.wait(30)
        until(lambda: is_gone(pid))


@linux_only
def test_a_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    """The death signal counts from the process, not from the thread that called start()."""
    starter, pid, endpoint = start_in_another_process(tmp_path)
    with starter:
        # The thread ended before the line was printed. Too short a watch here hides a fault, but fails no test.
        time.sleep(0.5)
        assert not is_gone(pid)
        host, port = endpoint.split(":")
        socket.create_connection((host, int(port)), timeout=30).close()
        starter.terminate()
        starter.wait(30)
        until(lambda: is_gone(pid))


def run_in_fork(body: str) -> None:
    """Run a program that forks, in a process of its own: forking the test runner would be unkind."""
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_exit_of_a_forked_child_leaves_the_server_alone() -> None:
    """A child that forks off and leaves the with statement ends nothing of its parent's and removes no data."""
    run_in_fork(
        """
import os, sys
from leasekeeper.testing import EtcdServer

with EtcdServer(fsync=False) as server:
    child = os.fork()
    if child == 0:
        sys.exit(0)
    os.waitpid(child, 0)
    assert server.is_running
    server.wait_ready(30)
    member = server.status().member_id
    server.restart()
    assert server.status().member_id == member
"""
    )


def test_a_reset_is_real_although_a_child_was_forked() -> None:
    """A forked child holds no copy of the proxy's sockets, so cut() resets what the parent had open."""
    run_in_fork(
        """
import os, socket, time
from leasekeeper.testing import FaultProxy

listener = socket.create_server(("127.0.0.1", 0))
with FaultProxy(f"127.0.0.1:{listener.getsockname()[1]}") as proxy:
    host, port = proxy.endpoint.split(":")
    client = socket.create_connection((host, int(port)), timeout=20)
    server, _ = listener.accept()
    child = os.fork()
    if child == 0:
        client.close(), server.close(), listener.close()
        time.sleep(60)
        os._exit(0)
    try:
        proxy.cut()
        try:
            client.recv(1)
        except ConnectionResetError:
            pass
        else:
            raise AssertionError("not reset")
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
"""
    )


def test_a_forked_child_can_start_a_server_of_its_own() -> None:
    """After fork the child has a spawner of its own."""
    run_in_fork(
        """
import os
from leasekeeper.testing import EtcdServer

with EtcdServer(fsync=False):
    child = os.fork()
    if child == 0:
        with EtcdServer(fsync=False) as own:
            assert own.status().leader_id
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    )


def test_threads_are_named_daemons_and_end_with_their_proxy() -> None:
    """Every thread is a named daemon, and a closed proxy leaves none behind."""
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, FaultProxy(f"127.0.0.1:{listener.getsockname()[1]}", name="mine"):
        [thread] = [one for one in threading.enumerate() if one.name == "leasekeeper-proxy-mine"]
        assert thread.daemon
    assert not thread.is_alive()


def test_many_starts_leave_no_descriptor_open() -> None:
    """Starting and ending a server and a proxy again and again keeps the number of open files."""

    def once() -> int:
        with EtcdServer(fsync=False) as server, FaultProxy(server.endpoint):
            pass
        return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0

    first = once()
    assert [once() for _ in range(3)] == [first] * 3
