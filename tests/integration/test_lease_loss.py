"""How a lease ends against its owner's will: what is said, what is refused, and what comes after."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from leasekeeper import Keeper, Lease, LeaseLost, LeaseSuspended, State, Timing
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.plan import TXN, ask
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.raw import RawEtcd
from tests.support import until

TIMING = Timing(ttl=2)


@pytest.fixture
def keeper(proxy: FaultProxy, namespace: str) -> Iterator[Keeper]:
    """A keeper whose network can be broken."""
    with Keeper(proxy.endpoint, namespace=namespace, timing=TIMING) as made:
        yield made
        proxy.heal()


def lost_reason(lease: Lease) -> str:
    """Wait for the loss: its reason."""
    until(lambda: lease.state is State.LOST)
    assert lease.loss is not None
    return lease.loss.reason


def guarded_write(keeper: Keeper, lease: Lease, key: str) -> bool:
    """A write to etcd that compares the claim: whether it went through."""
    put = pb.RequestOp(request_put=pb.PutRequest(key=key.encode(), value=b"x"))
    reply = keeper._core.run(ask(TXN, pb.TxnRequest(compare=lease.compares(), success=[put])))
    return bool(reply.succeeded)


def gone(raw: RawEtcd, lease: Lease) -> Callable[[], bool]:
    """Whether etcd has dropped the claim."""
    return lambda: lease.key not in [key.key for key in raw.keys(lease.key)]


# ---------------------------------------------------------------- each way to lose it


def _revoke(raw: RawEtcd, lease: Lease, _: FaultProxy) -> None:
    raw.revoke(lease.lease_id)


def _delete(raw: RawEtcd, lease: Lease, _: FaultProxy) -> None:
    assert raw.delete(lease.key)


def _replace(raw: RawEtcd, lease: Lease, _: FaultProxy) -> None:
    raw.delete(lease.key)
    raw.put(lease.key, "somebody else", raw.grant(60))


def _expire(raw: RawEtcd, lease: Lease, proxy: FaultProxy) -> None:
    proxy.blackhole()
    until(gone(raw, lease))
    proxy.heal()


WAYS = [(_revoke, "revoked"), (_delete, "deleted"), (_replace, "deleted"), (_expire, "expired")]


@pytest.mark.parametrize(("end", "reason"), WAYS)
def test_each_loss_has_its_reason_and_a_new_acquire_works(
    keeper: Keeper,
    raw: RawEtcd,
    proxy: FaultProxy,
    end: Callable[[RawEtcd, Lease, FaultProxy], None],
    reason: str,
) -> None:
    """C04 C06 C07 C38: A lease ended at etcd is LOST for its reason, stays so, and only asking again gives a higher token."""
    states: list[State] = []
    lease = keeper.acquire("n", timeout=10)
    lease.subscribe(states.append)
    end(raw, lease, proxy)
    assert lost_reason(lease) == reason
    until(lambda: states[-1:] == [State.LOST])
    for call in (lease.check, lease.wait):
        with pytest.raises(LeaseLost) as caught:
            call()
        assert (caught.value.reason, caught.value.loss, caught.value.token) == (reason, lease.loss, lease.token)
        assert pickle.loads(pickle.dumps(caught.value)).loss == lease.loss
    assert lease.remaining() == 0.0
    assert not guarded_write(keeper, lease, f"{lease.key}-written")
    assert [key for key in raw.keys(lease.key) if key.create_revision == lease.token] == []
    for stranger in raw.keys(lease.key):
        raw.delete(stranger.key)
    again = keeper.acquire("n", timeout=10)
    assert again.token > lease.token
    assert (again.wait(timeout=10), lease.state) == (again.token, State.LOST)
    assert [key.create_revision for key in raw.keys(again.key)] == [again.token]
    lease.release()
    assert keeper.verify("n", again.token)


def test_a_key_that_was_moved_to_another_lease_is_lost(keeper: Keeper, raw: RawEtcd) -> None:
    """C31: When somebody overwrites the key under a lease of their own, which no beat of ours keeps, it counts as lost."""
    lease = keeper.acquire("n", timeout=10)
    theirs = raw.grant(60)
    raw.put(lease.key, "moved", theirs)
    assert lost_reason(lease) == "deleted"
    lease.release()
    assert [(key.value, key.lease) for key in raw.keys(lease.key)] == [(b"moved", theirs)]


def test_other_leases_of_the_session_outlive_a_deleted_key(keeper: Keeper, raw: RawEtcd) -> None:
    """C38: When an operator deletes one key, the other leases under the same etcd lease stay HELD."""
    lease, other = keeper.acquire("n", timeout=10), keeper.acquire("m", timeout=10)
    raw.delete(lease.key)
    assert lost_reason(lease) == "deleted"
    assert other.wait(timeout=10) == other.token
    assert keeper.verify("m", other.token)


def test_a_new_owner_in_between_changes_nothing_for_the_loser(
    keeper: Keeper, raw: RawEtcd, proxy: FaultProxy, etcd: EtcdServer, namespace: str
) -> None:
    """C06: Renewal that comes back after another owner took over creates nothing and disturbs nobody."""
    lease = keeper.acquire("n", timeout=10)
    proxy.blackhole()
    with Keeper(etcd.endpoint, namespace=namespace) as rival, rival.lease("n", timeout=20) as taken:
        with pytest.raises(LeaseSuspended):
            lease.check()
        proxy.heal()
        assert lost_reason(lease) == "expired"
        assert [key.create_revision for key in raw.claims(namespace)] == [taken.token]
        lease.release()
        assert taken.check() == taken.token
        assert keeper.try_acquire("n") is None
    assert raw.claims(namespace) == []


def test_the_second_acquisition_is_renewed_like_the_first(proxy: FaultProxy, raw: RawEtcd, namespace: str) -> None:
    """C08: After a loss and a new acquire in the same process the lease is kept for three TTLs by beats of its own."""
    with Keeper(proxy.endpoint, namespace=namespace, timing=Timing(ttl=1)) as keeper:
        lost = keeper.acquire("n", timeout=10)
        proxy.cut()
        until(gone(raw, lost))
        proxy.heal()
        lost_reason(lost)
        lease = keeper.acquire("n", timeout=20)
        born = lease._session.proof_s
        until(lambda: lease._session.proof_s > born + 3)
        assert lease.wait(timeout=10) == lease.token
        assert [key.create_revision for key in raw.claims(namespace)] == [lease.token]


# ---------------------------------------------------------------- how it is noticed


def test_a_deleted_key_is_noticed_by_its_watch(etcd: EtcdServer, namespace: str, raw: RawEtcd) -> None:
    """C38: The own key is watched: its deletion ends the lease long before the next beat or reading back of a long TTL."""
    with Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=300)) as keeper:
        lease = keeper.acquire("n", timeout=10)
        raw.delete(lease.key)
        assert lost_reason(lease) == "deleted"


def test_a_deleted_key_is_noticed_without_a_watch(
    keeper: Keeper, raw: RawEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C38: The own key is read back within a TTL: its deletion ends the lease also where no watch tells of it."""
    monkeypatch.setattr(keeper._core.heart._keys, "_watch", lambda *_: None)
    lease = keeper.acquire("n", timeout=10)
    raw.delete(lease.key)
    assert lost_reason(lease) == "deleted"


