"""Observers of real leases: each event where it belongs, and observers that fail or hang."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from leasekeeper import AsyncKeeper, Keeper, NotAcquired, State, Timing, Unavailable, observe
from leasekeeper.observe import Acquired, AcquireFailed, BeatMissed, Dropped, Event, Released, StateChanged
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.loops import eventually, on_loop
from tests.raw import RawEtcd
from tests.support import until

E = TypeVar("E")


class Heard(list[Event]):
    """What an observer was told, and on which thread."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def __call__(self, event: Event) -> None:
        """Take one event in."""
        self.append(event)
        self.threads.append(threading.current_thread().name)

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind."""
        return [event for event in list(self) if isinstance(event, kind)]


@pytest.fixture
def heard() -> Iterator[Heard]:
    """An observer for the test's time."""
    one = Heard()
    observe.add(one)
    yield one
    observe.remove(one)


@pytest.fixture
def observing() -> Iterator[Callable[[Callable[[Event], object]], None]]:
    """Adds observers for the test's time."""
    added: list[Callable[[Event], object]] = []

    def add(observer: Callable[[Event], object]) -> None:
        observe.add(observer)
        added.append(observer)

    yield add
    for one in added:
        observe.remove(one)


def test_a_life_is_told(etcd: EtcdServer, namespace: str, heard: Heard) -> None:
    """Acquired and Released come on the caller's thread before its call returns, with token, claim and durations."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        lease = keeper.acquire("n", timeout=10)
        (acquired,) = heard
        assert isinstance(acquired, Acquired)
        assert (acquired.name, acquired.token, acquired.claim) == ("n", lease.token, lease.claim)
        assert acquired.waited_s >= 0
        lease.release()
        released = heard[1]
        assert isinstance(released, Released)
        assert (released.name, released.token, released.claim) == ("n", lease.token, lease.claim)
        assert released.confirmed
        lease.release()
    assert len(heard) == 2
    assert set(heard.threads) == {threading.current_thread().name}


@on_loop
async def test_a_life_under_asyncio_is_told(etcd: EtcdServer, namespace: str, heard: Heard) -> None:
    """The same for AsyncKeeper, also for an acquisition that is cancelled."""
    async with AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper:
        async with keeper.lease("n", timeout=10):
            assert [type(event) for event in heard] == [Acquired]
            assert await keeper.try_acquire("n") is None
            waiting = asyncio.ensure_future(keeper.acquire("n", timeout=30))
            raw = RawEtcd(etcd.endpoint)
            await eventually(lambda: len(raw.claims(namespace)) == 2)
            waiting.cancel()
            await asyncio.wait({waiting})
        assert [type(event) for event in heard] == [Acquired, AcquireFailed, AcquireFailed, Released]
        assert [event.error for event in heard.of(AcquireFailed)] == ["NotAcquired", "CancelledError"]


def test_acquisitions_that_fail_are_told(etcd: EtcdServer, namespace: str, heard: Heard) -> None:
    """A timeout, a try in vain and an etcd out of reach, each once with the error's name and the time it took."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, Keeper("127.0.0.1:1", namespace=namespace) as nowhere:
        lease = keeper.acquire("n", timeout=10)
        assert keeper.try_acquire("n") is None
        for timeout in (0, 0.3):
            with pytest.raises(NotAcquired):
                keeper.acquire("n", timeout=timeout)
        with pytest.raises(Unavailable):
            nowhere.acquire("n", timeout=0.2)
        lease.release()
    failed = heard.of(AcquireFailed)
    assert [event.error for event in failed] == ["NotAcquired", "NotAcquired", "NotAcquired", "Unavailable"]
    assert failed[2].waited_s >= 0.3


def test_a_suspension_and_its_end_are_told(proxy: FaultProxy, namespace: str, heard: Heard) -> None:
    """C26: missing beats with count and endpoint, SUSPENDED, HELD again: in this order, and not on the heart's thread."""
    with Keeper(proxy.endpoint, namespace=namespace, timing=Timing(ttl=4)) as keeper:
        lease = keeper.acquire("n", timeout=10)
        proxy.cut()
        until(lambda: heard.of(StateChanged))
        proxy.heal()
        until(lambda: len(heard.of(StateChanged)) == 2)
        lease.release()
    suspended, held = heard.of(StateChanged)
    assert (suspended.state, held.state) == (State.SUSPENDED, State.HELD)
    assert {suspended.claim, held.claim} == {lease.claim}
    assert suspended.proof_age_s >= 2
    missed = heard.of(BeatMissed)
    assert [event.in_a_row for event in missed][:2] == [1, 2]
    assert missed[0].endpoint == proxy.endpoint
    assert not suspended.in_question
    assert heard.index(missed[0]) < heard.index(suspended) < heard.index(held)
    late = {thread for event, thread in zip(heard, heard.threads, strict=True) if isinstance(event, StateChanged)}
    assert late == {"leasekeeper-announce"}


