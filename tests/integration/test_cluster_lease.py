"""Leases on a cluster of three: stopped, cut off and restarted members, and leaders that change."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from leasekeeper import AsyncKeeper, Keeper, Lease, LeaseLost, State, StoreRewound, Timing, Unavailable
from leasekeeper.fencing import Admitted, admits
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.inspect import claims
from leasekeeper.protocol.queue import verify
from leasekeeper.testing import EtcdCluster
from tests.intermediary import Intermediary, altered, garbage
from tests.loops import eventually
from tests.raw import RawEtcd
from tests.support import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

TIMING = Timing(ttl=4)


@pytest.fixture
def cluster(etcd_cluster: EtcdCluster) -> EtcdCluster:
    """The plugin's cluster, which is whole again after the test whatever it broke."""
    return etcd_cluster


def first(cluster: EtcdCluster, index: int) -> str:
    """All endpoints, that of one member first: a client begins there."""
    members = cluster.members
    order = [members[index], *(member for member in members if member is not members[index])]
    return ",".join(member.endpoint for member in order)


def others(cluster: EtcdCluster, index: int) -> str:
    """The endpoints of all members but one."""
    return ",".join(member.endpoint for i, member in enumerate(cluster.members) if i != index)


def follower(cluster: EtcdCluster) -> int:
    """A member that does not lead."""
    leader = cluster.wait_leader()
    return next(i for i in range(3) if i != leader)


def keeper_at(endpoints: str, namespace: str, timing: Timing = TIMING) -> Keeper:
    """A keeper with a short TTL."""
    return Keeper(endpoints, namespace=namespace, timing=timing)


@contextmanager
def waiting(keeper: Keeper, name: str) -> Iterator[list[Lease]]:
    """A thread that waits for a name; what it got is in the list. It must have got it when the block ends."""
    got: list[Lease] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            got.append(keeper.acquire(name, timeout=100))
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    yield got
    thread.join(60)
    assert failures == []
    assert got, "nothing acquired"


def queue_of(endpoint: str, namespace: str) -> int:
    """How many claims there are in a namespace, asked of one member."""
    return len(RawEtcd(endpoint).claims(namespace))


# ---------------------------------------------------------------- members that stop


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_two_of_three_stop(cluster: EtcdCluster, namespace: str, share: float) -> None:
    """C19: without a quorum for half a TTL a lease pauses and goes on with its token; for two TTLs it is what etcd says then."""
    timing = Timing(ttl=3)
    with keeper_at(cluster.endpoints, namespace, timing) as keeper:
        lease = keeper.acquire("n")
        stopped = [i for i in range(3) if i != cluster.wait_leader()]
        for i in stopped:
            cluster.freeze(i)
        began = time.monotonic()
        passes_late = 0
        while time.monotonic() < began + share * timing.ttl:
            # A leader that has lost its followers confirms beats until it notices, two election timeouts at the most.
            late = time.monotonic() > began + timing.pause_s + 3
            passes_late += late and lease.state is State.HELD
            time.sleep(0.05)
        for i in stopped:
            cluster.thaw(i)
        assert passes_late == 0
        until(lambda: lease.state is not State.SUSPENDED)
        if share < 1:
            assert lease.state is State.HELD
        if lease.state is State.HELD:
            assert keeper.verify("n", lease.check())
        else:
            with pytest.raises(LeaseLost):
                lease.wait()
            assert not keeper.verify("n", lease.token)
        with keeper.lease("m", timeout=30):
            pass


@pytest.mark.slow
def test_a_frozen_leader_costs_no_lease(cluster: EtcdCluster, namespace: str) -> None:
    """The leader is frozen for 9 s with a TTL of 4 s; beats move on to another member and no lease is lost."""
    leader = cluster.wait_leader()
    with keeper_at(first(cluster, leader), namespace) as keeper:
        leases = [keeper.acquire(f"n{number}") for number in range(5)]
        cluster.freeze(leader)
        over = time.monotonic() + 9
        while time.monotonic() < over:
            assert not [lease for lease in leases if lease.state is State.LOST]
            time.sleep(0.05)
        assert {lease.state for lease in leases} == {State.HELD}, "beats did not move on"
        cluster.thaw(leader)
        if revokes_when_it_wakes(cluster):
            return
        assert [lease.wait(timeout=30) for lease in leases] == [lease.token for lease in leases]
        assert all(keeper.verify(lease.name, lease.token) for lease in leases)


