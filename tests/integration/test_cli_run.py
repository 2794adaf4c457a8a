"""`run` as a process: the lease around a program, from the queue to the end of the last process of its tree."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasekeeper import Keeper
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.commands import Command, Ended, call
from tests.raw import RawEtcd
from tests.support import tls_files, until

SHOW_VARIABLES = "import os; print(*(os.environ.get(f'LEASEKEEPER_{n}') for n in ('NAME', 'TOKEN', 'KEY', 'KEY_FILE')))"


@pytest.fixture(scope="module")
def tls_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EtcdServer, dict[str, str]]]:
    """An etcd that asks for client certificates, and the variables that a client needs."""
    files = tls_files(tmp_path_factory.mktemp("tls"))
    with EtcdServer(fsync=False, tls=files) as server:
        yield (
            server,
            {
                "LEASEKEEPER_CACERT": str(files.ca),
                "LEASEKEEPER_CERT": str(files.client_cert),
                "LEASEKEEPER_KEY": str(files.client_key),
            },
        )


def ended(command: Command) -> Ended:
    """Run it to its end."""
    with command:
        return command.end()


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def stopped(pid: int) -> bool:
    """Whether a process stands still."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_code_is_the_programs(etcd: EtcdServer, raw: RawEtcd, namespace: str, script: str, code: int) -> None:
    """The program's own status passes through, 128+N for a signal; the lease is given back and nothing is left."""
    before = set(raw.leases())
    done = ended(Command("run", "job", "--", "sh", "-c", script, endpoint=etcd.endpoint, namespace=namespace))
    assert (done.code, done.out, done.err) == (code, "", "")
    assert raw.claims(namespace) == []
    assert set(raw.leases()) <= before


@pytest.mark.parametrize(("cmd", "code"), [("/nonexistent/program", 127), ("/etc/passwd", 126)])
def test_a_program_that_cannot_start(etcd: EtcdServer, raw: RawEtcd, namespace: str, cmd: str, code: int) -> None:
    """127 when it is not there and 126 when it is no program, one line, and the lease is given back."""
    done = ended(Command("run", "job", "--", cmd, endpoint=etcd.endpoint, namespace=namespace))
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("leasekeeper: ")
    assert done.err.count("\n") == 1
    assert raw.claims(namespace) == []


def test_the_program_sees_the_lease(etcd: EtcdServer, namespace: str) -> None:
    """LEASEKEEPER_NAME, _TOKEN and _KEY are this lease's, also when there are inherited ones."""
    inherited = {"LEASEKEEPER_NAME": "old", "LEASEKEEPER_TOKEN": "1", "LEASEKEEPER_KEY": "leasekeeper/x/lease/old/1"}
    words = ["run", "job/a", "--", sys.executable, "-c", SHOW_VARIABLES]
    done = ended(Command(*words, endpoint=etcd.endpoint, namespace=namespace, env=inherited))
    assert (done.code, done.err) == (0, "")
    name, token, key, key_file = done.out.split()
    assert (name, key_file) == ("job/a", "None")
    assert int(token) > 1
    assert key.startswith(f"leasekeeper/{namespace}/lease/job%2Fa/")


def test_a_lease_inside_a_lease(etcd: EtcdServer, namespace: str) -> None:
    """A program that itself uses leasekeeper is not confused by the variables that it sees."""
    inner = [sys.executable, "-m", "leasekeeper", "run", "inner", "--", sys.executable, "-c", SHOW_VARIABLES]
    done = ended(Command("run", "outer", "--", *inner, endpoint=etcd.endpoint, namespace=namespace))
    assert (done.code, done.err) == (0, "")
    assert done.out.split()[0] == "inner"


def test_a_private_keys_variable_survives(tls_etcd: tuple[EtcdServer, dict[str, str]], namespace: str) -> None:
    """LEASEKEEPER_KEY is needed for the claim's key, so the private key's file goes on: a lease inside a lease works on TLS."""
    server, variables = tls_etcd
    inner = [sys.executable, "-m", "leasekeeper", "run", "inner", "--", sys.executable, "-c", SHOW_VARIABLES]
    done = ended(Command("run", "outer", "--", *inner, endpoint=server.url, namespace=namespace, env=variables))
    assert (done.code, done.err) == (0, "")
    assert done.out.split()[3] == variables["LEASEKEEPER_KEY"]


def test_input_and_output_pass_through(etcd: EtcdServer, namespace: str) -> None:
    """The program reads stdin and writes stdout and stderr itself; nothing is added."""
    script = "read line; echo out $line; echo err $line >&2"
    with Command("run", "job", "--", "sh", "-c", script, endpoint=etcd.endpoint, namespace=namespace) as command:
        assert command.process.stdin is not None
        command.process.stdin.write("hello\n")
        command.process.stdin.flush()
        done = command.end()
    assert (done.code, done.out, done.err) == (0, "out hello\n", "err hello\n")