def test_a_loss_is_told_once_with_its_reason(etcd: EtcdServer, namespace: str, heard: Heard) -> None:
    """C38: LOST with the loss record, once; the release that follows is none and is not told."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        lease = keeper.acquire("n", timeout=10)
        RawEtcd(etcd.endpoint).revoke(lease.lease_id)
        until(lambda: lease.state is State.LOST)
        lease.release()
        until(lambda: any(event.state is State.LOST for event in heard.of(StateChanged)))
    (lost,) = [event for event in heard.of(StateChanged) if event.state is State.LOST]
    assert lost.loss == lease.loss
    assert lost.loss is not None
    assert lost.loss.reason == "revoked"
    assert not heard.of(Released)


def test_a_key_that_is_gone_is_told_as_such(
    etcd: EtcdServer, namespace: str, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    """C07: work is held at once when the key is deleted, which is told apart from missing heartbeats; the reason follows."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, caplog.at_level(logging.INFO, "leasekeeper"):
        lease = keeper.acquire("n", timeout=10)
        RawEtcd(etcd.endpoint).delete(lease.key)
        until(lambda: len(heard.of(StateChanged)) == 2)
    held, lost = heard.of(StateChanged)
    assert (held.state, held.in_question, held.loss) == (State.SUSPENDED, True, None)
    assert (lost.state, lost.in_question) == (State.LOST, False)
    assert lost.loss is not None
    assert lost.loss.reason == "deleted"
    assert "its key in etcd is gone" in caplog.text
    assert "suspended" not in caplog.text


def test_a_dropped_lease_is_told_once_however_long_its_removal_takes(
    proxy: FaultProxy, namespace: str, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    """C18: dropping a handle without a release is told and warned of once, also when etcd has to be asked repeatedly."""
    with Keeper(proxy.endpoint, namespace=namespace) as keeper, caplog.at_level(logging.WARNING, "leasekeeper"):
        lease = keeper.acquire("n", timeout=10)
        claim = lease.claim
        proxy.cut()
        del lease
        gc.collect()
        until(lambda: heard.of(Dropped))
        jobs = keeper._core.background._jobs
        until(lambda: any(job.pause_s >= 0.8 for job in list(jobs)))  # the third attempt has failed
        proxy.heal()
        until(lambda: not keeper.claims("n"))
        assert heard.of(Dropped) == [Dropped("n", claim)]
        until(lambda: "'n' was dropped without a release" in caplog.text)


class BrokenError(Exception):
    """What a broken observer raises."""


def test_an_observer_that_fails_hurts_nobody(
    proxy: FaultProxy,
    namespace: str,
    observing: Callable[[Callable[[Event], object]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """C16: with an observer that raises each time, leases are acquired, suspended, proven again and released as ever."""
    told: list[Event] = []

    def broken(event: Event) -> None:
        raise BrokenError

    with caplog.at_level(logging.ERROR, "leasekeeper"):
        observing(broken)
        observing(told.append)
        with Keeper(proxy.endpoint, namespace=namespace, timing=Timing(ttl=4)) as keeper:
            with keeper.lease("n", timeout=10) as lease:
                proxy.cut()
                until(lambda: lease.state is State.SUSPENDED)
                proxy.heal()
                assert lease.wait(timeout=30) == lease.token
            with pytest.raises(NotAcquired), keeper.lease("m", timeout=10):
                keeper.acquire("m", timeout=0)
    assert {type(event) for event in told} >= {Acquired, AcquireFailed, BeatMissed, Released}
    failures = [record for record in caplog.records if record.exc_info and record.exc_info[0] is BrokenError]
    assert len(failures) >= len(told) - 1


def test_an_observer_that_hangs_holds_up_no_heartbeat(
    etcd: EtcdServer, namespace: str, observing: Callable[[Callable[[Event], object]], None]
) -> None:
    """An observer that never returns from a late event delays other late events only: leases stay held and are given back."""
    entered, go_on = threading.Event(), threading.Event()

    def hangs(event: Event) -> None:
        if isinstance(event, StateChanged):
            entered.set()
            go_on.wait(60)

    observing(hangs)
    with Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=2)) as keeper:
        victim, lease = keeper.acquire("victim", timeout=10), keeper.acquire("n", timeout=10)
        RawEtcd(etcd.endpoint).delete(victim.key)
        assert entered.wait(30)
        proof_s = lease.deadlines()[0]
        until(lambda: lease.deadlines()[0] > proof_s + 3)
        assert lease.check() == lease.token
        lease.release()
        go_on.set()