def revokes_when_it_wakes(cluster: EtcdCluster) -> bool:
    """Whether a leader of this release that was stuck revokes good leases once it goes on, before it knows of the new one."""
    major, minor, patch = (int(part) for part in cluster.members[0].version.split("-")[0].split("."))
    return ((major, minor) == (3, 4) and patch < 31) or ((major, minor) == (3, 5) and patch < 13)


def test_the_leader_dies_while_one_holds_and_one_waits(cluster: EtcdCluster, namespace: str) -> None:
    """C27: a killed leader re-arms the lease: its owner goes on with its token, and the waiter's turn is after the release."""
    leader = cluster.wait_leader()
    with keeper_at(first(cluster, leader), namespace) as keeper, keeper_at(first(cluster, leader), namespace) as other:
        lease = keeper.acquire("n")
        with waiting(other, "n") as got:
            until(lambda: queue_of(cluster.members[follower(cluster)].endpoint, namespace) == 2)
            cluster.kill(leader)
            assert lease.wait(timeout=30) == lease.token
            assert got == []
            lease.release()
        assert got[0].token > lease.token


def test_the_leadership_moves(cluster: EtcdCluster, namespace: str) -> None:
    """Leadership handed from member to member costs neither owner nor waiter anything."""
    with keeper_at(cluster.endpoints, namespace) as keeper, keeper_at(cluster.endpoints, namespace) as other:
        lease = keeper.acquire("n")
        with waiting(other, "n") as got:
            until(lambda: queue_of(cluster.members[0].endpoint, namespace) == 2)
            for _ in range(3):
                cluster.move_leader(follower(cluster))
                assert lease.wait(timeout=30) == lease.token
            assert lease.state is not State.LOST
            assert got == []
            lease.release()


def test_a_rolling_restart(cluster: EtcdCluster, namespace: str) -> None:
    """Every member is restarted, one after the other: the owner keeps its token, and fifty waiting tasks their order."""
    order: list[int] = []

    async def take(keeper: AsyncKeeper, number: int) -> None:
        async with keeper.lease("n"):
            order.append(number)

    async def work() -> None:
        async with AsyncKeeper(cluster.endpoints, namespace=namespace, timing=TIMING) as keeper:
            lease = await keeper.acquire("n")
            tasks = []
            for number in range(50):
                tasks.append(asyncio.ensure_future(take(keeper, number)))
                await eventually(lambda n=number: queue_of(cluster.members[0].endpoint, namespace) == n + 2)  # type: ignore[misc]
            for i in range(3):
                await asyncio.to_thread(cluster.kill, i)
                await asyncio.to_thread(cluster.members[i].start)
                assert await lease.wait(timeout=30) == lease.token
            assert order == []
            await lease.release()
            await asyncio.wait_for(asyncio.gather(*tasks), 60)

    asyncio.run(work())
    assert order == list(range(50))


def test_all_members_are_killed(cluster: EtcdCluster, namespace: str) -> None:
    """A30: after `kill -9` of all members every acknowledged claim is there, with its token, and those who hold go on."""
    timing = Timing(ttl=60, beat_every=1, pause_after=5)
    with keeper_at(cluster.endpoints, namespace, timing) as keeper:
        leases = [keeper.acquire(f"n{number}") for number in range(30)]
        for i in range(3):
            cluster.kill(i)
        for member in cluster.members:
            member.start(wait=False)
        cluster.wait_ready()
        assert [lease.wait(timeout=40) for lease in leases] == [lease.token for lease in leases]
        keys = {key.key: key.create_revision for key in RawEtcd(cluster.members[0].endpoint).claims(namespace)}
        assert keys == {lease.key: lease.token for lease in leases}
        assert keeper.acquire("another", timeout=30).token > max(lease.token for lease in leases)


# ---------------------------------------------------------------- members that are cut off


