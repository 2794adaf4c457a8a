"""Fixtures of every test: those of the pytest plugin that users get, and a few beside them."""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Iterator

import pytest

from leasekeeper.testing import EtcdServer, FaultProxy
from tests.raw import RawEtcd


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
def etcd(etcd_server: EtcdServer) -> EtcdServer:
    """The plugin's server itself, where users get one test's view of it. Do not stop or fill it."""
    return etcd_server


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test uses."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def raw(etcd: EtcdServer) -> RawEtcd:
    """A person with etcd's own tools."""
    return RawEtcd(etcd.endpoint)


@pytest.fixture
def proxy(etcd: EtcdServer) -> Iterator[FaultProxy]:
    """A fault proxy before ``etcd``, for this test alone."""
    with FaultProxy(etcd.endpoint) as fault_proxy:
        yield fault_proxy
