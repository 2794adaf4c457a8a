"""What becomes of leases when etcd's store is full, compacted, restarted, restored, or given a new epoch."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import Keeper, OutOfSpace, State, StoreRewound, Timing
from leasekeeper.fencing import make_token, split_token
from leasekeeper.protocol import epoch
from leasekeeper.protocol.keys import write_epoch
from leasekeeper.testing import EtcdServer
from tests.intermediary import Intermediary, Passing
from tests.raw import RawEtcd, Refused
from tests.support import until

TIMING = Timing(ttl=3)


@pytest.fixture
def own_etcd() -> Iterator[EtcdServer]:
    """A server of this test's own, to be restored or killed."""
    with EtcdServer(fsync=False) as server:
        yield server


def bump(endpoint: str, namespace: str, above: int = 0) -> int:
    """Raise the epoch, as an operator does: its new number."""
    with Keeper(endpoint, namespace=namespace) as operator:
        core = operator._core
        found: int = core.run(epoch.bump(core.ctx, core.until(), above=above)).number
        return found


# ---------------------------------------------------------------- the epoch


def test_an_epoch_puts_new_tokens_above_all_old_ones(etcd: EtcdServer, namespace: str) -> None:
    """G2: After a bump a keeper that knew the old epoch acquires under the new one, and a held lease goes on as it was."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.lease("held", timeout=10) as held:
        old = keeper.acquire("n", timeout=10)
        old.release()
        number = bump(etcd.endpoint, namespace)
        with keeper.lease("n", timeout=10) as new:
            assert split_token(new.token)[0] == number > 0
            assert new.token > old.token
            assert keeper.verify("n", new.token)
            assert not keeper.verify("n", split_token(new.token)[1])
        assert held.check() == held.token
        assert keeper.verify("held", held.token)


def test_a_waiter_from_before_the_bump_gets_no_lease_under_the_old_epoch(etcd: EtcdServer, namespace: str) -> None:
    """G2: A claim that stood in the queue when the epoch was raised ends up with a token of the new epoch."""
    with (
        Keeper(etcd.endpoint, namespace=namespace) as owner,
        Keeper(etcd.endpoint, namespace=namespace) as waiter,
        ThreadPoolExecutor(1) as pool,
    ):
        lease = owner.acquire("n", timeout=10)
        waiting = pool.submit(waiter.acquire, "n", timeout=20)
        until(lambda: len(owner.claims("n")) == 2)
        number = bump(etcd.endpoint, namespace)
        lease.release()
        with waiting.result(20) as taken:
            assert split_token(taken.token)[0] == number
            assert waiter.verify("n", taken.token)
        assert RawEtcd(etcd.endpoint).claims(namespace) == []


@pytest.mark.parametrize("attempt", ["before", "after, reply lost"])
def test_an_acquire_that_races_with_a_bump_gets_the_new_epoch(etcd: EtcdServer, namespace: str, attempt: str) -> None:
    """G2: A bump that comes between an acquire's reading of the epoch and its answer leaves no lease under the old one."""
    numbers: list[int] = []

    def bump_meanwhile(passing: Passing) -> bytes:
        if attempt == "before":
            numbers.append(bump(etcd.endpoint, namespace))
            return passing.forward()
        passing.forward()
        numbers.append(bump(etcd.endpoint, namespace))
        return b"\xff no message"

    with Intermediary(etcd.endpoint) as mid, Keeper(mid.endpoint, namespace=namespace) as keeper:
        keeper.acquire("m", timeout=10).release()
        mid.on("Txn", bump_meanwhile, times=1)
        with keeper.lease("n", timeout=20) as lease:
            assert split_token(lease.token)[0] == numbers[0]
            assert [key.key for key in RawEtcd(etcd.endpoint).claims(namespace)] == [lease.key]


def test_two_operators_raise_the_epoch_once_each(etcd: EtcdServer, namespace: str) -> None:
    """Bumps at the same time follow one another, each with a number of its own."""
    with ThreadPoolExecutor(6) as pool:
        numbers = [done.result(30) for done in [pool.submit(bump, etcd.endpoint, namespace) for _ in range(6)]]
    assert len(set(numbers)) == 6


# ---------------------------------------------------------------- a restore