@pytest.mark.parametrize("leads", [True, False])
def test_a_waiter_whose_member_is_cut_off(cluster: EtcdCluster, namespace: str, leads: bool) -> None:
    """C20: the member that carries a waiter's watch is cut off; the waiter watches at another and gets its turn soon."""
    cut_off = cluster.wait_leader() if leads else follower(cluster)
    elsewhere = others(cluster, cut_off)
    with keeper_at(elsewhere, namespace) as keeper, keeper_at(first(cluster, cut_off), namespace) as other:
        lease = keeper.acquire("n")
        with waiting(other, "n") as got:
            until(lambda: queue_of(elsewhere.partition(",")[0], namespace) == 2)
            time.sleep(0.3)  # its watch is open
            cluster.isolate(cut_off)
            lease.wait(timeout=30)
            lease.release()
            until(lambda: got, 25)  # without a new watch it would look after 30 s


@pytest.mark.parametrize("leads", [True, False])
def test_no_effect_on_the_minority_side(cluster: EtcdCluster, namespace: str, leads: bool) -> None:
    """A12 A29: an owner on the minority side does nothing more once the majority has another; no two gates are open at once."""
    minority = cluster.wait_leader() if leads else follower(cluster)
    timing = Timing(ttl=2)
    effects: list[tuple[float, str, int]] = []
    highest: list[Admitted] = []
    refused: list[str] = []
    resource = threading.Lock()
    over = threading.Event()

    def act(lease: Lease, who: str) -> None:
        """What somebody does who asks the gate before each effect, and whose resource applies the fence rule."""
        while not over.is_set():
            try:
                token = lease.wait(timeout=0.2)
            except LeaseLost:
                return
            except Exception:  # noqa: BLE001 - suspended: nothing is done, ask again
                continue
            with resource:
                effects.append((time.monotonic(), who, token))
                if admits(highest[0] if highest else None, token, lease.claim):
                    highest[:] = [Admitted(token, lease.claim, who)]
                else:
                    refused.append(who)
            time.sleep(0.01)

    with (
        keeper_at(cluster.members[minority].endpoint, namespace, timing) as cut_off,
        keeper_at(others(cluster, minority), namespace, timing) as keeper,
    ):
        lost = cut_off.acquire("n")
        acting = [threading.Thread(target=act, args=(lost, "minority"))]
        acting[0].start()
        until(lambda: effects)
        with waiting(keeper, "n") as got:
            until(lambda: queue_of(cluster.members[follower(cluster)].endpoint, namespace) == 2)
            cluster.isolate(minority)
            with pytest.raises(Unavailable):
                cut_off.acquire("another", timeout=2)
            until(lambda: got, 40)
            acting.append(threading.Thread(target=act, args=(got[0], "majority")))
            acting[1].start()
        seen = len(effects)
        until(lambda: len(effects) > seen + 50)
        cluster.heal()
        until(lambda: lost.state is State.LOST, 40)
        time.sleep(0.3)
        over.set()
        for thread in acting:
            thread.join(20)
    turn = next(index for index, (_, who, _) in enumerate(effects) if who == "majority")
    assert {who for _, who, _ in effects[turn:]} == {"majority"}
    assert {who for _, who, _ in effects[:turn]} == {"minority"}
    assert refused == []


def test_a_minority_answers_no_question(cluster: EtcdCluster, namespace: str) -> None:
    """C09: what a member without a quorum could only answer from memory is Unavailable, never an old answer."""
    minority = follower(cluster)
    with keeper_at(cluster.members[minority].endpoint, namespace) as keeper, keeper.lease("n", ttl=60) as lease:
        cluster.isolate(minority)
        with pytest.raises(Unavailable):
            keeper._core.run(verify(keeper._core.ctx, "n", lease.token, keeper._core.until(2)))
        with pytest.raises(Unavailable):
            keeper._core.run(claims(keeper._core.ctx, "n", keeper._core.until(2)))
        cluster.heal()
        until(lambda: keeper.verify("n", lease.token))


