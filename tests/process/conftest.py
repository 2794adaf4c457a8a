"""Fixtures of the process tests: a mark for every process of a test, and what carries it is killed in the end."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from leasekeeper.testing import EtcdServer
from leasekeeper.testing.outside import OutsideWorld
from tests.crashes import LAGS, Bench
from tests.process.trees import MARK, Command, marked, none_left
from tests.raw import RawEtcd
from tests.support import until


@pytest.fixture(scope="session")
def world() -> Iterator[OutsideWorld]:
    """The outside world of all tests of crashes."""
    with OutsideWorld() as outside:
        for lag in LAGS:
            outside.trouble(lag)
        yield outside


@pytest.fixture
def bench(etcd: EtcdServer, raw: RawEtcd, namespace: str, world: OutsideWorld, tmp_path: Path) -> Iterator[Bench]:
    """Where runs are done: an etcd, a namespace of their own, a world, which is mended in the end."""
    found = Bench(etcd, raw, namespace, world, str(tmp_path))
    yield found
    found.mend()


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mark that every process started by the test inherits; survivors are killed by pid and fail the test."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    yield value
    survivors = marked(value)
    for seen in survivors:
        try:
            os.kill(seen.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    until(lambda: none_left(value))
    assert not survivors


@pytest.fixture
def start_command(mark: str) -> Iterator[Callable[..., Command]]:
    """Starts commands, and kills those that are left at the end."""
    commands: list[Command] = []

    def start(argv: Sequence[str], **settings: object) -> Command:
        commands.append(Command.start(argv, **settings))  # type: ignore[arg-type]
        return commands[-1]

    yield start
    for command in commands:
        command.close()
    until(lambda: none_left(mark))