def test_a_stranger_in_our_place_is_not_removed(keeper: Keeper, raw: RawEtcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """C15 G1: A release of a claim whose key was replaced unnoticed deletes nothing, and the block ends in LeaseLost."""
    monkeypatch.setattr(keeper._core.heart._keys, "_watch", lambda *_: None)

    def body() -> None:
        with keeper.lease("n", timeout=10) as lease:
            keys.append(lease.key)
            raw.delete(lease.key)
            raw.put(lease.key, "stranger", raw.grant(60))

    keys: list[str] = []
    with pytest.raises(LeaseLost):
        body()
    assert [key.value for key in raw.keys(keys[0])] == [b"stranger"]


# ---------------------------------------------------------------- leaving the block


def test_a_block_that_lost_its_lease_does_not_end_well(keeper: Keeper, raw: RawEtcd) -> None:
    """C15: A body that returns normally after its lease was revoked unseen ends in LeaseLost."""

    def body() -> None:
        with keeper.lease("n", timeout=10) as lease:
            raw.revoke(lease.lease_id)

    with pytest.raises(LeaseLost):
        body()


def test_a_block_that_lost_its_key_at_the_last_moment_does_not_end_well(
    keeper: Keeper, raw: RawEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C15: A body whose key went without any news of it ends in LeaseLost, because the release finds no key to delete."""
    monkeypatch.setattr(keeper._core.heart._keys, "_watch", lambda *_: None)

    def body() -> None:
        with keeper.lease("n", timeout=10) as lease:
            raw.delete(lease.key)

    with pytest.raises(LeaseLost) as caught:
        body()
    assert caught.value.reason == "deleted"


def test_an_error_of_the_body_wins_and_keeps_the_loss(keeper: Keeper, raw: RawEtcd) -> None:
    """C15: A body that raises after a loss gives its own error, with the LeaseLost as its context."""

    def body() -> None:
        with keeper.lease("n", timeout=10) as lease:
            raw.revoke(lease.lease_id)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        body()
    assert isinstance(caught.value.__context__, LeaseLost)


def test_a_critical_block_says_when_its_outcome_is_in_doubt(keeper: Keeper, raw: RawEtcd) -> None:
    """C15: A critical block that outlives its authority ends in LeaseLost ``in_doubt``; one that does not ends normally."""
    with keeper.lease("m", timeout=10) as whole, whole.critical(need=0.1) as token:
        assert token == whole.token

    def body(lease: Lease) -> None:
        with lease.critical():
            raw.delete(lease.key)
            until(lambda: lease.state is State.LOST)

    lease = keeper.acquire("n", timeout=10)
    with pytest.raises(LeaseLost) as caught:
        body(lease)
    assert caught.value.in_doubt


@pytest.mark.parametrize("by", ["the block", "another thread"])
def test_a_critical_block_without_its_lease_is_in_doubt(keeper: Keeper, by: str) -> None:
    """C15: A release during a critical block lets somebody else in while it runs: it ends in LeaseLost ``in_doubt``."""

    def body(lease: Lease) -> None:
        with lease.critical():
            if by == "the block":
                lease.release()
            else:
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(lease.release).result(30)
            keeper.acquire("n", timeout=10).release()

    with keeper.lease("n", timeout=10) as lease:
        with pytest.raises(LeaseLost, match="released") as caught:
            body(lease)
        assert caught.value.in_doubt
        assert caught.value.reason == "released"


@pytest.mark.parametrize("ask", ["check", "wait", "critical"])
def test_a_loss_is_told_once(keeper: Keeper, raw: RawEtcd, ask: str) -> None:
    """A body that ends with the LeaseLost it met at the gate ends with that one: the same loss is not told twice."""

    def body() -> None:
        with keeper.lease("n", timeout=10) as lease:
            raw.revoke(lease.lease_id)
            until(lambda: lease.state is State.LOST)
            if ask == "critical":
                with lease.critical():
                    raise AssertionError("never")
            getattr(lease, ask)()

    with pytest.raises(LeaseLost) as caught:
        body()
    assert caught.value.__context__ is None


# ---------------------------------------------------------------- patience


def test_max_hold_ends_work_that_hangs(etcd: EtcdServer, namespace: str, raw: RawEtcd) -> None:
    """C18: A step that hangs for ever does not block the name for ever: after ``max_hold`` it is LOST and free for others."""
    with (
        Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=30, max_hold=0.5)) as keeper,
        Keeper(etcd.endpoint, namespace=namespace) as other,
    ):
        lease = keeper.acquire("n", timeout=10)
        with other.lease("n", timeout=20) as taken:
            assert lost_reason(lease) == "gave_up"
            with pytest.raises(LeaseLost):
                lease.check()
            assert [key.create_revision for key in raw.claims(namespace)] == [taken.token]


def test_give_up_after_ends_a_long_suspension(proxy: FaultProxy, namespace: str) -> None:
    """C38: With ``give_up_after`` a lease without proof is LOST with reason ``gave_up`` although etcd cannot be asked."""
    with Keeper(
        proxy.endpoint, namespace=namespace, timing=Timing(ttl=60, pause_after=1, beat_every=0.4, give_up_after=0.5)
    ) as keeper:
        lease = keeper.acquire("n", timeout=10)
        proxy.blackhole()
        assert lost_reason(lease) == "gave_up"
        with pytest.raises(LeaseLost):
            lease.wait()
        proxy.heal()
        assert lease.state is State.LOST


# ---------------------------------------------------------------- callbacks


def test_a_broken_callback_hurts_nobody(keeper: Keeper, raw: RawEtcd, caplog: pytest.LogCaptureFixture) -> None:
    """C16: A subscriber that raises is logged; later subscribers hear the news, and beats go on."""
    heard: list[Any] = []
    threads: list[str] = []
    lease, other = keeper.acquire("n", timeout=10), keeper.acquire("m", timeout=10)

    def broken(_: State) -> None:
        threads.append(threading.current_thread().name)
        raise RuntimeError("on purpose")

    lease.subscribe(broken)
    lease.subscribe(heard.append)
    raw.delete(lease.key)
    until(lambda: heard[-1:] == [State.LOST])
    assert "on purpose" in caplog.text
    assert "leasekeeper-heart" not in threads
    proof = other._session.proof_s
    until(lambda: other._session.proof_s > proof)
    assert other.check() == other.token


def test_a_callback_that_hangs_stops_no_beat(keeper: Keeper, raw: RawEtcd) -> None:
    """C16: While a subscriber blocks, other leases are kept alive and other threads acquire."""
    release = threading.Event()
    lease, other = keeper.acquire("n", timeout=10), keeper.acquire("m", timeout=10)
    lease.subscribe(lambda _: release.wait(30))
    raw.delete(lease.key)
    lost_reason(lease)
    proof = other._session.proof_s
    until(lambda: other._session.proof_s > proof + TIMING.ttl)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(keeper.acquire, "n", timeout=10).result(20).token > lease.token
    release.set()
