"""C28: a test run that ends by TERM or KILL, at whatever moment, leaves no process and no lease, and needs no tidying up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from leasekeeper import Keeper
from leasekeeper.testing import EtcdServer
from tests.process.trees import MARK, marked
from tests.support import until

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's death signal"),
]

TTL_S = 6
SUITE = f"""
    import os, time
    import pytest
    from leasekeeper import Keeper

    def stay(where):
        if where == os.environ["STAY"]:
            with open("at", "w") as file:
                file.write(os.environ["LEASEKEEPER_NAMESPACE"])
            os.rename("at", "there")
            time.sleep(600)

    @pytest.fixture
    def work(etcd, keeper):
        leaked = Keeper(etcd.endpoint, namespace=etcd.namespace)
        leases = keeper.acquire("a", ttl={TTL_S}), leaked.acquire("b", ttl={TTL_S})
        stay("set-up")
        yield leases
        stay("tear-down")

    def test_it(work, faults):
        stay("test")
        if os.environ["STAY"] == "darkness":
            faults.blackhole()
            stay("darkness")
"""


@dataclass
class Run:
    """A test run that has come to where it stays, with two leases."""

    process: subprocess.Popen[str]
    namespace: str
    mark: str

    def end(self, name: str) -> str:
        """Send a signal and wait for the end of the run and of every process that it has started; what it printed."""
        self.process.send_signal(getattr(signal, name))
        output, _ = self.process.communicate(timeout=60)
        until(lambda: not marked(self.mark))
        return output


class Runs:
    """Starts test runs in a directory of their own."""

    def __init__(self, directory: Path, mark: str) -> None:
        self.directory = directory
        self.mark = mark
        self.started: list[subprocess.Popen[str]] = []
        (directory / "test_it.py").write_text(textwrap.dedent(SUITE))

    def start(self, stay: str, *options: str) -> subprocess.Popen[str]:
        """Start a run that stays where it is told."""
        self.started.append(
            subprocess.Popen(
                [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", *options, "test_it.py"],
                cwd=self.directory,
                env={**os.environ, "STAY": stay, MARK: self.mark},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return self.started[-1]

    def stay(self, stay: str, *options: str) -> Run:
        """Start a run and wait until it is there."""
        process = self.start(stay, *options)
        there = self.directory / "there"
        until(lambda: there.exists() or process.poll() is not None)
        assert process.poll() is None, process.communicate()[0]
        namespace = there.read_text()
        there.unlink()
        return Run(process, namespace, self.mark)


@pytest.fixture
def runs(tmp_path: Path, mark: str) -> Iterator[Runs]:
    """Test runs, none of which outlives the test."""
    one = Runs(tmp_path, mark)
    yield one
    for process in one.started:
        process.kill()
        process.communicate()
    until(lambda: not marked(mark))


WHERE = ["set-up", "test", "darkness", "tear-down"]


@pytest.mark.parametrize("stay", WHERE)
def test_term_gives_leases_back(runs: Runs, etcd: EtcdServer, stay: str) -> None:
    """C28: on TERM fixtures end, and when the run is over nothing is owned, not even what a test forgot, behind a fault."""
    run = runs.stay(stay, f"--leasekeeper-etcd=http://{etcd.endpoint}")
    with Keeper(etcd.endpoint, namespace=run.namespace) as keeper:
        assert sorted(keeper.names()) == ["a", "b"]
        output = run.end("SIGTERM")
        assert list(keeper.names()) == []
    assert run.process.returncode == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt" in output


@pytest.mark.parametrize("stay", WHERE)
def test_kill_leaves_leases_for_a_ttl(runs: Runs, etcd: EtcdServer, stay: str) -> None:
    """C28: after KILL nobody renews: the names are free when their TTL is out, and another run works at once."""
    run = runs.stay(stay, f"--leasekeeper-etcd=http://{etcd.endpoint}")
    run.end("SIGKILL")
    again = runs.start("nowhere", f"--leasekeeper-etcd=http://{etcd.endpoint}")
    assert "1 passed" in again.communicate(timeout=60)[0]
    with Keeper(etcd.endpoint, namespace=run.namespace) as keeper:
        until(lambda: not list(keeper.names()), timeout_s=60)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("stay", ["set-up", "tear-down"])
def test_servers_go_with_their_run(runs: Runs, stay: str, name: str) -> None:
    """C28: no server outlives its run, however that ends, and the next one starts without a hand."""
    run = runs.stay(stay)
    assert len(marked(runs.mark)) >= 2
    run.end(name)
    assert "1 passed" in runs.start("nowhere").communicate(timeout=60)[0]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_workers_go_with_their_controller(runs: Runs, etcd: EtcdServer, name: str) -> None:
    """C28: under pytest-xdist a worker whose controller has died gives its leases back and ends."""
    run = runs.stay("test", "-n", "2", f"--leasekeeper-etcd=http://{etcd.endpoint}")
    run.end(name)
    with Keeper(etcd.endpoint, namespace=run.namespace) as keeper:
        assert list(keeper.names()) == []


def test_term_that_another_thread_gets(pytester: pytest.Pytester) -> None:
    """C28: the kernel may wake any thread for a signal; the main one, which sleeps, is interrupted all the same."""
    pytester.makepyfile(
        """
        import signal, threading, time

        def test_it(etcd):
            get = lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            threading.Timer(0.2, get).start()
            time.sleep(600)
        """
    )
    result = pytester.runpytest_subprocess(timeout=60)
    assert result.ret is pytest.ExitCode.INTERRUPTED


def test_an_event_loop_keeps_its_wake_up(pytester: pytest.Pytester) -> None:
    """Who has set Python's wake-up descriptor keeps it, and TERM interrupts as well as it can without."""
    pytester.makeconftest(
        """
        import os, signal

        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        """
    )
    pytester.makepyfile(
        """
        import os, signal
        import pytest
        from conftest import writer

        def test_it(etcd):
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
            assert signal.set_wakeup_fd(writer) == writer
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_somebody_elses_handler_stays(pytester: pytest.Pytester) -> None:
    """A handler for SIGTERM that the tests' own conftest has set is left in place."""
    pytester.makeconftest("import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)")
    pytester.makepyfile(
        """
        import os, signal

        def test_it(etcd):
            os.kill(os.getpid(), signal.SIGTERM)
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_forked_child_dies_of_term(pytester: pytest.Pytester) -> None:
    """A child that a test forks off has no fixtures to end: TERM ends it as ever, however early it comes."""
    pytester.makepyfile(
        """
        import os, signal, time

        def test_it(etcd):
            for _ in range(50):
                child = os.fork()
                if child == 0:
                    time.sleep(60)
                    os._exit(0)
                os.kill(child, signal.SIGTERM)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
            assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, set())
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
