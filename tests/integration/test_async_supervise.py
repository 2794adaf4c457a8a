"""`AsyncLease.supervise`: held while suspended, cancelled when the lease is over, never a masked error or a lost cancellation."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from leasekeeper import AsyncKeeper, AsyncLease, LeaseLost, Misuse, State, Timing
from leasekeeper.runtime import supervise as supervise_module
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.loops import eventually, on_loop
from tests.raw import RawEtcd

TIMING = Timing(ttl=2)


@asynccontextmanager
async def held(endpoint: str, namespace: str) -> AsyncIterator[AsyncLease]:
    """A lease of a keeper of its own."""
    async with AsyncKeeper(endpoint, namespace=namespace, timing=TIMING) as keeper:
        yield await keeper.acquire("work")


async def until_cancelled(trace: list[str]) -> str:
    """Works until it is cancelled, and says when its clean-up, which awaits twice, is through."""
    try:
        trace.append("works")
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        trace.append("cleaned up")
    return "never"


@on_loop
async def test_the_result_passes(etcd: EtcdServer, namespace: str) -> None:
    """A coroutine that ends under a lease that is held gives its result, whatever it awaited."""

    async def work() -> int:
        await asyncio.sleep(0.01)
        return sum(await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0.01, 2)))

    async with held(etcd.endpoint, namespace) as lease:
        assert await lease.supervise(work()) == 3
        assert lease.state is State.HELD


@on_loop
async def test_an_own_error_passes(etcd: EtcdServer, namespace: str) -> None:
    """An error of the coroutine goes out as it is while the lease is held."""

    async def work() -> None:
        await asyncio.sleep(0)
        raise ValueError("own")

    async with held(etcd.endpoint, namespace) as lease:
        with pytest.raises(ValueError, match="own") as caught:
            await lease.supervise(work())
        assert not isinstance(caught.value.__context__, LeaseLost)


@on_loop
async def test_held_at_the_next_await_while_suspended(proxy: FaultProxy, namespace: str) -> None:
    """G5: with heartbeats black-holed the coroutine stands still at its next await, and goes on by itself after healing."""
    steps = 0

    async def work() -> None:
        nonlocal steps
        while True:
            await asyncio.sleep(0.01)
            steps += 1

    async with held(proxy.endpoint, namespace) as lease:
        run = asyncio.ensure_future(lease.supervise(work()))
        await eventually(lambda: steps > 3)
        proxy.blackhole()
        await eventually(lambda: lease.state is State.SUSPENDED)
        await asyncio.sleep(0.05)  # the step that was under way may end
        seen = steps
        assert lease.remaining() > 0
        await asyncio.sleep(0.3)
        assert steps == seen
        proxy.heal(reset=True)
        await eventually(lambda: steps > seen + 3 or run.done())
        assert not run.done()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run


@on_loop
async def test_not_started_while_suspended(proxy: FaultProxy, namespace: str) -> None:
    """A coroutine that is given to a suspended lease does not take its first step before authority is proven again."""
    trace: list[str] = []

    async def work() -> str:
        trace.append("began")
        return "done"

    async with held(proxy.endpoint, namespace) as lease:
        proxy.blackhole()
        await eventually(lambda: lease.state is State.SUSPENDED)
        run = asyncio.ensure_future(lease.supervise(work()))
        await asyncio.sleep(0.1)
        assert trace == []
        proxy.heal(reset=True)
        try:
            assert await run == "done"
        except LeaseLost:
            assert trace == []  # the machine was so slow that the lease ran out meanwhile


@on_loop
async def test_cancelled_on_loss_and_its_clean_up_awaits(etcd: EtcdServer, namespace: str) -> None:
    """A lost lease cancels the coroutine at its await, lets its clean-up await as often as it needs, and raises LeaseLost."""
    trace: list[str] = []
    async with held(etcd.endpoint, namespace) as lease:
        run = asyncio.ensure_future(lease.supervise(until_cancelled(trace)))
        await eventually(lambda: trace == ["works"])
        RawEtcd(etcd.endpoint).revoke(lease.lease_id)
        with pytest.raises(LeaseLost) as caught:
            await run
        assert trace == ["works", "cleaned up"]
        assert caught.value.reason == "revoked"
        assert caught.value.loss == lease.loss


@on_loop
async def test_lost_while_it_is_held_at_the_gate(proxy: FaultProxy, etcd: EtcdServer, namespace: str) -> None:
    """A coroutine that stands at the gate when the lease turns out to be lost is cancelled there and cleans up as elsewhere."""
    trace: list[str] = []
    steps = 0

    async def work() -> None:
        nonlocal steps
        try:
            while True:
                await asyncio.sleep(0.01)
                steps += 1
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)
            trace.append("cleaned up")
            raise

    async with held(proxy.endpoint, namespace) as lease:
        run = asyncio.ensure_future(lease.supervise(work()))
        await eventually(lambda: steps > 1)
        proxy.blackhole()
        await eventually(lambda: lease.state is State.SUSPENDED)
        RawEtcd(etcd.endpoint).revoke(lease.lease_id)
        await asyncio.sleep(0.05)
        seen = steps
        proxy.heal(reset=True)
        with pytest.raises(LeaseLost):
            await run
        assert steps == seen
        assert trace == ["cleaned up"]


@on_loop
async def test_cancelled_on_release(etcd: EtcdServer, namespace: str) -> None:
    """A lease that somebody gives back cancels what runs under it, at once and not at the end of its await."""
    trace: list[str] = []
    async with held(etcd.endpoint, namespace) as lease:
        run = asyncio.ensure_future(lease.supervise(until_cancelled(trace)))
        await eventually(lambda: trace == ["works"])
        await lease.release()
        with pytest.raises(LeaseLost) as caught:
            await asyncio.wait_for(run, 20)
        assert caught.value.reason == "released"
        assert trace == ["works", "cleaned up"]


@on_loop
async def test_cancelled_on_close(etcd: EtcdServer, namespace: str) -> None:
    """Closing the keeper ends what runs under its leases."""
    trace: list[str] = []
    async with AsyncKeeper(etcd.endpoint, namespace=namespace, timing=TIMING) as keeper:
        lease = await keeper.acquire("work")
        run = asyncio.ensure_future(lease.supervise(until_cancelled(trace)))
        await eventually(lambda: trace == ["works"])
    with pytest.raises(LeaseLost) as caught:
        await asyncio.wait_for(run, 20)
    assert caught.value.reason == "closed"


@on_loop
async def test_a_result_after_the_loss_is_no_success(etcd: EtcdServer, namespace: str) -> None:
    """C15: a coroutine that swallows its cancellation and returns something ends in LeaseLost all the same."""

    async def work() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
        return "as if nothing had happened"

    async with held(etcd.endpoint, namespace) as lease:
        run = asyncio.ensure_future(lease.supervise(work()))
        await asyncio.sleep(0.05)
        RawEtcd(etcd.endpoint).delete(lease.key)
        with pytest.raises(LeaseLost) as caught:
            await run
        assert caught.value.reason == "deleted"


@on_loop
async def test_an_error_after_the_loss_wins(etcd: EtcdServer, namespace: str) -> None:
    """C15: an error that the coroutine ends with goes out and keeps the loss as its context."""

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("own")

    async with held(etcd.endpoint, namespace) as lease:
        run = asyncio.ensure_future(lease.supervise(work()))
        await asyncio.sleep(0.05)
        RawEtcd(etcd.endpoint).delete(lease.key)
        with pytest.raises(ValueError, match="own") as caught:
            await run
        chain = caught.value.__context__
        while chain is not None and not isinstance(chain, LeaseLost):
            chain = chain.__context__
        assert isinstance(chain, LeaseLost)


@on_loop
async def test_who_swallows_every_cancellation_is_closed(
    etcd: EtcdServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coroutine that goes on for ever after its cancellation is ended at its next await once its patience is over."""
    monkeypatch.setattr(supervise_module, "CLEAN_UP_S", 0.3)
    trace: list[str] = []

    async def stubborn() -> None:
        try:
            while True:
                try:
                    await asyncio.sleep(0.05 if trace else 60)
                except asyncio.CancelledError:
                    trace.append("swallowed")
        finally:
            trace.append("ended")

    async with held(etcd.endpoint, namespace) as lease:
        run = asyncio.ensure_future(lease.supervise(stubborn()))
        await asyncio.sleep(0.05)
        RawEtcd(etcd.endpoint).delete(lease.key)
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(run, 20)
        assert trace[0] == "swallowed"
        assert trace[-1] == "ended"


