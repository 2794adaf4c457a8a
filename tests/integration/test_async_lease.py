"""The asyncio API on one etcd: exclusion between tasks, a blocked loop, the gate, and what users are told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from leasekeeper import (
    AsyncKeeper,
    AsyncLease,
    LeaseLost,
    LeaseSuspended,
    Misuse,
    NotAcquired,
    State,
    Timing,
)
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.loops import eventually, on_loop
from tests.raw import RawEtcd

TIMING = Timing(ttl=2)


@asynccontextmanager
async def keeping(endpoint: str, namespace: str, timing: Timing = TIMING) -> AsyncIterator[AsyncKeeper]:
    """A keeper with a short TTL."""
    async with AsyncKeeper(endpoint, namespace=namespace, timing=timing) as keeper:
        yield keeper


# ---------------------------------------------------------------- owning


@on_loop
async def test_the_whole_of_it(etcd: EtcdServer, namespace: str) -> None:
    """A lease has the facts that etcd has, every question is answered, and leaving it leaves nothing."""
    raw = RawEtcd(etcd.endpoint)
    async with keeping(etcd.endpoint, namespace) as keeper:
        async with keeper.lease("a/b", note="why") as lease:
            (key,) = raw.claims(namespace)
            assert (lease.key, lease.token, lease.lease_id) == (key.key, key.create_revision, key.lease)
            assert lease.state is State.HELD
            assert 0 < lease.remaining() < TIMING.ttl
            assert lease.check() == await lease.wait() == lease.token
            assert await keeper.verify("a/b", lease.token)
            assert not await keeper.verify("a/b", lease.token + 1)
            (claim,) = await keeper.claims("a/b")
            assert (claim.holder, claim.note, claim.nonce) == (lease.holder, "why", lease.claim)
            assert [name async for name in keeper.names()] == ["a/b"]
            assert await keeper.try_acquire("a/b") is None
            with pytest.raises(NotAcquired) as refused:
                await keeper.acquire("a/b", timeout=0)
            assert (refused.value.owner, refused.value.ahead) == (claim, 1)
        assert lease.state.value == "RELEASED"
        assert raw.claims(namespace) == []
        with pytest.raises(LeaseLost) as caught:
            lease.check()
        assert caught.value.reason == "released"
        await lease.release()  # a second time, which does nothing


@on_loop
async def test_fifty_tasks_add_up(etcd: EtcdServer, namespace: str) -> None:
    """C05: fifty tasks that read, yield and write under one name lose no update, and tokens only grow."""
    total = 0
    tokens: list[int] = []

    async def add(keeper: AsyncKeeper) -> None:
        nonlocal total
        for _ in range(20):
            async with keeper.lease("sum") as lease:
                seen = total
                await asyncio.sleep(0)
                total = seen + 1
                tokens.append(lease.token)

    async with keeping(etcd.endpoint, namespace, Timing(ttl=10)) as keeper:
        await asyncio.gather(*(add(keeper) for _ in range(50)))
    assert total == 1000
    assert tokens == sorted(set(tokens))


@on_loop
async def test_first_come_first_served(etcd: EtcdServer, namespace: str) -> None:
    """G1: tasks of two keepers own a name in the order in which their claims came."""
    order: list[int] = []
    raw = RawEtcd(etcd.endpoint)

    async def take(keeper: AsyncKeeper, number: int) -> None:
        async with keeper.lease("n"):
            order.append(number)

    async with keeping(etcd.endpoint, namespace) as one, keeping(etcd.endpoint, namespace) as other:
        owner = await one.acquire("n")
        tasks = []
        for number in range(10):
            tasks.append(asyncio.ensure_future(take((one, other)[number % 2], number)))
            await eventually(lambda number=number: len(raw.claims(namespace)) == number + 2)  # type: ignore[misc]
        await owner.release()
        await asyncio.gather(*tasks)
    assert order == list(range(10))


@on_loop
async def test_a_task_that_would_wait_for_itself(etcd: EtcdServer, namespace: str) -> None:
    """C05: acquiring a name without a timeout in the task that owns it is Misuse; with one, or in another task, it waits."""
    async with keeping(etcd.endpoint, namespace) as keeper:
        async with keeper.lease("n"):
            with pytest.raises(Misuse, match="this task owns 'n' already"):
                await keeper.acquire("n")
            with pytest.raises(Misuse, match="owns"):
                async with keeper.lease("n"):
                    raise AssertionError("never")
            with pytest.raises(NotAcquired):
                await keeper.acquire("n", timeout=0.05)
            other = asyncio.ensure_future(keeper.acquire("n"))
            await eventually(lambda: len(RawEtcd(etcd.endpoint).claims(namespace)) == 2)
            async with keeper.lease("another name"):
                pass
        await (await other).release()
        async with keeper.lease("n"):
            pass


@on_loop
async def test_a_lease_once_entered(etcd: EtcdServer, namespace: str) -> None:
    """What `lease()` returns is good for one `async with`; the second is Misuse that says so."""
    async with keeping(etcd.endpoint, namespace) as keeper:
        once = keeper.lease("n")
        async with once:
            pass
        with pytest.raises(Misuse, match="entered already"):
            async with once:
                raise AssertionError("never")
        lease = await keeper.acquire("n", timeout=10)
        async with lease:
            assert lease.check() == lease.token
        with pytest.raises(LeaseLost, match="released"):
            async with lease:
                raise AssertionError("never")


# ---------------------------------------------------------------- a blocked loop


@on_loop
async def test_a_loop_that_is_blocked_keeps_its_lease(etcd: EtcdServer, namespace: str) -> None:
    """C11: time.sleep for two TTLs in the body blocks the loop; the lease is held all the same, with the same token."""
    async with keeping(etcd.endpoint, namespace, Timing(ttl=1)) as keeper, keeper.lease("n") as lease:
        token = lease.check()
        (claim,) = await keeper.claims("n")
        assert claim.ttl is not None
        time.sleep(2 * claim.ttl)  # noqa: ASYNC251 - really blocking is the point
        assert lease.state is State.HELD
        assert lease.check() == token
        assert await keeper.verify("n", token)


# ---------------------------------------------------------------- the gate


@on_loop
async def test_wait_pauses_and_goes_on(proxy: FaultProxy, namespace: str) -> None:
    """G5: wait() passes at once while held, pauses while the network is silent, and passes again with the same token."""
    async with keeping(proxy.endpoint, namespace, Timing(ttl=4)) as keeper:
        lease = await keeper.acquire("n")
        proxy.blackhole()
        await eventually(lambda: lease.state is State.SUSPENDED)
        with pytest.raises(LeaseSuspended):
            lease.check()
        with pytest.raises(LeaseSuspended):
            await lease.wait(timeout=0.05)
        waiting = asyncio.ensure_future(lease.wait())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        proxy.heal(reset=True)
        assert await waiting == lease.token


@on_loop
async def test_wait_ends_with_the_lease(proxy: FaultProxy, etcd: EtcdServer, namespace: str) -> None:
    """Whoever waits at the gate learns of a loss, of a release by another task, and of a closed keeper, at once."""
    async with keeping(proxy.endpoint, namespace) as keeper:
        lost, released, closed = [await keeper.acquire(name) for name in ("lost", "released", "closed")]
        proxy.blackhole()
        await eventually(lambda: closed.state is State.SUSPENDED)
        waiting = [asyncio.ensure_future(lease.wait()) for lease in (lost, released, closed)]
        await asyncio.sleep(0.05)
        end_of_release = asyncio.ensure_future(released.release())
        with pytest.raises(LeaseLost) as caught:
            await asyncio.wait_for(waiting[1], 20)
        assert caught.value.reason == "released"
        RawEtcd(etcd.endpoint).delete(lost.key)
        proxy.heal(reset=True)
        with pytest.raises(LeaseLost) as caught:
            await asyncio.wait_for(waiting[0], 20)
        assert caught.value.reason in ("deleted", "expired")
        await end_of_release
    with pytest.raises(LeaseLost):
        await closed.wait()
    await asyncio.wait({waiting[2]})
    waiting[2].exception()


async def lost_within(
    block: AbstractAsyncContextManager[Any],
    lease: AsyncLease,
    end: Callable[[], object],
    error: Exception | None = None,
) -> None:
    """A block in which the lease is lost, and which ends with ``error`` if there is one."""
    async with block:
        end()
        await eventually(lambda: lease.state is State.LOST)
        if error is not None:
            raise error


@on_loop
async def test_critical(etcd: EtcdServer, namespace: str) -> None:
    """critical() yields the token, passes what its block raises, and ends in doubt when authority lapsed meanwhile."""
    raw = RawEtcd(etcd.endpoint)
    async with keeping(etcd.endpoint, namespace) as keeper:
        lease = await keeper.acquire("n")
        async with lease.critical(need=0.1) as token:
            assert token == lease.token
        with pytest.raises(ValueError, match="own"):
            async with lease.critical():
                raise ValueError("own")
        with pytest.raises(LeaseLost) as caught:
            await lost_within(lease.critical(), lease, lambda: raw.delete(lease.key))
        assert caught.value.in_doubt
        with pytest.raises(LeaseLost) as caught:
            async with lease.critical():
                raise AssertionError("never")
        assert not caught.value.in_doubt
        assert caught.value.__context__ is None
        given_back = await keeper.acquire("n", timeout=10)
        with pytest.raises(LeaseLost, match="released") as caught:
            async with given_back.critical():
                await given_back.release()
        assert caught.value.in_doubt


@on_loop
async def test_critical_over_a_lapse(proxy: FaultProxy, namespace: str) -> None:
    """A critical block over which authority lapsed and was proven again is in doubt although the lease is held at its end."""
    async with keeping(proxy.endpoint, namespace) as keeper:
        lease = await keeper.acquire("n")

        async def lapse() -> None:
            async with lease.critical():
                proxy.blackhole()
                await eventually(lambda: lease.remaining() == 0)
                proxy.heal(reset=True)
                await eventually(lambda: lease.state is not State.SUSPENDED)

        with pytest.raises(LeaseLost) as caught:
            await lapse()
        assert caught.value.in_doubt


@on_loop
async def test_leaving_after_a_loss(etcd: EtcdServer, namespace: str) -> None:
    """C15: leaving the block after a loss raises LeaseLost; an error of the body wins and keeps the loss as its context."""
    raw = RawEtcd(etcd.endpoint)
    async with keeping(etcd.endpoint, namespace) as keeper:
        lease = await keeper.acquire("n")
        with pytest.raises(LeaseLost) as lost:
            await lost_within(lease, lease, lambda: raw.revoke(lease.lease_id))
        assert lost.value.reason == "revoked"
        lease = await keeper.acquire("n")
        with pytest.raises(ValueError, match="own") as own:
            await lost_within(lease, lease, lambda: raw.delete(lease.key), ValueError("own"))
        assert isinstance(own.value.__context__, LeaseLost)
        async with keeper.lease("n") as lease:  # C38: the keeper is as good as new
            assert lease.check() > 0


@on_loop
async def test_leaving_after_an_unnoticed_loss(etcd: EtcdServer, namespace: str) -> None:
    """C15: a body that ends in the very moment in which its key is deleted does not end in success."""
    async with keeping(etcd.endpoint, namespace) as keeper:
        with pytest.raises(LeaseLost):
            async with keeper.lease("n") as lease:
                RawEtcd(etcd.endpoint).delete(lease.key)


# ---------------------------------------------------------------- subscribers


@on_loop
async def test_subscribers_are_called_on_the_loop(proxy: FaultProxy, etcd: EtcdServer, namespace: str) -> None:
    """Each change of state reaches a subscriber in order, on the loop's thread; one that raises harms nobody."""
    here = threading.current_thread()
    told: list[tuple[State, bool]] = []
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    def broken(_: State) -> None:
        raise ValueError("a subscriber of the user's")

    async with keeping(proxy.endpoint, namespace) as keeper:
        lease = await keeper.acquire("n")
        lease.subscribe(broken)
        lease.subscribe(lambda state: told.append((state, threading.current_thread() is here)))
        unsubscribe = lease.subscribe(lambda _: told.append((State.LOST, False)))
        unsubscribe()
        unsubscribe()
        proxy.blackhole()
        await eventually(lambda: (State.SUSPENDED, True) in told)
        proxy.heal(reset=True)
        await eventually(lambda: (State.HELD, True) in told)
        RawEtcd(etcd.endpoint).revoke(lease.lease_id)
        await eventually(lambda: (State.LOST, True) in told)
    assert told[:2] == [(State.SUSPENDED, True), (State.HELD, True)]
    assert all(on_the_loop for _, on_the_loop in told)
    assert len(complaints) == len(told)


