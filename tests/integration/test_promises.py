"""The six promises, each shown once from end to end against a real etcd; docs/guarantees.md points here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from leasekeeper import Keeper, Lease, LeaseLost, LeaseSuspended, State, Timing
from leasekeeper.protocol import epoch
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.raw import RawEtcd
from tests.replicas import Replicas, accepted_in_order
from tests.support import until

TIMING = Timing(ttl=3)


def test_g1_one_owner_at_any_revision_and_owners_follow_in_order(etcd: EtcdServer, namespace: str) -> None:
    """G1: In etcd's whole history the first claim is the one that owned, nobody acted beside it, and turns follow the queue."""
    raw = RawEtcd(etcd.endpoint)
    acted: list[tuple[int, int]] = []
    acting = threading.Semaphore(1)

    def act(keeper: Keeper) -> None:
        for _ in range(5):
            with keeper.lease("n", timeout=40) as lease:
                assert acting.acquire(blocking=False), "two owners at once"
                acted.append((lease.check(), raw.revision()))
                acting.release()

    since = raw.revision()
    with ThreadPoolExecutor(6) as pool:
        keepers = [Keeper(etcd.endpoint, namespace=namespace, timing=TIMING) for _ in range(6)]
        for done in [pool.submit(act, keeper) for keeper in keepers]:
            done.result(50)
        for keeper in keepers:
            keeper.close()
    queues = {revision: raw_queue(raw, namespace, revision) for revision in range(since + 1, raw.revision() + 1)}
    assert len(acted) == 30
    # At the revision at which an owner acted, the first claim in etcd was its own.
    assert all(queues[revision][0] == token for token, revision in acted)
    # Owners came in the order of their places, and no claim was passed over.
    owners = list(dict.fromkeys(queue[0] for queue in queues.values() if queue))
    assert owners == sorted(owners) == [token for token, _ in acted]


def raw_queue(raw: RawEtcd, namespace: str, revision: int) -> list[int]:
    """The claims as etcd had them at a revision."""
    return [key.create_revision for key in raw.keys(f"leasekeeper/{namespace}/lease/", revision=revision)]


def test_g2_tokens_grow_with_every_owner_also_after_a_restore(namespace: str, tmp_path: Path) -> None:
    """G2: Every new owner has a larger token than all before it, also across a restore of etcd from an older backup."""
    tokens: list[int] = []

    def own(times: int) -> None:
        for _ in range(times):
            with (
                Keeper(server.endpoint, namespace=namespace, timing=TIMING) as keeper,
                keeper.lease("n", timeout=20) as lease,
            ):
                tokens.append(lease.token)

    with EtcdServer(fsync=False) as server:
        own(3)
        backup = server.snapshot(tmp_path / "backup")
        own(5)
        server.restore(backup)
        # Without the epoch the next tokens would repeat those that were handed out after the backup.
        with Keeper(server.endpoint, namespace=namespace) as operator:
            operator._core.run(epoch.bump(operator._core.ctx, operator._core.until()))
        own(3)
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 11


def test_g3_the_gate_passes_only_while_authority_is_provable(
    etcd: EtcdServer, proxy: FaultProxy, namespace: str
) -> None:
    """G3: Cut off in silence, the gate lets nothing through from ``pause_after`` on until somebody else owns the name."""
    with (
        Keeper(proxy.endpoint, namespace=namespace, timing=TIMING) as keeper,
        Keeper(etcd.endpoint, namespace=namespace) as rival,
        ThreadPoolExecutor(1) as pool,
    ):
        lease = keeper.acquire("n", timeout=10)
        taken = pool.submit(rival.acquire, "n", timeout=30)
        until(lambda: len(rival.claims("n")) == 2)
        proxy.blackhole()
        passed_s = last_pass_until(lease, taken.done)
        sent_s = lease._session.proof_s
        assert passed_s - sent_s < TIMING.pause_s
        assert taken.result(30).token > lease.token
        # Shut once, it stayed shut until somebody else owned the name, which etcd let happen only a TTL after that beat.
        assert lease._now() - sent_s >= TIMING.ttl
        proxy.heal()
        until(lambda: lease.state is State.LOST)


def last_pass_until(lease: Lease, over: Callable[[], bool]) -> float:
    """Ask the gate again and again until it is over: when it last let work through."""
    passed_s = lease._now()
    while not over():
        asked_s = lease._now()
        try:
            lease.check()
            passed_s = asked_s
        except LeaseSuspended:
            time.sleep(0.002)
    return passed_s


def test_g4_a_fenced_resource_accepts_no_older_owner_after_a_newer_one(
    etcd: EtcdServer, namespace: str, tmp_path: Path
) -> None:
    """G4: An owner frozen after it had passed the gate writes when somebody else owns the name, and the resource refuses it."""
    with Replicas(namespace, tmp_path) as replicas:
        a = replicas.owner(etcd.endpoint, freeze="after_gate")
        old = a.wait_for("acquired")["token"]
        a.wait_for("freezing")
        b = replicas.owner(etcd.endpoint)
        new = b.wait_for("acquired")["token"]
        b.wait_for_more("wrote", 2)
        a.thaw()
        a.wait_for("refused")
        ledger = replicas.ledger()
        assert accepted_in_order(ledger)
        assert [entry["token"] for entry in ledger if not entry["accepted"]] == [old] < [new]


@pytest.mark.parametrize("ends", ["in time", "too late"])
def test_g5_work_is_held_until_proof_is_back_or_the_lease_is_lost(
    etcd: EtcdServer, proxy: FaultProxy, namespace: str, ends: str
) -> None:
    """G5: While beats are lost work waits at the gate; it goes on under the same token, or is told that the lease is LOST."""
    timing = TIMING if ends == "too late" else Timing(ttl=20, beat_every=0.3, pause_after=1)
    with Keeper(proxy.endpoint, namespace=namespace, timing=timing) as keeper, ThreadPoolExecutor(1) as pool:
        lease = keeper.acquire("n", timeout=10)
        proxy.blackhole()
        until(lambda: lease.state is State.SUSPENDED)
        work = pool.submit(lease.wait)
        if ends == "too late":
            with Keeper(etcd.endpoint, namespace=namespace) as rival:
                rival.acquire("n", timeout=30)
                assert not work.done()
                proxy.heal()
                with pytest.raises(LeaseLost):
                    work.result(30)
                assert lease.state is State.LOST
                return
        until(lambda: lease.remaining() < 18)
        assert not work.done()
        proxy.heal()
        assert work.result(30) == lease.token
        assert lease.state is State.HELD


def test_g6_an_unknown_outcome_is_read_back(etcd: EtcdServer, proxy: FaultProxy, namespace: str) -> None:
    """G6: When the answer to the claim never comes, the claim that etcd made of it is found by its nonce and owned, once."""
    raw = RawEtcd(etcd.endpoint)
    with Keeper(proxy.endpoint, namespace=namespace, timing=TIMING) as keeper:
        lost = proxy.lose_next_reply(b'"nonce"')
        lease = keeper.acquire("n", timeout=20)
        assert lost.fired
        (key,) = raw.claims(namespace)
        assert (key.key, key.create_revision) == (lease.key, lease.token)
        assert lease.claim.encode() in key.value
        # The claim is the one that the lost attempt made: nothing was written by the second.
        assert key.mod_revision == key.create_revision
        lease.release()
        assert raw.claims(namespace) == []
