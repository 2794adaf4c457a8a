"""Many who wait, and one who gets it: order, wake-ups, and the real end of the claim ahead."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

import pytest

from leasekeeper import Keeper, LeaseLost, NotAcquired, State, Timing
from leasekeeper.guards.etcd import compares, put_if_owner
from leasekeeper.guards.sqlite import Fence
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import inspect as look
from leasekeeper.testing import EtcdServer
from tests.intermediary import Intermediary, Passing, altered
from tests.raw import RawEtcd
from tests.support import until

KEEPERS = 4
EACH = 50


@pytest.fixture
def mid(etcd: EtcdServer) -> Iterator[Intermediary]:
    """What stands between the keepers and etcd."""
    with Intermediary(etcd.endpoint) as made:
        yield made


def looks(mid: Intermediary) -> int:
    """How often a waiter has looked at the queue: transactions that only read, and ask for what stands before a claim."""

    def is_look(txn: pb.TxnRequest) -> bool:
        return not txn.compare and any(op.request_range.max_create_revision for op in txn.success)

    return sum(is_look(txn) for txn in mid.requests("Txn", pb.TxnRequest))


@pytest.mark.slow
def test_a_release_wakes_one_of_two_hundred_waiters(mid: Intermediary, raw: RawEtcd, namespace: str) -> None:
    """G1: Two hundred claims on one name own it in the order in which they queued, and each release makes one of them look."""
    order: list[int] = []
    owning = 0

    def take(keeper: Keeper) -> None:
        nonlocal owning
        with keeper.lease("n", timeout=100) as lease:
            owning += 1
            assert owning == 1
            order.append(lease.check())
            owning -= 1

    keepers = [Keeper(mid.endpoint, namespace=namespace, timing=Timing(ttl=20)) for _ in range(KEEPERS)]
    with ThreadPoolExecutor(KEEPERS * EACH) as pool:
        first = keepers[0].acquire("n", timeout=10)
        done = [pool.submit(take, keepers[number % KEEPERS]) for number in range(KEEPERS * EACH)]
        until(lambda: len(raw.claims(namespace)) == KEEPERS * EACH + 1)
        queue = [key.create_revision for key in raw.claims(namespace)]
        before = looks(mid)
        first.release()
        for each in done:
            each.result(50)
        # One look for each turn; a few more may come of claims that queued behind one that was just leaving.
        assert looks(mid) - before <= KEEPERS * EACH + 5
    assert order == queue[1:]
    for keeper in keepers:
        keeper.close()


def test_the_turn_comes_with_the_deletion_never_with_the_clock(etcd: EtcdServer, raw: RawEtcd, namespace: str) -> None:
    """C35: Waiters, tries and lookers ask all the time while a dead owner's TTL runs out; none owns before its key is deleted."""
    ended = threading.Event()
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, ThreadPoolExecutor(4) as pool:
        key = f"{keeper._core.ctx.keys.lock_key('n')}/dead"
        raw.put(key, lease=(dead := raw.grant(1)))

        def try_it() -> bool:
            """Whether a try took it, and then, whether the dead owner's key was gone."""
            while not ended.is_set():
                lease = keeper.try_acquire("n")
                if lease is not None:
                    gone = raw.keys(key) == []
                    lease.release()
                    return gone
            return True

        def look_at_it() -> bool:
            while not ended.is_set():
                keeper.claims("n")
                keeper._core.run(look.time_left(dead))
            return True

        def wait_for_it() -> bool:
            with keeper.lease("n", timeout=30):
                return raw.keys(key) == []

        asking = [pool.submit(try_it), pool.submit(look_at_it)]
        assert pool.submit(wait_for_it).result(40)
        ended.set()
        assert all(each.result(10) for each in asking)


def test_a_waiter_outwaits_every_ttl(etcd: EtcdServer, namespace: str) -> None:
    """C27 C35: While the owner's beats go on, a waiter waits for longer than the TTL of either, and owns with the release."""
    timing = Timing(ttl=1)
    with (
        Keeper(etcd.endpoint, namespace=namespace, timing=timing) as owner,
        Keeper(etcd.endpoint, namespace=namespace, timing=timing) as keeper,
        ThreadPoolExecutor(1) as pool,
    ):
        lease = owner.acquire("n", timeout=10)
        waiting = pool.submit(keeper.acquire, "n", timeout=40)
        until(lambda: len(owner.claims("n")) == 2)
        with pytest.raises(NotYet):
            waiting.result(3.5 * timing.ttl)
        assert owner.verify("n", lease.token)
        lease.release()
        assert waiting.result(20).token > lease.token


@pytest.mark.slow
def test_restarts_of_etcd_make_a_dead_owner_stay_longer(namespace: str) -> None:
    """C27: etcd restarts every 0.7 TTL and re-arms the dead owner's lease; the waiter waits for the real deletion each time."""
    with (
        EtcdServer(fsync=False) as server,
        Keeper(server.endpoint, namespace=namespace, timing=Timing(ttl=20)) as keeper,
        ThreadPoolExecutor(1) as pool,
    ):
        raw = RawEtcd(server.endpoint)
        key = f"{keeper._core.ctx.keys.lock_key('n')}/dead"
        ttl_s = 2
        raw.put(key, lease=raw.grant(ttl_s))
        waiting = pool.submit(keeper.acquire, "n", timeout=50)
        until(lambda: len(raw.claims(namespace)) == 2)
        began_s = time.monotonic()
        for _ in range(3):
            restarted_s = time.monotonic()
            until(lambda: time.monotonic() >= restarted_s + 0.7 * ttl_s)  # noqa: B023 - called in this round only
            assert raw.keys(key) != []
            assert not waiting.done()
            server.kill()
            server.start()
        assert time.monotonic() > began_s + 2 * ttl_s
        assert waiting.result(30).check()
        assert raw.keys(key) == []