@on_loop
async def test_a_release_is_a_change_of_state(etcd: EtcdServer, namespace: str) -> None:
    """Subscribers are told of a release, once."""
    told: list[State] = []
    async with keeping(etcd.endpoint, namespace) as keeper:
        lease = await keeper.acquire("n")
        lease.subscribe(told.append)
        await lease.release()
        await eventually(lambda: told)
        await lease.release()
        await asyncio.sleep(0.05)
    assert told == [State.RELEASED]


def test_subscribing_off_the_loop(etcd: EtcdServer, namespace: str) -> None:
    """Subscribing where no loop runs is Misuse, not an error of asyncio's."""
    keeper = AsyncKeeper(etcd.endpoint, namespace=namespace, timing=TIMING)
    lease = asyncio.run(keeper.acquire("n"))
    with pytest.raises(Misuse, match="event loop"):
        lease.subscribe(lambda _: None)
    asyncio.run(keeper.close())


@on_loop
async def test_a_coroutine_function_cannot_subscribe(etcd: EtcdServer, namespace: str) -> None:
    """An `async def` as a subscriber would never run: it is refused."""

    async def callback(_: State) -> None:
        raise AssertionError("never")

    async with keeping(etcd.endpoint, namespace) as keeper:
        lease = await keeper.acquire("n")
        with pytest.raises(Misuse, match="coroutine function"):
            lease.subscribe(callback)
