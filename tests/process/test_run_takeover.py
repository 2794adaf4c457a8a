"""Two commands on one name and a real etcd: whatever happens to the first, the work of the two never overlaps.

The work notes its token and the time on the clock that both share, as fast as it can; the notes are the evidence.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasekeeper.testing import EtcdServer
from tests.commands import Command
from tests.process.trees import python
from tests.support import until

TTL_S = 3
NAME = "takeover"

_WORK = """
import os, sys, time
token = int(os.environ["LEASEKEEPER_TOKEN"])
with open(sys.argv[1], "a", buffering=1) as notes:
    while True:
        notes.write(f"{token} {time.clock_gettime(time.CLOCK_BOOTTIME)}\\n")
        time.sleep(0.001)
"""


class Notes:
    """What the workers wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def work(self) -> list[str]:
        """The command line of a worker; it detaches itself as daemons do, and neither it nor its parent obeys TERM."""
        return ["sh", "-c", 'trap "" TERM HUP; setsid "$@" & wait', "work", *python(_WORK, str(self.path))]

    def read(self) -> list[tuple[int, float]]:
        """Every token with its time, in the order of writing."""
        whole = self.path.read_text().rpartition("\n")[0].splitlines()
        return [(int(token), float(at)) for token, at in (line.split() for line in whole)]

    def tokens(self) -> list[int]:
        """The tokens in order of appearance."""
        return list(dict.fromkeys(token for token, _ in self.read()))

    def by(self, count: int) -> bool:
        """Whether ``count`` owners have worked."""
        return len(self.tokens()) >= count

    def assert_no_overlap(self) -> None:
        """The last note of each owner is older than the first one of the next, whose token is larger."""
        tokens = self.tokens()
        assert tokens == sorted(tokens)
        times = {token: [at for other, at in self.read() if other == token] for token in tokens}
        for earlier, later in itertools.pairwise(tokens):
            assert max(times[earlier]) < min(times[later])


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """An empty page."""
    return Notes(tmp_path / "notes")


@pytest.fixture
def own_etcd() -> Iterator[EtcdServer]:
    """An etcd that the test may freeze."""
    with EtcdServer(fsync=False) as server:
        yield server


def run(etcd: EtcdServer, namespace: str, notes: Notes) -> Command:
    """A command that works on the name when it is its turn."""
    arguments = ("run", "--ttl", str(TTL_S), "--grace", "1", NAME, "--", *notes.work())
    return Command(*arguments, endpoint=etcd.endpoint, namespace=namespace)


def settled(notes: Notes) -> int:
    """The number of notes once they do not grow for a while."""

    def unchanged() -> int:
        before = len(notes.read())
        time.sleep(0.2)
        return before if len(notes.read()) == before else 0

    return until(unchanged)


def test_a_stopped_command_is_taken_over(etcd: EtcdServer, namespace: str, notes: Notes) -> None:
    """C02: SIGSTOP of the command until the next one has the lease: its work has stopped before, and never goes on."""
    with run(etcd, namespace, notes) as first:
        until(lambda: notes.by(1))
        with run(etcd, namespace, notes) as second:
            os.kill(first.process.pid, signal.SIGSTOP)
            until(lambda: notes.by(2))
            os.kill(first.process.pid, signal.SIGCONT)
            assert first.process.wait(30) == 76
            second.process.terminate()
    notes.assert_no_overlap()


def test_a_killed_command_is_taken_over(etcd: EtcdServer, namespace: str, notes: Notes) -> None:
    """Kill -9 of the command: its detached work is gone at once, the next owner begins when the lease has run out."""
    with run(etcd, namespace, notes) as first:
        until(lambda: notes.by(1))
        with run(etcd, namespace, notes) as second:
            os.kill(first.process.pid, signal.SIGKILL)
            settled(notes)
            until(lambda: notes.by(2))
            second.process.terminate()
    notes.assert_no_overlap()


def test_a_terminated_command_hands_over(etcd: EtcdServer, namespace: str, notes: Notes) -> None:
    """C03: TERM: the work stops, is waited for, killed after the grace; only then the lease goes to the next one."""
    with run(etcd, namespace, notes) as first:
        until(lambda: notes.by(1))
        with run(etcd, namespace, notes) as second:
            first.process.terminate()
            until(lambda: notes.by(2))
            assert first.process.wait(30) == 137
            second.process.terminate()
    notes.assert_no_overlap()


def test_a_silent_etcd_pauses_the_work(own_etcd: EtcdServer, namespace: str, notes: Notes) -> None:
    """C13: etcd stopped until the work pauses, then continued: the same token goes on. Stopped for long: it never does."""
    with run(own_etcd, namespace, notes) as command:
        until(lambda: notes.by(1))
        own_etcd.freeze()
        paused_at = settled(notes)
        own_etcd.thaw()
        until(lambda: len(notes.read()) > paused_at or command.process.poll() is not None)
        command.process.terminate()
        code = command.process.wait(30)
    assert len(notes.tokens()) == 1
    assert code in (143, 137, 76)
