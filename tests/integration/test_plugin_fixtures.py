"""The plugin's fixtures, as people use them who test their own locking code; our own `etcd` hides the plugin's here."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from leasekeeper import AsyncKeeper, Keeper, Lease, LeaseLost, LeaseSuspended, Misuse, State, Timing
from leasekeeper.testing import (
    Etcd,
    EtcdCluster,
    Faults,
    History,
    LeaseClock,
    assert_exclusive,
    assert_pauses,
    assert_resumes,
    plugin,
)
from leasekeeper.testing.sim import Tally
from tests.support import until

# Not our own of that name.
keeper = plugin.keeper


class Replica:
    """Code under test: writes rows while it owns a name, each of them behind the gate."""

    def __init__(self, keeper: Keeper, history: History, *, ttl: float = 4) -> None:
        self.keeper = keeper
        self.history = history
        self.ttl = ttl
        self.rows: list[int] = []
        self.ended_by: type[BaseException] | None = None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        """Own, write, until it is over."""
        try:
            with self.keeper.lease("jobs", ttl=self.ttl, timeout=60) as lease:
                while True:
                    lease.wait(need=0.3)
                    self.write(lease)
        except (LeaseLost, Misuse) as error:
            self.ended_by = type(error)

    def write(self, lease: Lease) -> None:
        """One row."""
        with self.history.acting(lease):
            self.rows.append(lease.token)
        time.sleep(0.01)

    def at(self) -> int:
        """How far it has come."""
        return len(self.rows)

    def has_begun(self) -> bool:
        """Whether it writes."""
        return self.at() > 2


def test_work_pauses_while_etcd_is_cut_off(keeper: Keeper, faults: Faults) -> None:
    """G5: B32: behind the black hole work is held at its gate, and it goes on when the network is back."""
    replica = Replica(keeper, History(), ttl=10)
    until(replica.has_begun)
    faults.blackhole()
    assert_pauses(replica.at, within=8, still=0.5)
    faults.heal()
    assert_resumes(replica.at, within=60)
    assert replica.ended_by is None


def test_work_stops_when_its_lease_is_stolen(keeper: Keeper, faults: Faults) -> None:
    """Another owner with a larger token ends the work of the first, although others wait before it."""
    history = History()
    replica = Replica(keeper, history)
    until(replica.has_begun)
    waiting = threading.Thread(target=lambda: keeper.acquire("jobs", timeout=60).release())
    waiting.start()
    until(lambda: len(keeper.claims("jobs")) == 2)
    rival = faults.steal("jobs")
    assert rival.token > replica.rows[-1]
    until(lambda: replica.ended_by is LeaseLost)
    history.acted(rival)
    assert_exclusive(history, owners=2)
    rival.release()
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_name_that_nobody_owns_can_be_taken_too(faults: Faults) -> None:
    """steal() needs no victim."""
    assert faults.steal("free").state is State.HELD


def test_a_revoked_lease_is_lost_at_once(keeper: Keeper, faults: Faults) -> None:
    """revoke() is what an operator does, and the owner hears of it."""
    lease = keeper.acquire("jobs", ttl=30)
    faults.revoke(lease)
    until(lambda: lease.state is State.LOST)
    assert lease.loss is not None
    assert lease.loss.reason == "revoked"
    with pytest.raises(Misuse, match="nobody owns 'jobs'"):
        faults.revoke("jobs")
    other = keeper.acquire("jobs", ttl=30)
    with pytest.raises(Misuse, match="does not own 'jobs' any more"):
        faults.revoke(lease)
    assert other.state is State.HELD


def test_a_lease_that_ran_out_unheard(keeper: Keeper, faults: Faults, leasekeeper_etcd: Etcd) -> None:
    """expire() without a clock takes a TTL, and is true to life: the gate is shut before the name is free."""
    lease = keeper.acquire("jobs", ttl=2)
    faults.expire("jobs")
    with pytest.raises(LeaseSuspended):
        lease.check()
    with Keeper(leasekeeper_etcd.direct, namespace=leasekeeper_etcd.namespace) as other:
        assert other.acquire("jobs", timeout=10).token > lease.token
    faults.heal()
    with pytest.raises(LeaseLost):
        lease.wait(timeout=30)


def test_a_clock_put_forward(lease_clock: LeaseClock, keeper: Keeper, faults: Faults) -> None:
    """G3: with lease_clock a pause and an expiry of a lease of ten minutes are had without waiting."""
    lease = keeper.acquire("jobs", ttl=600)
    faults.blackhole()
    lease_clock.advance(299)
    lease.check()
    lease_clock.advance(2)
    with pytest.raises(LeaseSuspended):
        lease.check()
    faults.heal()
    lease.wait(timeout=60)
    faults.expire(lease)
    with pytest.raises(LeaseSuspended):
        lease.check()
    faults.heal()
    with pytest.raises(LeaseLost, match="ran out"):
        lease.wait(timeout=60)


def test_the_clock_is_that_of_keepers_made_meanwhile(lease_clock: LeaseClock, leasekeeper_etcd: Etcd) -> None:
    """Code under test that makes its own keeper goes by it as well; afterwards nobody does."""
    with Keeper.from_env() as own:
        assert own._core.now == lease_clock.now


def test_nobody_goes_by_the_clock_afterwards(keeper: Keeper) -> None:
    """Without the fixture a keeper has the real clock."""
    assert not isinstance(getattr(keeper._core.now, "__self__", None), LeaseClock)


def test_the_environment_leads_to_the_faults(
    leasekeeper_etcd: Etcd, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeper.from_env() and a process of its own find endpoint and namespace, and a fault strikes both."""
    assert os.environ["LEASEKEEPER_ENDPOINTS"] == faults.endpoint == leasekeeper_etcd.endpoint
    with Keeper.from_env() as keeper:
        lease = keeper.acquire("from-env", ttl=30)
        listing = [sys.executable, "-m", "leasekeeper", "--timeout", "5", "ls"]
        shown = subprocess.run(listing, capture_output=True, text=True, timeout=60, check=True)
        assert "from-env" in shown.stdout
        faults.cut()
        refused = subprocess.run([*listing[:4], "1", "ls"], capture_output=True, text=True, timeout=60, check=False)
        assert refused.returncode == 69
        faults.heal()
        assert keeper.verify("from-env", lease.token)


