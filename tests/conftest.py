"""Fixtures of every test: a real etcd, a namespace of one's own, a cluster, a breakable network."""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Iterator

import pytest

from leasekeeper.testing import EtcdCluster, EtcdServer, FaultProxy


def _hear_signals() -> None:
    """Take back that signals are ignored, as below `nohup` and in the background of a script.

    Programs inherit that, and tests of what they do on a signal would wait for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


_hear_signals()


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdServer]:
    """One real etcd for the whole run; LEASEKEEPER_ETCD says which. Do not stop or fill it."""
    with EtcdServer(fsync=False) as server:
        yield server


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test uses."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def etcd_cluster() -> Iterator[EtcdCluster]:
    """Three real members for one module; a test that breaks something mends it before it ends."""
    with EtcdCluster(3, fsync=False) as cluster:
        yield cluster


@pytest.fixture
def proxy(etcd: EtcdServer) -> Iterator[FaultProxy]:
    """A fault proxy before ``etcd``, for this test alone."""
    with FaultProxy(etcd.endpoint) as fault_proxy:
        yield fault_proxy