def test_the_majority_does_not_notice(cluster: EtcdCluster, namespace: str) -> None:
    """A follower that is cut off costs a keeper that knows all members nothing but a move to another."""
    cut_off = follower(cluster)
    with keeper_at(first(cluster, cut_off), namespace) as keeper:
        lease = keeper.acquire("n")
        cluster.isolate(cut_off)
        over = time.monotonic() + 1.5 * TIMING.ttl
        while time.monotonic() < over:
            assert lease.wait(timeout=TIMING.ttl) == lease.token
            time.sleep(0.05)
        keeper.acquire("m", timeout=30).release()


# ---------------------------------------------------------------- members that are wrong


def test_a_member_that_does_not_know_the_lease(cluster: EtcdCluster, namespace: str) -> None:
    """C46: one member says that the lease is not there, two others would confirm it: it is LOST, and stays so."""
    with Intermediary(cluster.members[0].endpoint) as wrong:
        endpoints = f"{wrong.endpoint},{others(cluster, 0)}"
        with keeper_at(endpoints, namespace) as keeper:
            lease = keeper.acquire("n")
            wrong.on("LeaseKeepAlive", garbage(pb.LeaseKeepAliveResponse(ID=lease.lease_id).SerializeToString()))
            until(lambda: lease.state is State.LOST)
            wrong.off()
            time.sleep(TIMING.beat_s * 2)
            assert lease.state is State.LOST
            assert lease.loss is not None
            assert lease.loss.reason == "revoked"
            assert keeper.acquire("n", timeout=30).token > lease.token


def test_a_member_whose_history_is_older(cluster: EtcdCluster, namespace: str) -> None:
    """C46: a member that answers with a lower revision than was seen before hands out no lease: tokens never go backwards."""

    def older(reply: pb.TxnResponse) -> None:
        reply.header.revision = 1

    with (
        Intermediary(cluster.members[0].endpoint) as wrong,
        keeper_at(f"{wrong.endpoint},{others(cluster, 0)}", namespace) as keeper,
    ):
        keeper.acquire("n").release()
        wrong.on("Txn", altered(pb.TxnResponse, older))
        with pytest.raises(StoreRewound):
            keeper.acquire("m", timeout=10)
        wrong.off()
    assert RawEtcd(cluster.members[0].endpoint).claims(namespace) == []


# ---------------------------------------------------------------- all of it under every fault


FAULTS: dict[str, Callable[[EtcdCluster], object]] = {
    "cut a follower off": lambda cluster: cluster.isolate(follower(cluster)),
    "freeze the leader": lambda cluster: cluster.freeze(cluster.wait_leader()),
    "kill the leader": lambda cluster: cluster.kill(cluster.wait_leader()),
    "cut the leader off": lambda cluster: cluster.isolate(cluster.wait_leader(), how="cut"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_owner_at_a_time_through_a_fault(cluster: EtcdCluster, namespace: str, fault: str) -> None:
    """G1 G2: four threads on three members take turns through a fault; never two inside, and each token larger than the last."""
    inside: list[Lease] = []
    tokens: list[int] = []
    overlaps: list[tuple[int, ...]] = []
    over = threading.Event()
    failures: list[BaseException] = []

    def take_turns(keeper: Keeper) -> None:
        while not over.is_set():
            try:
                lease = keeper.acquire("n", timeout=30)
                inside.append(lease)
                tokens.append(lease.token)
                time.sleep(0.002)
                # Only one who is inside by right counts: whoever is suspended has been told to stand still.
                open_gates = [other.token for other in list(inside) if other.remaining() > 0]
                if len(open_gates) > 1:
                    overlaps.append(tuple(open_gates))
                inside.remove(lease)
                lease.release()
            except Unavailable:
                continue
            except BaseException as error:  # noqa: BLE001 - told below
                failures.append(error)
                return

    keepers = [keeper_at(first(cluster, i % 3), namespace) for i in range(4)]
    threads = [threading.Thread(target=take_turns, args=(keeper,)) for keeper in keepers]
    for thread in threads:
        thread.start()
    until(lambda: len(tokens) > 20)
    FAULTS[fault](cluster)
    seen = len(tokens)
    until(lambda: len(tokens) > seen + 20, 60)
    over.set()
    for thread in threads:
        thread.join(40)
    for keeper in keepers:
        keeper.close()
    assert failures == []
    assert overlaps == []
    assert tokens == sorted(set(tokens))