def test_the_developers_own_etcd_stays_out(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of somebody's shell do not get into a test, and are back after it."""
    monkeypatch.setenv("ETCDCTL_USER", "root:secret")
    monkeypatch.setenv("LEASEKEEPER_CACERT", "/no/such/file")
    request.getfixturevalue("leasekeeper_etcd")
    assert "ETCDCTL_USER" not in os.environ
    with Keeper.from_env() as keeper:
        assert keeper.try_acquire("x") is not None


def test_each_test_has_a_namespace(leasekeeper_etcd: Etcd, keeper: Keeper) -> None:
    """What other tests own is not seen."""
    assert list(keeper.names()) == []
    assert leasekeeper_etcd.namespace in repr(keeper)


def test_one_replica_is_cut_off_and_another_takes_over(leasekeeper_etcd: Etcd) -> None:
    """C01: each replica has a link of its own; never do both act at once."""
    history = History()
    near, far = leasekeeper_etcd.link(), leasekeeper_etcd.link()
    where = {"namespace": leasekeeper_etcd.namespace, "timing": Timing(ttl=3)}
    with Keeper(near.endpoint, **where) as one, Keeper(far.endpoint, **where) as other:  # type: ignore[arg-type]
        first = Replica(one, history, ttl=3)
        until(first.has_begun)
        second = Replica(other, history, ttl=3)
        near.blackhole()
        until(second.has_begun, timeout_s=60)
        near.heal()
        until(lambda: first.ended_by is LeaseLost)
    assert_exclusive(history, owners=2)


def test_a_reply_that_is_lost(keeper: Keeper, faults: Faults) -> None:
    """G6: the acquire whose reply is lost reads back that it owns the name."""
    trip = faults.lose_next_reply(b"lost-reply")
    lease = keeper.acquire("lost-reply", timeout=30)
    assert trip.fired
    assert keeper.verify("lost-reply", lease.token)


def test_a_frozen_server_suspends(keeper: Keeper, faults: Faults) -> None:
    """freeze() stops etcd itself; the end of the test lets it go on, which the next test shows."""
    lease = keeper.acquire("jobs", ttl=10)
    faults.freeze()
    until(lambda: lease.state is State.SUSPENDED)
    with pytest.raises(Misuse, match="no member 1"):
        faults.freeze(1)


@pytest.mark.parametrize("fault", [Faults.cut, Faults.lose_replies, Faults.close_connections, lambda f: f.delay(0.05)])
def test_every_fault_is_over_with_the_test(keeper: Keeper, faults: Faults, fault: Callable[[Faults], None]) -> None:
    """Each fault can be put in force and ended, and the keeper works afterwards."""
    lease = keeper.acquire("jobs", ttl=30)
    fault(faults)
    faults.heal()
    assert keeper.verify("jobs", lease.token)


@pytest.mark.cluster
@pytest.mark.timeout(180)
def test_a_cluster_stands_in_for_the_server(etcd_cluster: EtcdCluster, keeper: Keeper, faults: Faults) -> None:
    """With etcd_cluster the other fixtures are on it: three endpoints, and a dead leader costs no lease."""
    assert len(faults.endpoint.split(",")) == len(etcd_cluster.members) == 3
    lease = keeper.acquire("jobs", ttl=10)
    etcd_cluster.kill(etcd_cluster.wait_leader())
    etcd_cluster.wait_leader()
    assert lease.wait(need=5, timeout=60) == lease.token
    faults.freeze()
    until(lambda: lease.state is State.SUSPENDED)
    faults.heal()
    lease.wait(timeout=60)


@pytest.mark.cluster
@pytest.mark.timeout(180)
def test_what_a_test_has_broken_is_whole_again(etcd_cluster: EtcdCluster) -> None:
    """Whatever ran before on the cluster, it has three members and a leader."""
    assert all(member.is_running for member in etcd_cluster.members)
    etcd_cluster.wait_leader()
    etcd_cluster.isolate(0)
    etcd_cluster.kill(1)
    etcd_cluster.freeze(2)


def test_an_async_keeper_in_whichever_loop(async_keeper: AsyncKeeper, faults: Faults) -> None:
    """The fixture needs no plugin for asyncio: who awaits it first is its loop; it is closed without one."""

    async def work() -> str:
        lease = await async_keeper.acquire("jobs", ttl=30)
        faults.revoke(lease)
        try:
            while True:
                lease.check()
                await asyncio.sleep(0.01)
        except (LeaseLost, LeaseSuspended) as error:
            return type(error).__name__

    assert asyncio.run(work()) in ("LeaseLost", "LeaseSuspended")


def test_worlds_that_keep_their_promises(sim: Callable[..., Tally]) -> None:
    """The fixture runs worlds by their seeds and adds up what they came to; one seed is always the same world."""
    first, again = sim(7, worlds=2, seconds=20), sim(7, worlds=2, seconds=20)
    assert first == again
    assert first.worlds == 2
    assert first.accepted > 0


def test_a_world_that_breaks_one_is_told(sim: Callable[..., Tally]) -> None:
    """Without a guard the fixture fails, with the story and the command that shows it again."""
    with pytest.raises(AssertionError, match=r"leasekeeper sim --replay \d+.*--without gate-clock"):
        sim(1, worlds=40, without="gate-clock")
