"""C10 under asyncio: whatever ends an acquire, at whichever moment, leaves no claim and no lease behind."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from leasekeeper import AsyncKeeper, NotAcquired, State, Timing
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.plan import Plan, Wait
from leasekeeper.runtime.core import Core
from leasekeeper.runtime.signals import Flag
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.intermediary import Intermediary, Passing
from tests.loops import eventually, on_loop
from tests.raw import RawEtcd

TIMING = Timing(ttl=2)
HELD_UP_S = 0.15


def keeper_of(endpoint: str, namespace: str) -> AsyncKeeper:
    """A keeper with a short TTL."""
    return AsyncKeeper(endpoint, namespace=namespace, timing=TIMING)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Wait for the end of a task that was cancelled; the cancellation must have come through."""
    with pytest.raises(asyncio.CancelledError):
        await task


# ---------------------------------------------------------------- at any moment


@on_loop
async def test_cancelled_after_any_delay_while_waiting(etcd: EtcdServer, namespace: str) -> None:
    """C10: a waiter cancelled after 0 to 60 ms leaves no claim: only the owner's is there."""
    raw = RawEtcd(etcd.endpoint)
    async with keeper_of(etcd.endpoint, namespace) as keeper, keeper_of(etcd.endpoint, namespace) as other:
        owner = await keeper.acquire("n")
        for step in range(25):
            waiter = asyncio.ensure_future(other.acquire("n"))
            await asyncio.sleep(step * step / 10_000)
            waiter.cancel()
            await cancelled(waiter)
            await eventually(lambda: [claim.key for claim in raw.claims(namespace)] == [owner.key])
        await owner.release()
        assert (await other.acquire("n", timeout=30)).token > owner.token


@on_loop
async def test_cancelled_after_any_delay_while_acquiring(etcd: EtcdServer, namespace: str) -> None:
    """C10: an acquire of a free name, cancelled at any moment or just too late, leaves nothing that somebody could wait for."""
    raw = RawEtcd(etcd.endpoint)
    async with keeper_of(etcd.endpoint, namespace) as keeper, keeper_of(etcd.endpoint, namespace) as other:
        for step in range(40):
            task = asyncio.ensure_future(keeper.acquire("n"))
            await asyncio.sleep(step / 10_000)
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                assert task.result().state is State.HELD
                await task.result().release()
            del task
            await eventually(lambda: not raw.claims(namespace))
        assert await other.try_acquire("n") is not None


@on_loop
async def test_twice(etcd: EtcdServer, namespace: str) -> None:
    """A second cancellation, into the clean-up of the first, is obeyed at once; the background ends the clean-up."""
    raw = RawEtcd(etcd.endpoint)
    async with keeper_of(etcd.endpoint, namespace) as keeper:
        owner = await keeper.acquire("n")
        for step in range(10):
            waiter = asyncio.ensure_future(keeper.acquire("n", timeout=60))
            await asyncio.sleep(0.02)
            waiter.cancel()
            for _ in range(step):
                await asyncio.sleep(0)
            waiter.cancel()
            await cancelled(waiter)
            await eventually(lambda: len(raw.claims(namespace)) == 1)
        await owner.release()