@on_loop
async def test_a_cancellation_from_outside_passes(etcd: EtcdServer, namespace: str) -> None:
    """Cancelling whoever awaits supervise() cancels the coroutine, waits for its clean-up, and stays a cancellation."""
    trace: list[str] = []
    async with held(etcd.endpoint, namespace) as lease:
        run = asyncio.ensure_future(lease.supervise(until_cancelled(trace)))
        await eventually(lambda: trace == ["works"])
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert trace == ["works", "cleaned up"]
        assert lease.state is State.HELD


@on_loop
async def test_a_cancellation_while_held_at_the_gate(proxy: FaultProxy, namespace: str) -> None:
    """Nobody is kept from stopping: a cancellation reaches the coroutine also while it stands at the gate, clean-up and all."""
    trace: list[str] = []

    async def work() -> None:
        try:
            for _ in range(100_000):
                await asyncio.sleep(0.01)
        finally:
            await asyncio.sleep(0)
            trace.append("cleaned up")

    async with held(proxy.endpoint, namespace) as lease:
        run = asyncio.ensure_future(lease.supervise(work()))
        proxy.blackhole()
        await eventually(lambda: lease.state is State.SUSPENDED)
        await asyncio.sleep(0.1)
        run.cancel()
        await asyncio.sleep(0.1)
        proxy.heal(reset=True)
        with pytest.raises(asyncio.CancelledError):
            await run
        assert trace == ["cleaned up"]


