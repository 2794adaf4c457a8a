"""A broken network between an owner and etcd: work is held, goes on when proof is back, and ends when it is too late."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from leasekeeper import Keeper, Lease, LeaseLost, LeaseSuspended, State, Timing, Unavailable
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.runtime.core import observers
from leasekeeper.runtime.events import BeatMissed, Event
from leasekeeper.testing import EtcdServer, Fault, FaultProxy, Way
from leasekeeper.wire import watch
from tests.intermediary import Intermediary, Passing, refuse
from tests.raw import RawEtcd
from tests.support import until

TTL_S = 2
TIMING = Timing(ttl=TTL_S)


@pytest.fixture
def keeper(proxy: FaultProxy, namespace: str) -> Iterator[Keeper]:
    """A keeper whose network can be broken."""
    with Keeper(proxy.endpoint, namespace=namespace, timing=TIMING) as made:
        yield made
        proxy.heal()


@pytest.fixture
def events() -> Iterator[list[Event]]:
    """What observers are told."""
    heard: list[Event] = []
    observers.append(heard.append)
    yield heard
    observers.remove(heard.append)


def proof_of(lease: Lease) -> float:
    """When the last confirmed beat was sent."""
    return lease._session.proof_s


def until_refused(lease: Lease) -> float:
    """Poll the gate until it refuses: the time, by the lease's clock, at which it last let work through."""
    passed_s = lease._now()
    while True:
        now_s = lease._now()
        try:
            lease.check()
        except LeaseSuspended:
            return passed_s
        passed_s = now_s
        time.sleep(0.005)


# ---------------------------------------------------------------- a short outage


@pytest.mark.parametrize(
    "fault",
    [
        Fault("blackhole"),
        Fault("blackhole", Way.TO_CLIENT),
        Fault("cut"),
        Fault("lose_replies"),
    ],
    ids=str,
)
def test_a_short_outage_holds_work_and_lets_it_go_on(keeper: Keeper, proxy: FaultProxy, fault: Fault) -> None:
    """C38 B26: While beats are missing the gate refuses; when they are back in time the same token goes on by itself."""
    states: list[State] = []
    lease = keeper.acquire("n", timeout=10)
    lease.subscribe(states.append)
    proxy.inject(fault)
    last_pass_s = until_refused(lease)
    assert last_pass_s - proof_of(lease) < TIMING.pause_s
    with pytest.raises(LeaseSuspended) as caught:
        lease.wait(timeout=0.05)
    assert caught.value.age_s >= TIMING.pause_s
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lease.wait, timeout=20)
        proxy.heal()
        assert waiting.result(20) == lease.token
    assert lease.check() == lease.token
    until(lambda: states == [State.SUSPENDED, State.HELD])


def test_need_closes_the_gate_earlier(keeper: Keeper, proxy: FaultProxy) -> None:
    """G3: Work that needs more authority than is left is refused while work that needs little still passes."""
    lease = keeper.acquire("n", timeout=10)
    proxy.blackhole()
    most_s = TIMING.authority_s - 0.2
    until(lambda: lease.remaining() < most_s)
    with pytest.raises(LeaseSuspended) as caught:
        lease.check(need=most_s)
    assert caught.value.remaining_s < caught.value.need_s == most_s
    assert lease.check(need=0.1) == lease.token


def test_two_missed_beats_pause_but_do_not_end(etcd: EtcdServer, namespace: str, events: list[Event]) -> None:
    """C26: One failed beat, then two, inside a TTL that allows four change nothing for the owner; observers get the counts."""
    with Intermediary(etcd.endpoint) as mid, Keeper(mid.endpoint, namespace=namespace, timing=TIMING) as keeper:
        lease = keeper.acquire("n", timeout=10)
        for times in (1, 2):
            rule = mid.on("LeaseKeepAlive", refuse(grpc.StatusCode.UNAVAILABLE, "once"), times=times)
            until(lambda: rule.times == 0)  # noqa: B023 - called in this round only
            seen = proof_of(lease)
            until(lambda: proof_of(lease) > seen)  # noqa: B023 - called in this round only
            assert lease.wait(timeout=10) == lease.token
        missed = [event for event in list(events) if isinstance(event, BeatMissed)]
        assert [event.in_a_row for event in missed][:3] == [1, 1, 2]
        assert all("once" in event.why and event.endpoint == mid.endpoint for event in missed[:3])


# ---------------------------------------------------------------- a long outage