class Rewound:
    """A server that went back to a snapshot while a keeper had seen more of it."""

    def __init__(self, server: EtcdServer, namespace: str, path: Path) -> None:
        self.server = server
        self.namespace = namespace
        self.raw = RawEtcd(server.endpoint)
        self.keeper = Keeper(server.endpoint, namespace=namespace, timing=TIMING)
        self.keeper.acquire("n", timeout=10).release()
        server.snapshot(path)
        for _ in range(20):
            self.raw.put("churn")
        last = self.keeper.acquire("n", timeout=10)
        last.release()
        self.highest = last.token
        server.restore(path)


@pytest.fixture
def rewound(own_etcd: EtcdServer, namespace: str, tmp_path: Path) -> Iterator[Rewound]:
    """Etcd restored from a snapshot, with a keeper from before."""
    made = Rewound(own_etcd, namespace, tmp_path / "snapshot")
    yield made
    made.keeper.close()


def test_a_keeper_that_saw_more_refuses_a_restored_store(rewound: Rewound) -> None:
    """A30: After a restore acquiring and verifying raise StoreRewound with both revisions, and leave no claim."""
    calls: list[Any] = [
        lambda: rewound.keeper.acquire("n", timeout=10),
        lambda: rewound.keeper.try_acquire("n"),
        lambda: rewound.keeper.verify("n", rewound.highest),
    ]
    for call in calls:
        with pytest.raises(StoreRewound) as caught:
            call()
        assert caught.value.seen >= rewound.highest > caught.value.now
        assert "epoch bump" in str(caught.value)
    until(lambda: rewound.raw.claims(rewound.namespace) == [])


def test_a_bump_after_a_restore_lets_everybody_go_on_with_larger_tokens(rewound: Rewound) -> None:
    """G2: After the bump the keeper from before and a new one acquire with tokens above every earlier one, and verify works."""
    with pytest.raises(StoreRewound):
        rewound.keeper.acquire("n", timeout=10)
    bump(rewound.server.endpoint, rewound.namespace)
    assert not rewound.keeper.verify("n", rewound.highest)
    with rewound.keeper.lease("n", timeout=10) as lease:
        assert lease.token > rewound.highest
        assert rewound.keeper.verify("n", lease.token)
        first = lease.token
    with (
        Keeper(rewound.server.endpoint, namespace=rewound.namespace, timing=TIMING) as other,
        other.lease("n", timeout=10) as lease,
    ):
        assert lease.token > first


def test_a_second_restore_of_the_same_backup_hands_out_no_epoch_twice(
    own_etcd: EtcdServer, namespace: str, tmp_path: Path
) -> None:
    """G2: A second restore forgets the first bump; the next one, told a token of then, gives larger tokens all the same."""

    def take() -> int:
        with Keeper(own_etcd.endpoint, namespace=namespace, timing=TIMING) as keeper:
            core = keeper._core
            core.run(epoch.bump(core.ctx, core.until(), above=max(tokens, default=0)))
            with keeper.lease("n", timeout=10) as lease:
                return lease.token

    tokens: list[int] = []
    snapshot = own_etcd.snapshot(tmp_path / "snapshot")
    for _ in range(2):
        tokens.append(take())
        own_etcd.restore(snapshot)
    tokens.append(take())
    assert tokens == sorted(set(tokens))


def test_a_claim_that_a_restore_brings_back_does_not_block_its_name(
    own_etcd: EtcdServer, namespace: str, tmp_path: Path
) -> None:
    """A claim given back since the backup stands there again, by a lease that is beaten for another one: it is swept away."""
    raw = RawEtcd(own_etcd.endpoint)
    with Keeper(own_etcd.endpoint, namespace=namespace, timing=TIMING) as keeper:
        held = keeper.acquire("held", timeout=10)
        given_back = keeper.acquire("given back", timeout=10)
        snapshot = own_etcd.snapshot(tmp_path / "snapshot")
        given_back.release()
        own_etcd.restore(snapshot)
        assert given_back.key in {claim.key for claim in raw.claims(namespace)}
        bump(own_etcd.endpoint, namespace)
        with keeper.lease("another", timeout=10):
            until(lambda: given_back.key not in {claim.key for claim in raw.claims(namespace)})
            with Keeper(own_etcd.endpoint, namespace=namespace, timing=TIMING) as other:
                other.acquire("given back", timeout=10)
            assert held.wait(timeout=10) == held.token