@pytest.mark.parametrize("moment", ["not sent on", "done but not told", "done later"])
@pytest.mark.parametrize(("method", "number"), [("LeaseGrant", 1), ("Txn", 1), ("Txn", 2), ("Txn", 3)])
@on_loop
async def test_at_each_request(etcd: EtcdServer, namespace: str, method: str, number: int, moment: str) -> None:
    """C10: cancelled exactly at each request of an acquire, whatever became of the request, it ends without a claim or lease."""
    loop = asyncio.get_running_loop()
    raw = RawEtcd(etcd.endpoint)
    acquiring: list[asyncio.Task[Any]] = []
    seen = 0

    def is_it(_: bytes) -> bool:
        nonlocal seen
        seen += bool(acquiring)
        return seen == number

    def strike(passing: Passing) -> bytes:
        reply = passing.forward() if moment == "done but not told" else b""
        loop.call_soon_threadsafe(acquiring[0].cancel)
        time.sleep(HELD_UP_S)
        return passing.forward() if moment == "done later" else reply

    with Intermediary(etcd.endpoint) as between:
        async with keeper_of(etcd.endpoint, namespace) as owning, keeper_of(between.endpoint, namespace) as keeper:
            owner = await owning.acquire("n")
            rule = between.on(method, strike, times=1, when=is_it)
            acquiring.append(asyncio.ensure_future(keeper.acquire("n")))
            if (method, number) == ("Txn", 2):
                # The second one looks whose turn it is: after the owner has gone.
                await eventually(lambda: len(raw.claims(namespace)) == 2)
                await owner.release()
            elif number == 3:
                # The third one is its clean-up: cancelled by hand before, and again in the middle of it.
                await eventually(lambda: len(raw.claims(namespace)) == 2)
                seen += 1
                acquiring[0].cancel()
            assert await asyncio.to_thread(rule.struck.wait, 20)
            await cancelled(acquiring[0])
            acquiring.clear()
            if method == "LeaseGrant":
                asked = between.requests("LeaseGrant", pb.LeaseGrantRequest)[0].ID
                revoked = partial(between.requests, "LeaseRevoke", pb.LeaseRevokeRequest)
                await eventually(lambda: asked in [request.ID for request in revoked()])
            await owner.release()
            await eventually(lambda: not raw.claims(namespace))
            again = await keeper.acquire("n", timeout=30)
            await again.release()
            granted = {request.ID for request in between.requests("LeaseGrant", pb.LeaseGrantRequest)}
        await eventually(lambda: not granted & set(raw.leases()))


@on_loop
async def test_while_etcd_is_out_of_reach(proxy: FaultProxy, etcd: EtcdServer, namespace: str) -> None:
    """C14: a waiter cancelled in a silent network ends within its bound, and its claim goes once the network is back."""
    raw = RawEtcd(etcd.endpoint)
    async with keeper_of(etcd.endpoint, namespace) as keeper, keeper_of(proxy.endpoint, namespace) as cut_off:
        owner = await keeper.acquire("n")
        waiter = asyncio.ensure_future(cut_off.acquire("n"))
        await eventually(lambda: len(raw.claims(namespace)) == 2)
        proxy.blackhole()
        waiter.cancel()
        await cancelled(waiter)
        proxy.heal(reset=True)
        await eventually(lambda: len(raw.claims(namespace)) == 1)
        assert owner.state is State.HELD


# ---------------------------------------------------------------- timeouts


@on_loop
async def test_timeouts_from_outside(etcd: EtcdServer, namespace: str) -> None:
    """C10: asyncio.wait_for and asyncio.timeout around an acquire end in TimeoutError and leave the queue as it was."""
    raw = RawEtcd(etcd.endpoint)
    async with keeper_of(etcd.endpoint, namespace) as keeper, keeper_of(etcd.endpoint, namespace) as other:
        owner = await keeper.acquire("n")
        for timeout_s in (0.001, 0.01, 0.05, 0.1):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(other.acquire("n"), timeout_s)
            # A put that was on its way when it was cancelled may arrive after its removal; it is found and removed again.
            await eventually(lambda: len(raw.claims(namespace)) == 1)
            if sys.version_info >= (3, 11):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await other.acquire("n")
                await eventually(lambda: len(raw.claims(namespace)) == 1)
        await owner.release()
        assert await other.try_acquire("n") is not None


