"""Real etcd servers and network faults, for tests of code that depends on a lease.

``EtcdServer`` starts one etcd on 127.0.0.1, ``EtcdCluster`` several that can be partitioned, and ``FaultProxy`` stands
before any of them and breaks the network on command::

    with EtcdServer() as etcd, FaultProxy(etcd.endpoint) as proxy, Keeper(proxy.endpoint) as keeper:
        lease = keeper.acquire("jobs", ttl=5)
        proxy.blackhole()
        with pytest.raises(LeaseSuspended):
            ...  # what your code does at its gate

Nothing here stands in for etcd: every server is a real one, found by ``find_etcd()`` or named by ``LEASEKEEPER_ETCD``.
What ends with the ``with`` statement ends, on Linux, with a killed test run too.
"""

from __future__ import annotations

from leasekeeper.testing.binary import EtcdBinary, find_etcd
from leasekeeper.testing.cluster import EtcdCluster
from leasekeeper.testing.health import Gateway, MemberStatus, TLSFiles
from leasekeeper.testing.proxy import Counts, Fault, FaultProxy, Way
from leasekeeper.testing.server import EtcdServer
from leasekeeper.testing.trips import Trip

__all__ = [
    "Counts",
    "EtcdBinary",
    "EtcdCluster",
    "EtcdServer",
    "Fault",
    "FaultProxy",
    "Gateway",
    "MemberStatus",
    "TLSFiles",
    "Trip",
    "Way",
    "find_etcd",
]