def test_a_waiter_whose_predecessor_gives_up_is_not_the_owner(etcd: EtcdServer, raw: RawEtcd, namespace: str) -> None:
    """G1: When the claim ahead goes, the queue's head decides: with an owner still there, the waiter goes on waiting."""
    with (
        Keeper(etcd.endpoint, namespace=namespace) as owner,
        Keeper(etcd.endpoint, namespace=namespace) as middle,
        Keeper(etcd.endpoint, namespace=namespace) as last,
        ThreadPoolExecutor(2) as pool,
    ):
        lease = owner.acquire("n", timeout=10)
        quitter = pool.submit(middle.acquire, "n", timeout=1)
        until(lambda: len(raw.claims(namespace)) == 2)
        waiting = pool.submit(last.acquire, "n", timeout=30)
        until(lambda: len(raw.claims(namespace)) == 3)
        with pytest.raises(NotAcquired):
            quitter.result(20)
        assert len(raw.claims(namespace)) == 2
        with pytest.raises(NotYet):
            waiting.result(0.5)
        lease.release()
        assert waiting.result(20).token > lease.token


@pytest.mark.parametrize("ttl", [-1928, -1, 0, 9_223_372_036])
def test_a_ttl_that_is_read_is_never_a_reason_to_act(
    mid: Intermediary, etcd: EtcdServer, raw: RawEtcd, namespace: str, ttl: int
) -> None:
    """C34 C24: Whatever TTL etcd tells of an owner's lease, its claim stands until its key goes, and timeouts are kept."""
    mid.on("LeaseTimeToLive", altered(pb.LeaseTimeToLiveResponse, lambda reply: setattr(reply, "TTL", ttl)))
    with Keeper(mid.endpoint, namespace=namespace) as keeper, Keeper(etcd.endpoint, namespace=namespace) as owner:
        lease = owner.acquire("n", timeout=10)
        shown = keeper._core.run(look.time_left(lease.lease_id))
        assert shown.seconds <= 10
        assert keeper.try_acquire("n") is None
        with pytest.raises(NotAcquired):
            keeper.acquire("n", timeout=0.3)
        assert [key.create_revision for key in raw.claims(namespace)] == [lease.token]


def test_the_wall_clock_does_not_matter(etcd: EtcdServer, namespace: str) -> None:
    """C22: With wall clocks hours apart and jumping, leases are held, waited for and given back; they are only shown."""
    with (
        Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=1)) as keeper,
        Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=1)) as other,
    ):
        keeper._core.ctx.wall = lambda: time.time() + 3600
        lease = keeper.acquire("n", timeout=10)
        (claim,) = other.claims("n")
        assert claim.claimed_at is not None
        assert claim.claimed_at > time.time() + 3000
        for off_s in (-3600, 0, 10**9):
            keeper._core.ctx.wall = other._core.ctx.wall = lambda: time.time() + off_s  # noqa: B023 - until the next round
            proof_s = lease._session.proof_s
            until(lambda: lease._session.proof_s > proof_s)  # noqa: B023 - called in this round only
            assert lease.wait(timeout=10) == lease.token
            with pytest.raises(NotAcquired):
                other.acquire("n", timeout=0.2)
        lease.release()
        assert other.acquire("n", timeout=0).token > lease.token


def test_work_may_pause_longer_than_a_ttl(etcd: EtcdServer, raw: RawEtcd, namespace: str) -> None:
    """C32: Beats go on while a step backs off for two TTLs; if the lease is lost meanwhile, the gate stops the second attempt."""
    with Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=1)) as keeper:
        lease = keeper.acquire("n", timeout=10)
        time.sleep(2)  # the back-off
        assert lease.wait(timeout=10) == lease.token
        raw.revoke(lease.lease_id)
        until(lambda: lease.state is State.LOST)
        for gate in (lease.check, lease.wait, lease.critical().__enter__):
            with pytest.raises(LeaseLost):
                gate()


def test_the_gate_is_shut_before_the_release_is_sent(mid: Intermediary, raw: RawEtcd, namespace: str) -> None:
    """C30: While the release is on its way another thread finds the handle RELEASED: gates refuse, guards write nothing."""
    seen: list[tuple[State, float]] = []
    refused: list[str] = []

    def look_at_handle(passing: Passing) -> bytes:
        with sqlite3.connect(":memory:") as database:
            Fence.create(database)
            gates: list[Callable[[], object]] = [
                lease.check,
                lambda: lease.wait(timeout=5),
                lambda: compares(lease),
                lambda: put_if_owner(lease, f"data/{namespace}", "too late"),
                lambda: Fence(database).admit("data", lease),
            ]
            for gate in gates:
                with pytest.raises(LeaseLost) as caught:
                    gate()
                refused.append(caught.value.reason)
        database.close()
        seen.append((lease.state, lease.remaining()))
        return passing.forward()

    with Keeper(mid.endpoint, namespace=namespace) as keeper:
        lease = keeper.acquire("n", timeout=10)
        mid.on("Txn", look_at_handle, times=1)
        lease.release()
        assert seen == [(State.RELEASED, 0.0)]
        assert refused == ["released"] * 5
    assert raw.keys(f"data/{namespace}") == []
