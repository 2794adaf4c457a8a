"""Connections that end again and again, hang or say too little while a lease is held: beats go on, and nothing piles up."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from leasekeeper import Keeper, LeaseSuspended, State, Timing
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.intermediary import Intermediary, refuse
from tests.raw import RawEtcd
from tests.support import until

# The server of etcd's own Lock service takes a lease of 60 s for whoever brings none, and renews it for nobody.
HOLD_S = 72.0
CLOSE_EVERY_S = 3.0


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_held_for_longer_than_a_minute(etcd: EtcdServer, proxy: FaultProxy, namespace: str) -> None:
    """C12 C45: For 72 s, with each connection ended cleanly every 3 s, a lease of 10 s is held by its beats without a pause."""
    states: list[State] = []
    threads: list[int] = []
    with Keeper(proxy.endpoint, namespace=namespace, timing=Timing(ttl=10)) as keeper:
        lease = keeper.acquire("n", timeout=10)
        lease.subscribe(states.append)
        keeper._core.announcer.tell(
            int
        )  # its thread starts with the first news, which is a beat that a busy machine missed
        began_s = lease._now()
        while lease._now() < began_s + HOLD_S:
            closed_s = lease._now()
            proxy.close_cleanly()
            while lease._now() < closed_s + CLOSE_EVERY_S:
                assert lease.check() == lease.token
                time.sleep(0.01)
            assert keeper.verify("n", lease.token)
            threads.append(threading.active_count())
        assert states == []
        assert lease._session.lapses == 0
        assert lease.lease_id in RawEtcd(etcd.endpoint).leases()
        # As many as after the first few connections, whatever is just being opened or closed.
        until(lambda: threading.active_count() <= max(threads[:5]))


@pytest.mark.slow
def test_a_server_that_sends_everybody_away_now_and_then(etcd: EtcdServer, namespace: str) -> None:
    """C12: Where a server lets no connection grow older than half a second (GOAWAY), owner and waiter lose nothing by it."""
    states: list[State] = []
    age = (("grpc.max_connection_age_ms", 500), ("grpc.max_connection_age_grace_ms", 100))
    with (
        Intermediary(etcd.endpoint, options=age) as mid,
        Keeper(mid.endpoint, namespace=namespace, timing=Timing(ttl=10)) as keeper,
        ThreadPoolExecutor(1) as pool,
    ):
        lease = keeper.acquire("n", timeout=10)
        lease.subscribe(states.append)
        waiting = pool.submit(keeper.acquire, "n", timeout=60)
        until(lambda: len(keeper.claims("n")) == 2)
        streams, born_s = mid.count("Watch"), lease._session.proof_s
        until(lambda: mid.count("Watch") > streams + 5)
        until(lambda: lease._session.proof_s > born_s + 5)
        assert lease.check() == lease.token
        assert states == []
        lease.release()
        assert waiting.result(20).token > lease.token


def test_reads_that_are_answered_prove_nothing(etcd: EtcdServer, namespace: str) -> None:
    """C09: Where reads are answered and beats are not, the gate shuts by the clock although every read shows the key."""
    with (
        Intermediary(etcd.endpoint) as mid,
        Keeper(mid.endpoint, namespace=namespace, timing=Timing(ttl=2)) as keeper,
        ThreadPoolExecutor(1) as pool,
    ):
        lease = keeper.acquire("n", timeout=10)
        # Etcd hears the beats, so the key stays; only their answers are missing.
        mid.on("LeaseKeepAlive", refuse(grpc.StatusCode.UNAVAILABLE, after=True))
        until(lambda: lease.remaining() == 0.0)
        proof_s = lease._session.proof_s
        work = pool.submit(lease.wait)
        reads = mid.count("Txn")
        until(lambda: mid.count("Txn") > reads + 1)  # the heart's own reading back
        assert keeper.verify("n", lease.token)
        assert [claim.token for claim in keeper.claims("n")] == [lease.token]
        with pytest.raises(LeaseSuspended):
            lease.check()
        assert (lease.remaining(), lease._session.proof_s) == (0.0, proof_s)
        assert not work.done()
        mid.off()
        assert work.result(20) == lease.token


@pytest.mark.parametrize("method", ["Watch", "Txn", "LeaseGrant", "LeaseKeepAlive"])
def test_every_call_asks_for_a_member_with_a_leader(etcd: EtcdServer, namespace: str, method: str) -> None:
    """C20: Calls and watches say that a member without a leader shall refuse them instead of letting them hang."""
    with (
        Intermediary(etcd.endpoint) as mid,
        Keeper(mid.endpoint, namespace=namespace, timing=Timing(ttl=2), metadata=[("x-of", "ours")]) as keeper,
    ):
        lease = keeper.acquire("n", timeout=10)
        until(lambda: mid.headers(method))
        lease.release()
        assert all(sent.get("hasleader") == "true" and sent.get("x-of") == "ours" for sent in mid.headers(method))