@pytest.mark.parametrize("fault", [Fault("blackhole"), Fault("cut")], ids=str)
def test_a_long_outage_shuts_the_gate_before_the_ttl_and_ends_in_loss(
    keeper: Keeper, proxy: FaultProxy, etcd: EtcdServer, namespace: str, fault: Fault
) -> None:
    """C01 B26: The gate refuses while etcd still has the key; nobody else owns it before; after the heal it is LOST for good."""
    raw = RawEtcd(etcd.endpoint)
    lease = keeper.acquire("n", timeout=10)
    proxy.inject(fault)
    until_refused(lease)
    until(lambda: lease.remaining() == 0)
    assert [key.create_revision for key in raw.claims(namespace)] == [lease.token]
    with Keeper(etcd.endpoint, namespace=namespace) as rival, rival.lease("n", timeout=20) as taken:
        assert lease.state is State.SUSPENDED
        proxy.heal()
        with pytest.raises(LeaseLost) as caught:
            lease.wait(timeout=20)
        assert caught.value.reason == "expired"
        assert taken.token > lease.token
        assert rival.verify("n", taken.token)


@pytest.mark.parametrize("late_s", [0.25 * TTL_S, 0.45 * TTL_S])
def test_a_late_answer_counts_from_its_sending(etcd: EtcdServer, namespace: str, late_s: float) -> None:
    """G3: An etcd that takes nearly half a TTL for each answer proves authority, but only what is left of it since sending."""

    def slowly(passing: Passing) -> bytes:
        reply = passing.forward()
        time.sleep(late_s)
        return reply

    with Intermediary(etcd.endpoint) as mid, Keeper(mid.endpoint, namespace=namespace, timing=TIMING) as keeper:
        lease = keeper.acquire("n", timeout=10)
        mid.on("LeaseKeepAlive", slowly)
        for _ in range(4):
            seen = proof_of(lease)
            until(lambda: proof_of(lease) > seen)  # noqa: B023 - called in this round only
            assert lease.remaining() <= TIMING.authority_s - late_s
        assert lease.wait(timeout=20) == lease.token


def test_a_slow_network_proves_authority(keeper: Keeper, proxy: FaultProxy) -> None:
    """C26: With a way there and back longer than a beat may take, so that each is missed at first, the lease is kept."""
    lease = keeper.acquire("n", timeout=10)
    born = proof_of(lease)
    proxy.delay(0.15 * TTL_S / 2)
    assert TIMING.beat_late_s < 0.15 * TTL_S
    until(lambda: proof_of(lease) > born + TTL_S)
    assert lease.wait(timeout=20) == lease.token
    assert lease._session.lapses == 0


@pytest.mark.slow
def test_a_far_network_proves_authority_over_one_connection(proxy: FaultProxy, namespace: str) -> None:
    """C26: With a way there and back of 0.3 TTL each beat is late, and proves authority all the same, on one connection."""
    timing = Timing(ttl=4)
    with Keeper(proxy.endpoint, namespace=namespace, timing=timing) as keeper:
        lease = keeper.acquire("n", timeout=10)
        until(lambda: proof_of(lease) > lease._authority.held_since_s)
        proxy.delay(0.3 * timing.ttl / 2)
        beats = keeper._core.engine.beats
        until(lambda: beats.connection().trip_s >= 0.3 * timing.ttl)
        connection = beats.connection()
        for _ in range(4):
            seen = proof_of(lease)
            until(lambda: proof_of(lease) >= seen + timing.beat_s)  # noqa: B023 - called in this round only
            assert lease.wait(timeout=20) == lease.token
        # A stutter of this machine may count as broken for a moment; the connection that answers is then taken again.
        until(lambda: beats.connection() is connection)


def test_a_server_that_is_far_away_is_reached(proxy: FaultProxy, namespace: str) -> None:
    """C26: A new keeper connects and acquires although the first greeting alone takes a third of a second."""
    proxy.delay(0.15)
    with Keeper(proxy.endpoint, namespace=namespace) as keeper, keeper.lease("n", timeout=20) as lease:
        assert lease.check() == lease.token


def test_authority_that_lapsed_needs_the_key_read_back(etcd: EtcdServer, namespace: str) -> None:
    """B26: After authority had lapsed a confirmed beat alone does not open the gate: the own key is read first."""
    with Intermediary(etcd.endpoint) as mid, Keeper(mid.endpoint, namespace=namespace, timing=TIMING) as keeper:
        lease = keeper.acquire("n", timeout=10)
        # The server hears every beat, so the lease lives; only the answers are lost.
        beats = mid.on("LeaseKeepAlive", refuse(grpc.StatusCode.UNAVAILABLE, after=True))
        reads = mid.on("Txn", refuse(grpc.StatusCode.UNAVAILABLE))
        until(lambda: lease.remaining() == 0)
        mid.off(beats)
        until(lambda: lease._session.pending_s > 0)
        with pytest.raises(LeaseSuspended):
            lease.check()
        mid.off(reads)
        assert lease.wait(timeout=20) == lease.token
        assert lease._session.lapses == 1


