"""What a command does without a terminal, without standard files, with nobody who reads, and with signals that come early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from leasekeeper import Keeper
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.commands import Command, environment
from tests.raw import RawEtcd
from tests.support import until

LIMIT_S = 50


def without(closed: str, *words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A command that a shell starts with these redirections."""
    script = f'exec "$0" -m leasekeeper "$@" {closed}'
    return subprocess.run(
        ["sh", "-c", script, sys.executable, *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "job", "--", "sh", "-c", "exit 7"), 7),
        (("ls",), 0),
        (("ls", "-o", "json"), 0),
        (("verify", "job", "5"), 1),
        (("show", "job"), 1),
        (("epoch", "show"), 0),
        (("--help",), 0),
        (("nonsense",), 2),
    ],
)
def test_closed_standard_files_change_no_exit_code(
    etcd: EtcdServer, namespace: str, closed: str, words: tuple[str, ...], code: int
) -> None:
    """A caller that gives no standard files gets the code that it would have got, and no traceback."""
    done = without(closed, *words, env=environment(etcd.endpoint, namespace))
    assert done.returncode == code
    assert "bug" not in done.stderr


def test_the_program_finds_closed_what_was_closed(etcd: EtcdServer, namespace: str) -> None:
    """What leasekeeper puts in the place of a closed file is not handed down."""
    code = "import os, sys; sys.exit(42 if not any(os.path.exists(f'/proc/self/fd/{n}') for n in (1, 2)) else 1)"
    done = without(
        ">&- 2>&-", "run", "job", "--", sys.executable, "-S", "-c", code, env=environment(etcd.endpoint, namespace)
    )
    assert done.returncode == 42


def test_nobody_who_reads_the_notes_costs_no_lease(etcd: EtcdServer, namespace: str) -> None:
    """G5 C26: With a broken pipe as stderr the program is frozen and goes on, and is not killed for the sake of a message."""
    unread, writable = os.pipe()
    os.close(unread)
    with FaultProxy(etcd.endpoint) as proxy:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "leasekeeper", "run", "job", "--ttl", "2", "--"),
                *("sh", "-c", "echo $$; trap 'exit 42' TERM; while :; do sleep 0.05; done"),
            ],
            env=environment(proxy.endpoint, namespace),
            stdout=subprocess.PIPE,
            stderr=writable,
            text=True,
        )
        os.close(writable)
        assert process.stdout is not None
        try:
            pid = int(process.stdout.readline())
            proxy.blackhole()
            until(lambda: state(pid) == "T")
            proxy.heal()
            until(lambda: state(pid) != "T")
            process.terminate()
            assert process.wait(LIMIT_S) in (42, 76)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def state(pid: int) -> str:
    """The letter that /proc shows; "" when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@pytest.mark.parametrize("command", [("run", "job", "--", "true"), ("acquire", "job")], ids=["run", "acquire"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1])
def test_a_signal_while_waiting_leaves_no_claim(
    etcd: EtcdServer, keeper: Keeper, raw: RawEtcd, namespace: str, number: signal.Signals, command: tuple[str, ...]
) -> None:
    """C10 C44: Whatever would end it makes it leave the queue first; the exit code is 128+N."""
    with keeper.lease("job"), Command(*command, endpoint=etcd.endpoint, namespace=namespace) as waiting:
        waiting.until(lambda: len(raw.claims(namespace)) == 2)
        waiting.signal(number)
        done = waiting.end()
        assert (done.code, done.err) == (128 + number, "")
        assert len(raw.claims(namespace)) == 1


def test_a_signal_while_the_lease_is_given_back_changes_nothing(etcd: EtcdServer, raw: RawEtcd, namespace: str) -> None:
    """After the program's end a signal that was meant for it neither kills the command nor changes the exit code."""
    with FaultProxy(etcd.endpoint) as proxy:
        script = "echo ready; read line; exit 42"
        words = ["run", "job", "--", "sh", "-c", script]
        with Command(*words, endpoint=proxy.endpoint, namespace=namespace) as command:
            command.until(lambda: command.lines)
            program = int(command_child(command.process.pid))
            proxy.blackhole()
            assert command.process.stdin is not None
            command.process.stdin.write("\n")
            command.process.stdin.flush()
            until(lambda: state(program) == "")
            for number in (signal.SIGUSR1, signal.SIGQUIT, signal.SIGTERM):
                command.signal(number)
            proxy.heal()
            assert command.end().code == 42
    until(lambda: raw.claims(namespace) == [])


def command_child(pid: int) -> str:
    """The pid of the program below command, sentinel and guardian."""
    for _ in range(3):
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            pid = int(children.read().split()[-1])
    return str(pid)
