"""Real etcd servers, network faults and assertions, for tests of code that depends on a lease.

``EtcdServer`` starts one etcd on 127.0.0.1, ``EtcdCluster`` several that can be partitioned, and ``FaultProxy`` stands
before any of them and breaks the network on command::

    with EtcdServer() as etcd, FaultProxy(etcd.endpoint) as proxy, Keeper(proxy.endpoint) as keeper:
        lease = keeper.acquire("jobs", ttl=5)
        proxy.blackhole()
        with pytest.raises(LeaseSuspended):
            ...  # what your code does at its gate

Under pytest all of this comes as fixtures (``etcd``, ``keeper``, ``faults`` …, see `leasekeeper.testing.plugin`), and
``assert_exclusive``, ``assert_fenced``, ``assert_pauses`` and ``assert_resumes`` say what went wrong. ``failpoints`` end a
program at one exact point of a run's step; `leasekeeper.testing.outside` is a world whose own ledger tells what it then did.

Nothing here stands in for etcd: every server is a real one, found by ``find_etcd()`` or named by ``LEASEKEEPER_ETCD``.
What ends with the ``with`` statement ends, on Linux, with a killed test run too. The names below are loaded when they are
first used: pytest looks into this package also for people who never ask for a lease.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasekeeper.testing import failpoints
    from leasekeeper.testing.binary import EtcdBinary, find_etcd
    from leasekeeper.testing.cluster import EtcdCluster
    from leasekeeper.testing.exclusive import History, Span, assert_exclusive
    from leasekeeper.testing.faults import Faults
    from leasekeeper.testing.fenced import assert_fenced
    from leasekeeper.testing.health import Gateway, MemberStatus, TLSFiles
    from leasekeeper.testing.lease_clock import LeaseClock
    from leasekeeper.testing.pauses import assert_pauses, assert_resumes
    from leasekeeper.testing.proxy import Counts, Fault, FaultProxy, Way
    from leasekeeper.testing.server import EtcdServer
    from leasekeeper.testing.site import Etcd
    from leasekeeper.testing.trips import Trip

__all__ = [
    "Counts",
    "Etcd",
    "EtcdBinary",
    "EtcdCluster",
    "EtcdServer",
    "Fault",
    "FaultProxy",
    "Faults",
    "Gateway",
    "History",
    "LeaseClock",
    "MemberStatus",
    "Span",
    "TLSFiles",
    "Trip",
    "Way",
    "assert_exclusive",
    "assert_fenced",
    "assert_pauses",
    "assert_resumes",
    "failpoints",
    "find_etcd",
]

_HOME = {
    "Counts": "proxy",
    "Etcd": "site",
    "EtcdBinary": "binary",
    "EtcdCluster": "cluster",
    "EtcdServer": "server",
    "Fault": "proxy",
    "FaultProxy": "proxy",
    "Faults": "faults",
    "Gateway": "health",
    "History": "exclusive",
    "LeaseClock": "lease_clock",
    "MemberStatus": "health",
    "Span": "exclusive",
    "TLSFiles": "health",
    "Trip": "trips",
    "Way": "proxy",
    "assert_exclusive": "exclusive",
    "assert_fenced": "fenced",
    "assert_pauses": "pauses",
    "assert_resumes": "pauses",
    "failpoints": "failpoints",
    "find_etcd": "binary",
}


if not TYPE_CHECKING:  # a type checker would take it for leave to ask for any name at all

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(f"{__name__}.{_HOME[name]}")
        value = module if _HOME[name] == name else getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