@on_loop
async def test_both_at_once_is_a_cancellation(etcd: EtcdServer, namespace: str) -> None:
    """A loss never swallows a cancellation from outside, whichever came first; the loss is its context."""
    for lost_first in (True, False):
        async with held(etcd.endpoint, f"{namespace}-{lost_first}") as lease:
            trace: list[str] = []

            async def slow_end(trace: list[str] = trace) -> None:
                try:
                    trace.append("works")
                    await asyncio.sleep(60)
                finally:
                    trace.append("ends")
                    await asyncio.sleep(0.5)

            run = asyncio.ensure_future(lease.supervise(slow_end()))
            await eventually(lambda trace=trace: trace == ["works"])  # type: ignore[misc]
            if lost_first:
                RawEtcd(etcd.endpoint).delete(lease.key)
                await eventually(lambda trace=trace: trace == ["works", "ends"])  # type: ignore[misc]
                run.cancel()
            else:
                run.cancel()
                RawEtcd(etcd.endpoint).delete(lease.key)
                await eventually(lambda lease=lease: lease.state is State.LOST)  # type: ignore[misc]
            with pytest.raises(asyncio.CancelledError):
                await run


@on_loop
async def test_an_older_cancellation_does_not_hide_the_loss(etcd: EtcdServer, namespace: str) -> None:
    """A task that was cancelled once, and went on, still learns of a loss as LeaseLost."""

    async def survivor(lease: AsyncLease, trace: list[str]) -> None:
        try:
            trace.append("ready")
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await lease.supervise(until_cancelled(trace))

    async with held(etcd.endpoint, namespace) as lease:
        trace: list[str] = []
        run = asyncio.ensure_future(survivor(lease, trace))
        await eventually(lambda: trace == ["ready"])
        run.cancel()
        await eventually(lambda: trace == ["ready", "works"])
        RawEtcd(etcd.endpoint).delete(lease.key)
        with pytest.raises(LeaseLost):
            await run


