"""Fixtures of the integration tests: who works with the test's own namespace of the real etcd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasekeeper import Keeper
from leasekeeper.testing import EtcdServer


@pytest.fixture
def keeper(etcd: EtcdServer, namespace: str) -> Iterator[Keeper]:
    """A keeper of this test."""
    with Keeper(etcd.endpoint, namespace=namespace) as made:
        yield made
