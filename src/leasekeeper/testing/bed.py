"""What one pytest process has of etcd: a server and perhaps a cluster, started when first asked for, mended between tests.

Each worker of pytest-xdist is such a process and has its own. Whatever is still open when the process ends is closed by it,
also where an interrupt has kept fixtures from doing so; what a killed process leaves, its servers, dies with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol, TypeVar

from leasekeeper.errors import LeasekeeperError
from leasekeeper.testing import source
from leasekeeper.testing.cluster import EtcdCluster
from leasekeeper.testing.server import EtcdServer
from leasekeeper.testing.site import Etcd
from leasekeeper.testing.source import NoEtcd, Source

__all__ = ["Bed"]

MEMBERS = 3
MEND_TIMEOUT_S = 60.0


class Closable(Protocol):
    """Something that must be closed, once or more often."""

    def close(self) -> object:
        """Close it."""
        ...


C = TypeVar("C", bound=Closable)


class Bed:
    """The servers of this process, and what tests have open on them. For one thread."""

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self._source: Source | None = None
        self._missing: NoEtcd | None = None
        self._failure: LeasekeeperError | None = None
        self._server: EtcdServer | None = None
        self._cluster: EtcdCluster | None = None
        self._open: list[Closable] = []

    def source(self) -> Source:
        """Which etcd this is; NoEtcd when there is none. Looked for once."""
        if self._missing is not None:
            raise self._missing
        if self._source is None:
            try:
                self._source = source.find(self._wanted)
            except NoEtcd as missing:
                self._missing = missing
                raise
        return self._source

    def server(self) -> EtcdServer:
        """The server of this process; NoEtcd also where tests run against one that somebody else has started."""
        if self._server is None:
            found = self._startable("a server of its own")
            server = self.opened(EtcdServer(binary=found.binary, fsync=False))
            self._start(server)
            self._server = server
        return self._server

    def cluster(self) -> EtcdCluster:
        """Three members that have a quorum; NoEtcd as for `server`."""
        if self._cluster is None:
            found = self._startable("a cluster of its own")
            cluster = self.opened(EtcdCluster(MEMBERS, binary=found.binary, fsync=False))
            self._start(cluster)
            self._cluster = cluster
        return self._cluster

    @contextmanager
    def lent_cluster(self) -> Iterator[EtcdCluster]:
        """The cluster, which is mended afterwards, or replaced if it cannot be."""
        cluster = self.cluster()
        try:
            yield cluster
        finally:
            try:
                _mend(cluster)
            except LeasekeeperError:
                self._cluster = None
                self.close_one(cluster)

    def site(self, *, on_cluster: bool) -> Etcd:
        """The etcd of one test."""
        if on_cluster:
            members = self.cluster().members
            return self.opened(Etcd([member.endpoint for member in members], members))
        targets = self.source().targets
        if targets:
            return self.opened(Etcd(targets, is_lent=True))
        server = self.server()
        return self.opened(Etcd([server.endpoint], [server]))

    def opened(self, thing: C) -> C:
        """Remember what must be closed, in case that nobody does."""
        self._open.append(thing)
        return thing

    def close_one(self, thing: Closable) -> None:
        """Close one thing that was opened."""
        try:
            thing.close()
        finally:
            self._open.remove(thing)

    def close(self) -> None:
        """Close everything, the latest first. Calling it again does nothing."""
        with ExitStack() as stack:
            while self._open:
                stack.callback(_quietly, self._open.pop(0).close)
        self._server = self._cluster = None

    def _start(self, etcd: EtcdServer | EtcdCluster) -> None:
        """Start it; what does not come up once is not waited for again by each of the tests that follow."""
        if self._failure is not None:
            raise self._failure
        try:
            etcd.start()
        except LeasekeeperError as failure:
            self._failure = failure
            raise

    def _startable(self, what: str) -> Source:
        found = self.source()
        if found.binary is None:
            raise NoEtcd(
                f"this test needs {what}, and {source.OPTION}={self._wanted} names one that runs already.\n{source.ways()}"
            )
        return found


def _quietly(close: Callable[[], object]) -> None:
    """Close what tests have left open, as well as it can be done: their own failure is what is reported."""
    with contextlib.suppress(LeasekeeperError, OSError):
        close()


def _mend(cluster: EtcdCluster) -> None:
    """Thaw, start again and join what a test has frozen, ended or parted."""
    cluster.heal()
    for index, member in enumerate(cluster.members):
        if member.is_running:
            cluster.thaw(index)
        else:
            cluster.restart(index, wait=False)
    cluster.wait_ready(MEND_TIMEOUT_S)
    cluster.wait_leader(MEND_TIMEOUT_S)
