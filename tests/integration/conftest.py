"""Fixtures of the integration tests: who works with the test's own namespace of the real etcd, looks at it, or changes it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import Keeper
from leasekeeper.protocol.key_text import public_text
from leasekeeper.runs import pool
from leasekeeper.runs.anchor import FileAnchor
from leasekeeper.testing import EtcdServer
from tests.commands import Ended, call
from tests.raw import RawEtcd
from tests.told_runs import Hands, server_of, signer


@pytest.fixture
def keeper(etcd: EtcdServer, namespace: str) -> Iterator[Keeper]:
    """A keeper of this test, whose name as a holder is worker-1."""
    with server_of(etcd, namespace) as made:
        yield made


@pytest.fixture
def cli(etcd: EtcdServer, namespace: str) -> Any:
    """The command line on this test's namespace."""

    def run(*args: str, **more: Any) -> Ended:
        return call(*args, **{"endpoint": etcd.endpoint, "namespace": namespace, **more})

    return run


@pytest.fixture
def hands(raw: RawEtcd, namespace: str) -> Hands:
    """Somebody who changes what is stored of run order/o-1."""
    return Hands(raw, namespace)


@pytest.fixture
def keys(tmp_path: Path) -> str:
    """A file with the public key, and nothing private."""
    file = tmp_path / "public.keys"
    file.write_text(f"# of the tests\n{public_text(signer().public)}\n")
    return str(file)


@pytest.fixture
def anchor(tmp_path: Path) -> FileAnchor:
    """What remembers heads outside of etcd."""
    return FileAnchor(tmp_path / "heads.log")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of workers rest for a short time: what is tested is that they do, not for how long."""
    monkeypatch.setattr(pool, "REST_FIRST_S", 0.1)
    monkeypatch.setattr(pool, "REST_MAX_S", 0.5)
    monkeypatch.setattr(pool, "WAIT_MAX_S", 0.5)


@pytest.fixture
def silent(caplog: pytest.LogCaptureFixture) -> None:
    """What runs raise is logged with where it was raised; nobody wants to read it."""
    caplog.set_level(logging.CRITICAL, "leasekeeper")