def test_a_keeper_that_only_holds_hears_of_a_new_epoch(own_etcd: EtcdServer, namespace: str, tmp_path: Path) -> None:
    """A30 G2: Through a restore and a bump, a lease from before the backup goes on and one from after it is LOST.

    Claims given back since then are swept away although the keeper acquires nothing any more.
    """
    raw = RawEtcd(own_etcd.endpoint)
    with Keeper(own_etcd.endpoint, namespace=namespace, timing=TIMING) as keeper:
        held = keeper.acquire("held", timeout=10)
        given_back = keeper.acquire("given back", timeout=10)
        snapshot = own_etcd.snapshot(tmp_path / "snapshot")
        given_back.release()
        for _ in range(200):
            raw.put("churn")
        later = keeper.acquire("later", timeout=10)
        session = held._session
        own_etcd.restore(snapshot)
        restored_s = keeper._core.now()
        until(lambda: later.state is State.LOST)
        until(lambda: session.read_s > restored_s)
        # Nobody has vouched for the store yet, so nothing was changed in it.
        assert {claim.key for claim in raw.claims(namespace)} == {held.key, given_back.key}
        number = bump(own_etcd.endpoint, namespace)
        until(lambda: [claim.key for claim in raw.claims(namespace)] == [held.key])
        assert keeper._core.ctx.epoch.number == number
        assert held.wait(timeout=20) == held.token
        assert keeper.verify("held", held.token)


def test_an_epoch_that_a_restore_took_back_ends_no_lease(own_etcd: EtcdServer, namespace: str, tmp_path: Path) -> None:
    """A30 G2: A lease is held on while the epoch rises, is lower, is another one of the same number, and rises for good."""
    with Keeper(own_etcd.endpoint, namespace=namespace, timing=Timing(ttl=2)) as keeper:
        held = keeper.acquire("held", timeout=10)
        ctx, session = keeper._core.ctx, held._session
        snapshot = own_etcd.snapshot(tmp_path / "snapshot")
        number = bump(own_etcd.endpoint, namespace)
        until(lambda: ctx.epoch.number == number)
        known = ctx.epoch

        def held_on() -> None:
            since_s = keeper._core.now()
            until(lambda: session.read_s > since_s)
            assert held.wait(timeout=20) == held.token
            with pytest.raises(StoreRewound):
                keeper.acquire("n", timeout=10)

        own_etcd.restore(snapshot)
        held_on()
        assert ctx.epoch == known
        # As a second operator who knows nothing of the first one does within the same quarter of an hour.
        RawEtcd(own_etcd.endpoint).put(ctx.keys.epoch.decode(), write_epoch(number, at=0.0, by="another").decode())
        held_on()
        assert ctx.epoch == known
        last = bump(own_etcd.endpoint, namespace, above=make_token(number, 1))
        until(lambda: ctx.epoch.number == last > number)
        with keeper.lease("n", timeout=10) as new:
            assert split_token(new.token)[0] == last
        assert held.wait(timeout=20) == held.token


def test_a_waiter_through_a_restore_is_told_or_goes_on_under_the_new_epoch(
    own_etcd: EtcdServer, namespace: str, tmp_path: Path
) -> None:
    """A30: A claim that waits while the store goes back ends in StoreRewound, never with a token that could repeat."""
    raw = RawEtcd(own_etcd.endpoint)
    lease_id = raw.grant(600)
    with Keeper(own_etcd.endpoint, namespace=namespace, timing=TIMING) as keeper, ThreadPoolExecutor(1) as pool:
        stranger = f"{keeper._core.ctx.keys.lock_key('n')}/stranger"
        raw.put(stranger, lease=lease_id)
        snapshot = own_etcd.snapshot(tmp_path / "snapshot")
        for _ in range(20):
            raw.put("churn")
        waiting = pool.submit(keeper.acquire, "n", timeout=30)
        until(lambda: len(raw.claims(namespace)) == 2)
        own_etcd.restore(snapshot)
        with pytest.raises(StoreRewound):
            waiting.result(30)
        until(lambda: [key.key for key in raw.claims(namespace)] == [stranger])


# ---------------------------------------------------------------- no space


def fill(raw: RawEtcd) -> None:
    """Write until the quota is used up."""
    page = os.urandom(150_000).hex()

    def full() -> bool:
        try:
            raw.put(f"fill/{os.urandom(4).hex()}", page)
        except Refused as refused:
            return "space" in str(refused)
        return False

    until(full)