def test_authority_that_lapsed_does_not_come_back_without_the_key(etcd: EtcdServer, namespace: str) -> None:
    """B26 G5: If the key was deleted while authority had lapsed, beats that are confirmed again end in LOST, not in HELD."""
    raw = RawEtcd(etcd.endpoint)
    with Intermediary(etcd.endpoint) as mid, Keeper(mid.endpoint, namespace=namespace, timing=TIMING) as keeper:
        lease = keeper.acquire("n", timeout=10)
        states: list[State] = []
        lease.subscribe(states.append)
        mid.on("Watch", refuse(grpc.StatusCode.UNAVAILABLE))
        keeper._core.hub.close()  # no news by watch: what is left is the reading back
        mid.on("LeaseKeepAlive", refuse(grpc.StatusCode.UNAVAILABLE, after=True))
        mid.on("Txn", refuse(grpc.StatusCode.UNAVAILABLE))
        until(lambda: lease.remaining() == 0)
        raw.delete(lease.key)
        mid.off()
        until(lambda: lease.state is State.LOST)
        assert lease.loss is not None
        assert lease.loss.reason == "deleted"
        until(lambda: states == [State.SUSPENDED, State.LOST])


# ---------------------------------------------------------------- connections that come and go


@pytest.mark.slow
def test_connections_closed_again_and_again_cost_nothing(keeper: Keeper, proxy: FaultProxy) -> None:
    """C12: A server that ends every connection cleanly each second never suspends the owner, and no thread is left over."""
    states: list[State] = []
    lease = keeper.acquire("n", timeout=10)
    lease.subscribe(states.append)
    threads = 0
    for number in range(6):
        proxy.close_cleanly()
        seen = proof_of(lease)
        until(lambda: proof_of(lease) > seen + TIMING.beat_s)  # noqa: B023 - called in this round only
        assert lease.check() == lease.token
        threads = threads if number else threading.active_count()
    assert states == []
    until(lambda: threading.active_count() <= threads)


def test_a_waiter_survives_resets_of_its_watch(
    keeper: Keeper, proxy: FaultProxy, etcd: EtcdServer, namespace: str
) -> None:
    """C12: A waiter whose connections are reset, and whose predecessor leaves while it is cut off, gets its turn."""
    with Keeper(etcd.endpoint, namespace=namespace) as owner, ThreadPoolExecutor(1) as pool:
        lease = owner.acquire("n", timeout=10)
        waiting = pool.submit(keeper.acquire, "n", timeout=30)
        until(lambda: len(owner.claims("n")) == 2)
        for _ in range(5):
            proxy.heal(reset=True)
            time.sleep(0.05)
        proxy.cut()
        lease.release()
        proxy.heal()
        assert waiting.result(20).token > lease.token


def test_beats_go_on_while_a_large_request_is_stuck(etcd: EtcdServer, namespace: str) -> None:
    """C16: Calls that hang do not hold the heartbeat up: it has connections of its own."""
    release = threading.Event()
    with (
        Intermediary(etcd.endpoint) as mid,
        Keeper(mid.endpoint, namespace=namespace, timing=TIMING) as keeper,
        ThreadPoolExecutor(8) as pool,
    ):
        lease = keeper.acquire("n", timeout=10)
        mid.on("Range", lambda passing: (release.wait(20), passing.forward())[1])
        mid.on(
            "Txn",
            lambda passing: (release.wait(20), passing.forward())[1],
            when=lambda request: b"claims-of" in request,
        )
        hanging = [pool.submit(keeper.claims, "claims-of") for _ in range(8)]
        proof = proof_of(lease)
        until(lambda: proof_of(lease) > proof + TTL_S)
        assert lease.check() == lease.token
        release.set()
        for each in hanging:
            each.result(20)


