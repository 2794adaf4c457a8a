"""Real etcd servers and network faults, for tests of code that depends on a lease.

``EtcdServer`` starts one etcd on 127.0.0.1; ``FaultProxy`` stands before it and breaks the network.
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
