"""The etcd of one test: an address that faults can strike, a namespace of its own, and everything put back at the end."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from leasekeeper.testing.faults import Faults
from leasekeeper.testing.proxy import FaultProxy

if TYPE_CHECKING:
    from leasekeeper.keeper import Keeper
    from leasekeeper.testing.server import EtcdServer

__all__ = ["Etcd"]


class Etcd:
    """What a test has of etcd.

    ``endpoint`` and ``namespace`` are what to give to the code under test; ``direct`` is the way past all faults, for what
    the test itself wants to know.

    Args:
        targets: "host:port" of each server.
        servers: those of them that were started here and can be frozen; may be empty.
        is_lent: the etcd belongs to somebody else: what is left in the namespace is removed at the end.
    """

    def __init__(self, targets: Sequence[str], servers: Sequence[EtcdServer] = (), *, is_lent: bool = False) -> None:
        self.namespace = f"test-{uuid.uuid4().hex}"
        self.direct = ",".join(targets)
        self.servers = tuple(servers)
        self._targets = tuple(targets)
        self._is_lent = is_lent
        self._open = ExitStack()
        self._links: list[Faults] = []
        self._operator: Keeper | None = None
        self.faults = self.link()

    @property
    def endpoint(self) -> str:
        """Where code under test connects, as "127.0.0.1:port"; with commas for a cluster. `faults` strikes it."""
        return self.faults.endpoint

    @property
    def environment(self) -> dict[str, str]:
        """LEASEKEEPER_ENDPOINTS and LEASEKEEPER_NAMESPACE, as they are set while the test runs."""
        return self.faults.environment

    def link(self) -> Faults:
        """Another way to the same etcd, with an endpoint and faults of its own: cut off one replica and not the other."""
        proxies = [self._open.enter_context(FaultProxy(target)) for target in self._targets]
        self._links.append(Faults(self, proxies))
        return self._links[-1]

    # -- for faults

    @property
    def operator(self) -> Keeper:
        """A keeper past all faults, that never owns anything."""
        if self._operator is None:
            self._operator = self._keeper("operator")
        return self._operator

    def new_rival(self) -> Keeper:
        """A keeper past all faults, for somebody who takes a name from its owner."""
        return self._keeper(f"rival-{uuid.uuid4().hex[:8]}")

    def _keeper(self, holder: str) -> Keeper:
        from leasekeeper.keeper import Keeper

        return self._open.enter_context(Keeper(self.direct, namespace=self.namespace, holder=holder))

    def revive(self) -> None:
        """Let every server that was started here go on; one that was ended is started again, with its data."""
        stopped = [server for server in self.servers if not server.is_running]
        for server in self.servers:
            if server.is_running:
                server.thaw()
        for server in stopped:
            server.start(wait=False)
        for server in stopped:
            server.wait_ready()

    # -- its end

    def heal(self) -> None:
        """End every fault of every link and of every server, so that whoever still wants to give something back can."""
        for link in self._links:
            for proxy in link.proxies:
                proxy.heal()
        self.revive()

    def close(self) -> None:
        """Mend everything, and leave nothing behind in an etcd that is not ours. Calling it again does nothing."""
        with self._open:
            if not self._links:
                return
            try:
                self.heal()
                if self._is_lent:
                    from leasekeeper.testing.interference import sweep

                    sweep(self.operator)
            finally:
                self._links.clear()