@on_loop
async def test_over_before_it_begins(etcd: EtcdServer, namespace: str) -> None:
    """A coroutine given to a lease that is over never takes a step, and Python is not left to complain about it."""

    async def work() -> None:
        raise AssertionError("took a step")

    async with held(etcd.endpoint, namespace) as lease:
        await lease.release()
        with pytest.raises(LeaseLost) as caught:
            await lease.supervise(work())
        assert caught.value.reason == "released"


@on_loop
async def test_what_is_no_coroutine_is_refused(etcd: EtcdServer, namespace: str) -> None:
    """A function in place of a coroutine is Misuse that names it."""
    async with held(etcd.endpoint, namespace) as lease:
        with pytest.raises(Misuse, match="function"):
            await lease.supervise(until_cancelled)  # type: ignore[arg-type]


@on_loop
async def test_many_at_once(etcd: EtcdServer, namespace: str) -> None:
    """Fifty coroutines under one lease all end with it."""
    async with held(etcd.endpoint, namespace) as lease:
        runs = [asyncio.ensure_future(lease.supervise(asyncio.sleep(60))) for _ in range(50)]
        await asyncio.sleep(0.05)
        RawEtcd(etcd.endpoint).delete(lease.key)
        ends = await asyncio.gather(*runs, return_exceptions=True)
        assert all(isinstance(end, LeaseLost) for end in ends)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
@on_loop
async def test_eager_tasks(etcd: EtcdServer, namespace: str) -> None:
    """With eager tasks supervise gives results, and ends a coroutine that is lost in its very first step."""
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]

    async def at_once() -> int:
        return 7

    async with held(etcd.endpoint, namespace) as lease:
        assert await lease.supervise(at_once()) == 7
        trace: list[str] = []

        async def releases() -> None:
            await lease.release()
            await until_cancelled(trace)

        with pytest.raises(LeaseLost):
            await asyncio.wait_for(lease.supervise(releases()), 20)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.timeout came with Python 3.11")
@on_loop
async def test_under_a_timeout(etcd: EtcdServer, namespace: str) -> None:
    """asyncio.timeout around supervise ends in TimeoutError, and inside the coroutine it works as ever."""
    timeout = asyncio.timeout  # type: ignore[attr-defined,unused-ignore]

    async def inside() -> str:
        try:
            async with timeout(0.05):
                await asyncio.sleep(60)
        except TimeoutError:
            return "timed out inside"
        return "never"

    async with held(etcd.endpoint, namespace) as lease:
        assert await lease.supervise(inside()) == "timed out inside"
        with pytest.raises(TimeoutError):
            async with timeout(0.05):
                await lease.supervise(asyncio.sleep(60))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TaskGroup came with Python 3.11")
@on_loop
async def test_a_task_group_ends_with_the_lease(etcd: EtcdServer, namespace: str) -> None:
    """One supervised member of a TaskGroup that loses the lease cancels the others, as any failing member does."""

    async def group_of(lease: AsyncLease) -> None:
        async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined,unused-ignore]
            group.create_task(lease.supervise(asyncio.sleep(60)))
            group.create_task(asyncio.sleep(60))

    async with held(etcd.endpoint, namespace) as lease:
        run = asyncio.ensure_future(group_of(lease))
        await asyncio.sleep(0.05)
        RawEtcd(etcd.endpoint).delete(lease.key)
        with pytest.raises(BaseException, match="unhandled errors") as caught:
            await run
        assert [type(error) for error in caught.value.exceptions] == [LeaseLost]  # type: ignore[attr-defined]