def test_it_waits_for_its_turn(etcd: EtcdServer, keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """The program does not begin before the lease is owned."""
    lease = keeper.acquire("job")
    with Command("run", "job", "--", "echo", "begun", endpoint=etcd.endpoint, namespace=namespace) as command:
        command.until(lambda: len(raw.claims(namespace)) == 2)
        assert command.out == ""
        lease.release()
        assert command.end().code == 0
    assert command.out == "begun\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_program(etcd: EtcdServer, namespace: str, number: int) -> None:
    """TERM, INT, HUP and USR1 are passed on, and the program's answer to them is the exit code."""
    script = f"trap 'exit 42' {signal.Signals(number).name[3:]}; echo ready; while :; do sleep 0.05; done"
    with Command("run", "job", "--", "sh", "-c", script, endpoint=etcd.endpoint, namespace=namespace) as command:
        command.until(lambda: command.lines)
        command.signal(number)
        assert command.end().code == 42


def test_the_lease_outlives_the_last_process(etcd: EtcdServer, raw: RawEtcd, namespace: str) -> None:
    """C03: TERM first stops the work, heartbeats go on, and the lease is given back only when the tree is gone."""
    script = "trap 'sleep 1; echo done; exit 0' TERM; echo $$; while :; do sleep 0.05; done"
    words = ["run", "job", "--ttl", "2", "--", "sh", "-c", script]
    with Command(*words, endpoint=etcd.endpoint, namespace=namespace) as command:
        command.until(lambda: command.lines)
        pid = int(command.lines[0])
        command.signal(signal.SIGTERM)
        while raw.claims(namespace):
            pass
        assert not alive(pid)
        assert command.end().code == 0
    assert command.lines[1:] == ["done\n"]
    assert raw.claims(namespace) == []


def test_what_does_not_obey_is_killed_after_the_grace(etcd: EtcdServer, raw: RawEtcd, namespace: str) -> None:
    """--grace bounds how long the program may take to obey TERM."""
    script = "trap '' TERM; echo $$; while :; do sleep 0.05; done"
    words = ["run", "job", "--grace", "500ms", "--", "sh", "-c", script]
    with Command(*words, endpoint=etcd.endpoint, namespace=namespace) as command:
        command.until(lambda: command.lines)
        command.signal(signal.SIGTERM)
        assert command.end().code == 137
    assert not alive(int(command.lines[0]))
    assert raw.claims(namespace) == []


def test_loss_kills_the_program(etcd: EtcdServer, raw: RawEtcd, namespace: str) -> None:
    """C07: When the claim is deleted the tree is killed, the exit code is 76, and one line says why."""
    script = "sleep 1000 & echo $$ $!; wait"
    with Command("run", "job", "--", "sh", "-c", script, endpoint=etcd.endpoint, namespace=namespace) as command:
        command.until(lambda: command.lines)
        raw.delete(raw.claims(namespace)[0].key)
        done = command.end()
    assert done.code == 76
    assert "LOST" in done.err
    assert not any(alive(int(pid)) for pid in command.lines[0].split())


def test_a_success_does_not_hide_a_loss(etcd: EtcdServer, raw: RawEtcd, namespace: str) -> None:
    """C15: A program that ends well after its claim had been taken away ends with 76, not with 0."""
    with Command(
        "run", "job", "--", "sh", "-c", "echo; read x", endpoint=etcd.endpoint, namespace=namespace
    ) as command:
        command.until(lambda: command.lines)
        raw.delete(raw.claims(namespace)[0].key)
        assert command.process.stdin is not None
        try:
            command.process.stdin.write("\n")
            command.process.stdin.flush()
        except BrokenPipeError:
            pass  # it was killed already
        assert command.end().code == 76


def test_the_program_stands_still_without_proof(proxy: FaultProxy, namespace: str) -> None:
    """C26: While the network is away the program is frozen, and it goes on when the lease is proven again."""
    words = ["run", "job", "--ttl", "6", "--", "sh", "-c", "echo $$; read x; echo went on"]
    with Command(*words, endpoint=proxy.endpoint, namespace=namespace) as command:
        command.until(lambda: command.lines)
        pid = int(command.lines[0])
        proxy.blackhole()
        until(lambda: stopped(pid))
        proxy.heal()
        until(lambda: not stopped(pid))
        assert command.process.stdin is not None
        command.process.stdin.write("\n")
        command.process.stdin.flush()
        done = command.end()
    assert (done.code, command.lines[1:]) == (0, ["went on\n"])
    assert "SUSPENDED" in done.err
    assert "HELD again" in done.err


def test_unavailable_and_denied_before_anything_runs(namespace: str, tmp_path: Path) -> None:
    """69 when etcd cannot be reached in time; the program has not begun."""
    marker = tmp_path / "ran"
    words = ["run", "job", "--timeout", "1", "--", "touch", str(marker)]
    done = call(*words, endpoint="127.0.0.1:9", namespace=namespace)
    assert done.code == 69
    assert done.err.count("\n") == 1
    assert not marker.exists()
