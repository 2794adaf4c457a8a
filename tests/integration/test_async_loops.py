"""The asyncio API across event loops and threads, on other loops than asyncio's own, and at its end."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from leasekeeper import (
    AsyncKeeper,
    AsyncLease,
    Keeper,
    Misuse,
    State,
    Timing,
    Unavailable,
)
from leasekeeper.testing import EtcdServer
from leasekeeper.testing.ports import free_port
from tests.loops import eventually, on_loop
from tests.raw import RawEtcd

TIMING = Timing(ttl=2)


@asynccontextmanager
async def keeping(endpoint: str, namespace: str, timing: Timing = TIMING) -> AsyncIterator[AsyncKeeper]:
    """A keeper with a short TTL."""
    async with AsyncKeeper(endpoint, namespace=namespace, timing=timing) as keeper:
        yield keeper


# ---------------------------------------------------------------- loops and threads


def test_one_keeper_for_loop_after_loop(etcd: EtcdServer, namespace: str) -> None:
    """C43: a keeper made outside any loop serves one loop after the other, and a lease outlives the loop it came from."""
    keeper = AsyncKeeper(etcd.endpoint, namespace=namespace, timing=TIMING)
    lease = asyncio.run(keeper.acquire("kept"))

    async def again() -> int:
        async with keeper.lease("n") as other:
            await lease.wait()
            return other.token

    tokens = [asyncio.run(again()) for _ in range(3)]
    assert tokens == sorted(set(tokens))
    time.sleep(TIMING.ttl)
    assert lease.state is State.HELD
    asyncio.run(lease.release())
    asyncio.run(keeper.close())


def test_one_keeper_for_two_loops_at_once(etcd: EtcdServer, namespace: str) -> None:
    """C43: two loops in two threads share a keeper, and one owner at a time stays one owner at a time."""
    keeper = AsyncKeeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=10))
    total = 0
    failures: list[BaseException] = []

    async def add() -> None:
        nonlocal total
        for _ in range(25):
            async with keeper.lease("n"):
                seen = total
                await asyncio.sleep(0)
                total = seen + 1

    def work() -> None:
        try:
            asyncio.run(add())
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert failures == []
    assert total == 50
    asyncio.run(keeper.close())


def test_both_apis_stand_in_one_queue(etcd: EtcdServer, namespace: str) -> None:
    """Threads and tasks exclude each other: a name that a Keeper owns is not to be had by an AsyncKeeper."""

    async def attempt() -> AsyncLease | None:
        async with AsyncKeeper(etcd.endpoint, namespace=namespace, timing=TIMING) as keeper:
            return await keeper.try_acquire("n")

    with Keeper(etcd.endpoint, namespace=namespace, timing=TIMING) as keeper:
        with keeper.lease("n"):
            assert asyncio.run(attempt()) is None
        assert asyncio.run(attempt()) is not None


def test_a_loop_that_is_closed_while_it_holds(etcd: EtcdServer, namespace: str) -> None:
    """A lease that goes with its loop is given up; one that somebody keeps is kept."""
    raw = RawEtcd(etcd.endpoint)
    keeper = AsyncKeeper(etcd.endpoint, namespace=namespace, timing=TIMING)

    async def acquire_two() -> AsyncLease:
        await keeper.acquire("goes")
        return await keeper.acquire("stays")

    lease = asyncio.run(acquire_two())
    gc.collect()
    asyncio.run(eventually(lambda: [key.key for key in raw.claims(namespace)] == [lease.key]))
    assert lease.state is State.HELD
    asyncio.run(keeper.close())
    assert raw.claims(namespace) == []


def test_made_while_another_loop_runs(etcd: EtcdServer, namespace: str) -> None:
    """A keeper made inside one loop works in the next."""

    async def make() -> AsyncKeeper:
        keeper = AsyncKeeper(etcd.endpoint, namespace=namespace, timing=TIMING)
        async with keeper.lease("n"):
            return keeper

    async def use(keeper: AsyncKeeper) -> None:
        async with keeper, keeper.lease("n"):
            pass

    asyncio.run(use(asyncio.run(make())))


@pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="uvloop is not installed")
def test_uvloop(etcd: EtcdServer, namespace: str) -> None:
    """The same under uvloop: a queue of tasks, a cancelled waiter, and a timeout at the gate."""
    import uvloop  # type: ignore[import-not-found,unused-ignore]

    async def work() -> int:
        done = 0
        async with keeping(etcd.endpoint, namespace) as keeper:
            owner = await keeper.acquire("n")
            waiter = asyncio.ensure_future(keeper.acquire("n"))
            await asyncio.sleep(0.05)
            waiter.cancel()
            await asyncio.wait({waiter})
            assert waiter.cancelled()
            await owner.release()

            async def one() -> None:
                nonlocal done
                async with keeper.lease("n") as lease:
                    done += lease.check() > 0

            await asyncio.gather(*(one() for _ in range(10)))
        return done

    loop = uvloop.new_event_loop()
    try:
        assert loop.run_until_complete(work()) == 10
    finally:
        loop.close()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
@on_loop
async def test_eager_tasks(etcd: EtcdServer, namespace: str) -> None:
    """Tasks that begin eagerly queue like others, and the one that owns a name is known by itself."""
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
    done = 0

    async def one(keeper: AsyncKeeper) -> None:
        nonlocal done
        async with keeper.lease("n"):
            with pytest.raises(Misuse):
                await keeper.acquire("n")
            done += 1

    async with keeping(etcd.endpoint, namespace) as keeper:
        await asyncio.gather(*(asyncio.ensure_future(one(keeper)) for _ in range(10)))
    assert done == 10


# ---------------------------------------------------------------- the end


@on_loop
async def test_close_ends_everything(etcd: EtcdServer, namespace: str) -> None:
    """Closing loses what is held, ends waiters with Misuse, revokes at etcd, and refuses what comes after."""
    raw = RawEtcd(etcd.endpoint)
    async with keeping(etcd.endpoint, namespace) as other:
        owner = await other.acquire("taken")
        keeper = AsyncKeeper(etcd.endpoint, namespace=namespace, timing=TIMING)
        lease = await keeper.acquire("n")
        waiter = asyncio.ensure_future(keeper.acquire("taken"))
        await eventually(lambda: len(raw.claims(namespace)) == 3)
        await keeper.close()
        assert lease.state is State.LOST
        assert lease.loss is not None
        assert lease.loss.reason == "closed"
        assert [key.key for key in raw.claims(namespace)] == [owner.key]
        with pytest.raises(Misuse, match="closed"):
            await asyncio.wait_for(waiter, 20)
        with pytest.raises(Misuse, match="closed"):
            await keeper.acquire("n")
        with pytest.raises(Misuse, match="closed"):
            keeper.lease("n")
        with pytest.raises(Misuse, match="closed"):
            await keeper.verify("n", 1)
        with pytest.raises(Misuse, match="closed"):
            [name async for name in keeper.names()]
        await lease.release()
        await keeper.close()


@on_loop
async def test_closing_does_not_wait_for_the_loops_executor(etcd: EtcdServer, namespace: str) -> None:
    """close() is not kept by user's code that blocks the loop's thread pool."""
    loop = asyncio.get_running_loop()
    free = threading.Event()
    blocked = [loop.run_in_executor(None, free.wait, 30) for _ in range(64)]
    keeper = AsyncKeeper(etcd.endpoint, namespace=namespace, timing=TIMING)
    await keeper.acquire("n")
    await asyncio.wait_for(keeper.close(), 15)
    free.set()
    await asyncio.gather(*blocked)


@on_loop
async def test_etcd_out_of_reach(namespace: str) -> None:
    """An acquire that reaches no etcd is Unavailable when its timeout comes, names the endpoint, and leaves the loop free."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        for _ in range(1000):
            await asyncio.sleep(0.01)
            ticks += 1

    endpoint = f"127.0.0.1:{free_port()}"
    ticking = asyncio.ensure_future(tick())
    async with keeping(endpoint, namespace) as keeper:
        for ask in asking(keeper):
            with pytest.raises(Unavailable) as caught:
                await ask()
            assert caught.value.endpoints == (endpoint,)
            assert endpoint in str(caught.value)
    ticking.cancel()
    await asyncio.wait({ticking})
    assert ticks > 10


def asking(keeper: AsyncKeeper) -> list[Callable[[], Coroutine[Any, Any, Any]]]:
    """Ways of asking that have to reach etcd."""
    return [lambda: keeper.acquire("n", timeout=0.5), lambda: keeper.acquire("m", timeout=0.01)]