@on_loop
async def test_own_timeouts(etcd: EtcdServer, namespace: str) -> None:
    """C10: twenty acquires that run into their own timeouts tell who owns the name and leave nothing behind."""
    raw = RawEtcd(etcd.endpoint)
    async with keeper_of(etcd.endpoint, namespace) as keeper:
        owner = await keeper.acquire("n", note="the owner")
        ends = await asyncio.gather(*(keeper.acquire("n", timeout=0.3) for _ in range(20)), return_exceptions=True)
        assert {type(end) for end in ends} == {NotAcquired}
        told = [end.owner and end.owner.note for end in ends if isinstance(end, NotAcquired)]
        assert told == ["the owner"] * 20
        assert len(raw.claims(namespace)) == 1
        await owner.release()
        assert await keeper.try_acquire("n") is not None


@pytest.mark.parametrize("cancel", [True, False])
@on_loop
async def test_gathered(etcd: EtcdServer, namespace: str, cancel: bool) -> None:
    """Acquires in a gather that is cancelled, or of which one fails and the rest is cancelled, leave nothing behind."""
    raw = RawEtcd(etcd.endpoint)
    async with keeper_of(etcd.endpoint, namespace) as keeper:
        owner = await keeper.acquire("n")
        waiting = [asyncio.ensure_future(keeper.acquire("n", timeout=60)) for _ in range(5)]
        if not cancel:
            waiting.append(asyncio.ensure_future(keeper.acquire("n", timeout=0.2)))
        whole = asyncio.gather(*waiting)
        await eventually(lambda: len(raw.claims(namespace)) == len(waiting) + 1)
        if cancel:
            whole.cancel()
        with pytest.raises(asyncio.CancelledError if cancel else NotAcquired):
            await whole
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await eventually(lambda: len(raw.claims(namespace)) == 1)
        assert owner.state is State.HELD


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TaskGroup came with Python 3.11")
@on_loop
async def test_in_a_task_group(etcd: EtcdServer, namespace: str) -> None:
    """A TaskGroup whose one member fails cancels its waiters without a trace and gives back what its members own."""
    raw = RawEtcd(etcd.endpoint)

    async def own(keeper: AsyncKeeper) -> None:
        async with keeper.lease("n"):
            await asyncio.sleep(60)

    async def fail() -> None:
        await eventually(lambda: len(raw.claims(namespace)) == 3)
        raise ValueError("one failed")

    async def group_of(keeper: AsyncKeeper) -> None:
        async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined,unused-ignore]
            for _ in range(3):
                group.create_task(own(keeper))
            group.create_task(fail())

    async with keeper_of(etcd.endpoint, namespace) as keeper:
        with pytest.raises(Exception, match="unhandled errors"):
            await group_of(keeper)
        await eventually(lambda: not raw.claims(namespace))


# ---------------------------------------------------------------- what nobody awaits any more


@on_loop
async def test_a_lease_that_nobody_took(etcd: EtcdServer, namespace: str) -> None:
    """C18: a lease that was acquired for a task that nobody asks any more is given up when it is garbage-collected."""
    raw = RawEtcd(etcd.endpoint)
    async with keeper_of(etcd.endpoint, namespace) as keeper:
        task = asyncio.ensure_future(keeper.acquire("n"))
        await asyncio.wait({task})
        assert len(raw.claims(namespace)) == 1
        del task
        gc.collect()
        await eventually(lambda: not raw.claims(namespace))