def test_a_full_etcd_takes_no_new_leases_and_keeps_the_old(namespace: str) -> None:
    """Out of space: acquiring raises OutOfSpace at once and leaves nothing, a held lease goes on, close frees all.

    A release frees its name at once where etcd still takes compared deletes, else with the lease.
    """
    with EtcdServer(fsync=False, quota_bytes=4 * 1024 * 1024) as server:
        raw = RawEtcd(server.endpoint)
        with (
            Keeper(server.endpoint, namespace=namespace, timing=Timing(ttl=2)) as keeper,
            Keeper(server.endpoint, namespace=namespace, timing=Timing(ttl=2)) as fresh,
        ):
            held = keeper.acquire("held", timeout=10)
            also = keeper.acquire("also", timeout=10)
            fill(raw)
            for call in (keeper.acquire, fresh.acquire, keeper.try_acquire, fresh.try_acquire):
                with pytest.raises(OutOfSpace, match="NOSPACE"):
                    call("n")
            proof = keeper._core.sessions.all()[0].proof_s
            until(lambda: keeper._core.sessions.all()[0].proof_s > proof + 2)
            assert held.wait(timeout=10) == held.token
            assert sorted(key.key for key in raw.claims(namespace)) == sorted([held.key, also.key])
            held.release()
            if server.version.startswith("3.5."):
                # These releases refuse every transaction when they are full, a compared delete as well.
                assert also.key in [key.key for key in raw.claims(namespace)]
            else:
                assert [key.key for key in raw.claims(namespace)] == [also.key]
            assert also.state is State.HELD
        assert raw.claims(namespace) == []
        assert held.lease_id not in raw.leases()


# ---------------------------------------------------------------- compaction and restarts


def test_compaction_while_waiting_and_holding_changes_nothing(own_etcd: EtcdServer, namespace: str) -> None:
    """A waiter and an owner whose history was compacted away, and whose watch broke, wait and hold on."""
    raw = RawEtcd(own_etcd.endpoint)
    with (
        Intermediary(own_etcd.endpoint) as mid,
        Keeper(mid.endpoint, namespace=namespace, timing=TIMING) as owner,
        Keeper(mid.endpoint, namespace=namespace, timing=TIMING) as waiter,
        ThreadPoolExecutor(1) as pool,
    ):
        lease = owner.acquire("n", timeout=10)
        waiting: Future[Any] = pool.submit(waiter.acquire, "n", timeout=30)
        until(lambda: mid.count("Watch") == 2)
        for _ in range(5):
            raw.compact()
        for keeper in (owner, waiter):
            streams = mid.count("Watch")
            stream = keeper._core.hub._stream
            assert stream is not None
            stream.end()
            until(lambda: mid.count("Watch") > streams)  # noqa: B023 - called in this round only
        assert lease.wait(timeout=10) == lease.token
        assert not waiting.done()
        lease.release()
        assert waiting.result(20).token > lease.token


def test_fifty_waiters_outlive_a_restart(own_etcd: EtcdServer, namespace: str) -> None:
    """C49: etcd is killed and restarted while fifty claims wait; each gets its turn, in the order in which they queued."""
    order: list[int] = []
    lock = threading.Lock()

    def take(keeper: Keeper, number: int) -> None:
        with keeper.lease("n", timeout=50) as lease:
            lease.wait(timeout=20)
            with lock:
                order.append(number)

    with (
        Keeper(own_etcd.endpoint, namespace=namespace, timing=Timing(ttl=8)) as keeper,
        ThreadPoolExecutor(50) as pool,
    ):
        lease = keeper.acquire("n", timeout=10)
        done = []
        for number in range(50):
            done.append(pool.submit(take, keeper, number))
            until(lambda: len(RawEtcd(own_etcd.endpoint).claims(namespace)) == number + 2)  # noqa: B023 - this round only
        own_etcd.kill()
        own_etcd.start()
        lease.wait(timeout=20)
        lease.release()
        for each in done:
            each.result(50)
    assert order == list(range(50))


def test_what_was_acknowledged_is_there_after_kill_9(tmp_path: Path, namespace: str) -> None:
    """A30: Every claim that was acknowledged stands after etcd was killed and restarted on its data, with the same token."""
    with (
        EtcdServer(data_dir=tmp_path / "data") as server,
        Keeper(server.endpoint, namespace=namespace, timing=Timing(ttl=8)) as keeper,
    ):
        leases = [keeper.acquire(f"n{i}", timeout=10) for i in range(30)]
        server.kill()
        server.start()
        assert all(keeper.verify(lease.name, lease.token) for lease in leases)
        assert [lease.wait(timeout=20) for lease in leases] == [lease.token for lease in leases]