def test_a_waiter_survives_a_watch_that_falls_silent(
    etcd: EtcdServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C20: A watch stream on which nothing comes any more, although it is open, is given up; the waiter gets its turn."""
    monkeypatch.setattr(watch, "SILENCE_S", 1.0)
    silence = threading.Event()

    def hold(passing: Passing) -> bytes:
        silence.wait(60)
        return passing.forward()

    with (
        Intermediary(etcd.endpoint) as mid,
        Keeper(mid.endpoint, namespace=namespace, timing=TIMING) as keeper,
        Keeper(etcd.endpoint, namespace=namespace) as owner,
        ThreadPoolExecutor(1) as pool,
    ):
        lease = owner.acquire("n", timeout=10)
        mid.on("WatchResponse", hold, times=1)
        waiting = pool.submit(keeper.acquire, "n", timeout=40)
        until(lambda: len(owner.claims("n")) == 2)
        lease.release()
        assert waiting.result(25).token > lease.token
        silence.set()


def test_without_a_heart_the_gate_shuts_by_the_clock(keeper: Keeper) -> None:
    """C16 G3: If the heartbeat thread were to end, nothing has to happen for the gate to shut: it reads the clock."""
    lease = keeper.acquire("n", timeout=10)
    keeper._core.heart.close()
    last_pass_s = until_refused(lease)
    assert last_pass_s - proof_of(lease) < TIMING.pause_s
    assert lease.state is State.SUSPENDED
    until(lambda: lease.remaining() == 0)


# ---------------------------------------------------------------- a frozen server


@pytest.mark.parametrize("share", [0.6, 2.0])
@pytest.mark.slow
def test_a_frozen_etcd(namespace: str, share: float) -> None:
    """C13: etcd frozen for less than a TTL: held, then on with the same token. Twice a TTL: shut before, not revived."""
    timing = Timing(ttl=2)
    with EtcdServer(fsync=False) as server, Keeper(server.endpoint, namespace=namespace, timing=timing) as keeper:
        lease = keeper.acquire("n", timeout=10)
        server.freeze()
        frozen_s = lease._now()
        last_pass_s = until_refused(lease)
        assert last_pass_s - proof_of(lease) < timing.pause_s
        until(lambda: lease._now() >= frozen_s + share * timing.ttl)
        server.thaw()
        if share < 1:
            assert lease.wait(timeout=20) == lease.token
            return
        # A frozen lessor did not count either, so etcd may have kept the lease. What it must not be is HELD without proof.
        try:
            assert lease.wait(timeout=20) == lease.token
            assert lease._session.lapses == 1
            assert keeper.verify("n", lease.token)
        except LeaseLost:
            assert not keeper.verify("n", lease.token)


# ---------------------------------------------------------------- nothing but answers count


def test_unreachable_is_never_a_yes(proxy: FaultProxy, keeper: Keeper) -> None:
    """A12: Cut off, nothing is acquired: the call raises Unavailable, and the held lease is SUSPENDED, not HELD."""
    lease = keeper.acquire("n", timeout=10)
    proxy.cut()
    until_refused(lease)
    assert lease.state is State.SUSPENDED
    with pytest.raises(Unavailable):
        keeper.acquire("m", timeout=0.5)
    assert lease.state is State.SUSPENDED


def test_no_read_is_ever_serializable(etcd: EtcdServer, namespace: str) -> None:
    """A30: Through a life of acquiring, waiting, looking and releasing, every read asks for the quorum's answer."""

    def reads(txn: pb.TxnRequest) -> list[pb.RangeRequest]:
        return [op.request_range for op in (*txn.success, *txn.failure) if op.HasField("request_range")]

    with (
        Intermediary(etcd.endpoint) as mid,
        Keeper(mid.endpoint, namespace=namespace, timing=Timing(ttl=1)) as keeper,
        ThreadPoolExecutor(1) as pool,
    ):
        lease = keeper.acquire("n", timeout=10)
        waiting = pool.submit(keeper.acquire, "n", timeout=20)
        until(lambda: len(keeper.claims("n")) == 2)
        assert keeper.verify("n", lease.token)
        assert keeper.try_acquire("n") is None
        assert list(keeper.names()) == ["n"]
        txns = mid.count("Txn")
        until(lambda: mid.count("Txn") > txns)  # a read-back of the heart
        lease.release()
        waiting.result(20).release()
        seen = [read for txn in mid.requests("Txn", pb.TxnRequest) for read in reads(txn)]
        seen += mid.requests("Range", pb.RangeRequest)
        assert len(seen) > 10
        assert not any(read.serializable for read in seen)


def test_every_claim_is_under_a_lease_of_ours(etcd: EtcdServer, namespace: str) -> None:
    """C33 C45: Every put on the wire names the lease that this keeper was granted; etcd's own Lock service is not used."""
    with Intermediary(etcd.endpoint) as mid, Keeper(mid.endpoint, namespace=namespace, timing=TIMING) as keeper:
        keeper.acquire("n", timeout=10).release()
        taken = keeper.try_acquire("m")
        assert taken is not None
        granted = {request.ID for request in mid.requests("LeaseGrant", pb.LeaseGrantRequest)}
        puts = [
            op.request_put
            for txn in mid.requests("Txn", pb.TxnRequest)
            for op in (*txn.success, *txn.failure)
            if op.HasField("request_put")
        ]
        assert len(puts) == 2
        assert {put.lease for put in puts} == granted == {taken.lease_id}
        assert mid.count("Put") == mid.count("Lock") == mid.count("Campaign") == 0