def closed_in_the_middle(keeper: AsyncKeeper, name: str, count: int, after_s: float) -> list[asyncio.Task[Any]]:
    """Begin some acquires on a loop and close it."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, __: None)  # it complains of tasks that were pending, which is the point

    async def begin() -> list[asyncio.Task[Any]]:
        tasks = [asyncio.ensure_future(keeper.acquire(name.format(i), timeout=60)) for i in range(count)]
        await asyncio.sleep(after_s)
        return tasks

    tasks = loop.run_until_complete(begin())
    loop.close()
    return tasks


@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.001, 0.002, 0.004])
def test_a_loop_closed_while_requests_are_under_way(etcd: EtcdServer, namespace: str, after_s: float) -> None:
    """A loop that is closed in the middle of acquires takes no claim along, once its dead tasks are collected."""
    raw = RawEtcd(etcd.endpoint)
    keeper = keeper_of(etcd.endpoint, namespace)
    tasks = closed_in_the_middle(keeper, "n{}", 5, after_s)
    owned = [task.result() for task in tasks if task.done()]
    del tasks
    settled(lambda: collected() and len(raw.claims(namespace)) == len(owned))
    asyncio.run(keeper.close())


def test_a_loop_closed_while_they_wait(etcd: EtcdServer, namespace: str) -> None:
    """The claims of dead waiters go when their tasks are collected, while the owner still holds the name."""
    raw = RawEtcd(etcd.endpoint)
    keeper = keeper_of(etcd.endpoint, namespace)
    owner = asyncio.run(keeper.acquire("n"))
    tasks = closed_in_the_middle(keeper, "n", 5, 0.1)
    assert len(raw.claims(namespace)) == 6
    del tasks
    settled(lambda: collected() and len(raw.claims(namespace)) == 1)
    assert owner.state is State.HELD
    asyncio.run(keeper.close())


def test_dead_waiters_do_not_block_the_queue(etcd: EtcdServer, namespace: str) -> None:
    """Where dead tasks are never collected, their claims go at the latest when their turn has come."""
    raw = RawEtcd(etcd.endpoint)
    keeper = keeper_of(etcd.endpoint, namespace)
    owner = asyncio.run(keeper.acquire("n"))
    tasks = closed_in_the_middle(keeper, "n", 5, 0.1)
    assert len(raw.claims(namespace)) == 6
    asyncio.run(owner.release())
    settled(lambda: not raw.claims(namespace))
    assert not any(task.done() for task in tasks)
    asyncio.run(keeper.close())


def collected() -> bool:
    """Have dead tasks collected. What is freed by that may hold others, for the next time."""
    gc.collect()
    return True


def settled(predicate: Callable[[], bool]) -> None:
    """Poll on a loop of its own."""

    async def poll() -> None:
        await eventually(predicate)

    asyncio.run(poll())


# ---------------------------------------------------------------- release


@on_loop
async def test_a_cancelled_release(etcd: EtcdServer, namespace: str) -> None:
    """A release that is cancelled has shut the gate all the same, and the claim goes in the background."""
    raw = RawEtcd(etcd.endpoint)
    async with keeper_of(etcd.endpoint, namespace) as keeper:
        for step in range(10):
            lease = await keeper.acquire("n")
            task = asyncio.ensure_future(lease.release())
            for _ in range(step):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            await asyncio.sleep(0)
            if step:
                assert lease.state is State.RELEASED
                await eventually(lambda: not raw.claims(namespace))
            else:
                await lease.release()  # it was cancelled before it began


@on_loop
async def test_a_body_that_is_cancelled(etcd: EtcdServer, namespace: str) -> None:
    """C10: a cancelled body of `async with keeper.lease()` gives the name back before the cancellation goes on."""
    raw = RawEtcd(etcd.endpoint)

    async def body(keeper: AsyncKeeper) -> None:
        async with keeper.lease("n"):
            await asyncio.sleep(60)

    async with keeper_of(etcd.endpoint, namespace) as keeper:
        task = asyncio.ensure_future(body(keeper))
        await eventually(lambda: len(raw.claims(namespace)) == 1)
        task.cancel()
        await cancelled(task)
        assert raw.claims(namespace) == []


# ---------------------------------------------------------------- the interpreter


@pytest.mark.parametrize("turns", range(8))
@on_loop
async def test_a_cancellation_together_with_a_signal(etcd: EtcdServer, turns: int) -> None:
    """A cancellation that comes in the very moment in which a wait ends is never lost."""
    core = Core(etcd.endpoint)
    flag, never = Flag(), Flag()

    def plan() -> Plan[None]:
        yield Wait((flag,), None)
        yield Wait((never,), None)

    task = asyncio.ensure_future(core.arun(plan()))
    await asyncio.sleep(0.01)
    flag.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=5)
    if not done:
        never.set()
        await task
    assert task.cancelled()
    core.close()
