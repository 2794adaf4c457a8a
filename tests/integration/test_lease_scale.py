"""Many leases in one process cost no more heartbeats than one."""

from __future__ import annotations

from itertools import count

import grpc
import pytest

from leasekeeper import Keeper, State, Timing
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.testing import EtcdServer
from tests.intermediary import Intermediary, refuse
from tests.raw import RawEtcd
from tests.support import until


def test_acquire_and_release_are_one_call_each(etcd: EtcdServer, namespace: str) -> None:
    """Uncontended, with a session at hand, an acquire costs one transaction, a release one, and nothing else."""
    with Intermediary(etcd.endpoint) as mid, Keeper(mid.endpoint, namespace=namespace) as keeper:
        keeper.acquire("n", timeout=10).release()
        before = mid.count("Txn")
        calls = len(mid._seen)
        for _ in range(5):
            keeper.acquire("n", timeout=10).release()
        assert mid.count("Txn") - before == len(mid._seen) - calls == 10


@pytest.mark.slow
def test_a_thousand_leases_beat_like_one(etcd: EtcdServer, namespace: str) -> None:
    """C42: A thousand held leases use one etcd lease, beat as often as one, are read back in few reads, and end one by one."""
    timing = Timing(ttl=5)
    raw = RawEtcd(etcd.endpoint)
    with Intermediary(etcd.endpoint) as mid, Keeper(mid.endpoint, namespace=namespace, timing=timing) as keeper:
        leases = [keeper.acquire(f"n{number}", timeout=10) for number in range(1000)]
        assert {lease.lease_id for lease in leases} == {leases[0].lease_id}
        assert mid.count("LeaseGrant") == 1
        beats, txns, since = mid.count("LeaseKeepAlive"), mid.count("Txn"), keeper._core.now()
        until(lambda: mid.count("LeaseKeepAlive") >= beats + 5)
        # Fewer would be too few; more than one for each interval would be one for each of several leases.
        took_s = keeper._core.now() - since
        assert mid.count("LeaseKeepAlive") - beats <= took_s / timing.beat_s + 2
        # At most one look at all keys in 0.45 TTLs, 128 keys at a time.
        assert mid.count("Txn") - txns <= (took_s / (0.45 * timing.ttl) + 1) * 8
        assert all(lease.check() == lease.token for lease in leases)
        raw.delete(leases[500].key)
        until(lambda: leases[500].state is State.LOST)
        leases[0].release()
        assert [lease.state for lease in leases].count(State.HELD) == 998


def test_a_refusing_server_gets_no_more_leases(etcd: EtcdServer, namespace: str) -> None:
    """C42: While etcd refuses most beats and some reads as too many, five hundred leases are kept under their one etcd lease."""
    busy = refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests")
    with Intermediary(etcd.endpoint) as mid, Keeper(mid.endpoint, namespace=namespace, timing=Timing(ttl=3)) as keeper:
        leases = [keeper.acquire(f"n{number}", timeout=10) for number in range(500)]
        calls = count()
        mid.on("LeaseKeepAlive", busy, when=lambda _: next(calls) % 3 != 0)
        mid.on("Txn", busy, when=lambda _: next(calls) % 9 == 0)
        born = leases[0]._session.proof_s
        until(lambda: leases[0]._session.proof_s > born + 4)
        more = keeper.acquire("one more", timeout=20)
        mid.off()
        assert all(lease.wait(timeout=20) == lease.token for lease in [*leases, more])
        assert {request.ID for request in mid.requests("LeaseGrant", pb.LeaseGrantRequest)} == {more.lease_id}


def test_keys_are_read_in_the_end_where_most_reads_are_refused(etcd: EtcdServer, namespace: str) -> None:
    """C42: While etcd refuses two of three transactions as too many, and so a part of every look at all keys, leases are HELD."""
    busy = refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests")
    with Intermediary(etcd.endpoint) as mid, Keeper(mid.endpoint, namespace=namespace, timing=Timing(ttl=5)) as keeper:
        leases = [keeper.acquire(f"n{number}", timeout=10) for number in range(520)]
        calls = count()
        mid.on("Txn", busy, when=lambda _: next(calls) % 3 != 0)
        session = leases[0]._session
        for _ in range(3):
            read_s = session.read_s
            until(lambda: session.read_s > read_s)  # noqa: B023 - called in this round only
        assert {lease.wait(timeout=20) for lease in leases} == {lease.token for lease in leases}
        mid.off()
