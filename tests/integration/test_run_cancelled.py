"""Runs under asyncio: cancelled anywhere, left by their loop, and called with what blocks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from leasekeeper import (
    AsyncKeeper,
    InDoubt,
)
from leasekeeper.runs.aio import AsyncRunning
from leasekeeper.runs.options import options
from leasekeeper.testing import EtcdServer


@pytest.mark.parametrize(
    "where",
    ["find:send", "intent:send", "intent:reply", "effect:call", "effect:return", "outcome:send", "outcome:reply"],
)
def test_a_step_that_is_cancelled_anywhere(etcd: EtcdServer, namespace: str, where: str) -> None:
    """C43: cancelled in each phase of a step: the run goes on, other steps are not harmed, and the effect is never made twice."""
    calls: list[int] = []

    async def effect() -> int:
        calls.append(1)
        await asyncio.sleep(0)
        return 7

    async def main() -> None:
        tasks: list[asyncio.Task[Any]] = []
        struck: list[str] = []

        def passing(point: str) -> None:
            if point == where and tasks and asyncio.current_task() is tasks[0] and not struck:
                struck.append(point)
                tasks[0].cancel()

        async with (
            AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper,
            AsyncRunning(keeper, options("order", id="1", signer=None), 10, 10, passing) as run,
        ):
            tasks.append(asyncio.ensure_future(run.do("s", effect)))
            others = [asyncio.ensure_future(run.do(f"o{index}", lambda: 1)) for index in range(5)]
            await asyncio.wait(tasks)
            assert await asyncio.gather(*others) == [1] * 5
            assert tasks[0].cancelled() == bool(struck)
            try:
                assert await run.do("s", effect) == 7
            except InDoubt:
                await keeper.resolve(run.run, "s", applied=bool(calls), evidence="looked", result=7, signer=None)
                assert await run.do("s", effect) == 7
            assert len(calls) == 1

    asyncio.run(main())


def test_tasks_of_a_loop_that_is_closed(etcd: EtcdServer, namespace: str) -> None:
    """C43: a keeper used from one loop after the other: a step left hanging in the first does not block the run's next life."""
    keeper = AsyncKeeper(etcd.endpoint, namespace=namespace)

    async def first() -> None:
        run = await keeper.run("order", id="1", signer=None, ttl=5).__aenter__()
        asyncio.ensure_future(run.do("s", lambda: 1))  # noqa: RUF006 - left behind
        await asyncio.sleep(0)
        await run.lease.release()

    async def second() -> None:
        async with keeper.run("order", id="1", signer=None, ttl=5, timeout=20) as run:
            assert await run.do("other", lambda: 2) == 2
        await keeper.close()

    asyncio.run(first())
    asyncio.run(second())


def test_what_blocks_does_not_block_the_loop(etcd: EtcdServer, namespace: str) -> None:
    """C11: a blob store, an anchor or an alert that blocks is called beside the loop, which goes on meanwhile."""
    released = threading.Event()
    waiting: list[str] = []
    kept: dict[str, bytes] = {}

    def block(name: str) -> None:
        waiting.append(name)
        assert released.wait(30), "the loop did not go on"
        released.clear()

    class Blobs:
        def put(self, digest: str, data: bytes, /) -> None:
            kept[digest] = data
            block("put")

        def get(self, digest: str, /) -> bytes:
            block("get")
            return kept[digest]

    async def release() -> None:
        while True:
            await asyncio.sleep(0.005)
            if waiting and not released.is_set():
                done.append(waiting.pop())
                released.set()

    async def life() -> None:
        releasing = asyncio.ensure_future(release())
        async with (
            AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper,
            keeper.run("order", id="1", signer=None, blobs=Blobs(), alert=lambda told: block(told.kind)) as run,
        ):
            assert await run.do("large", lambda: "x" * 100_000) == "x" * 100_000
            with pytest.raises(ZeroDivisionError):
                await run.do("broken", lambda: 1 // 0)
            try:
                await run.do("broken", lambda: 1 // 0)
            finally:
                releasing.cancel()

    done: list[str] = []
    for _ in range(2):
        with pytest.raises((InDoubt, ZeroDivisionError)):
            asyncio.run(life())
    assert done[:2] == ["put", "in_doubt"]
    assert "get" in done


@pytest.mark.parametrize("where", ["intent:send", "intent:reply", "effect:return", "outcome:send", "outcome:reply"])
def test_a_block_that_is_cancelled_sends_what_it_was_about_to_record(
    etcd: EtcdServer, namespace: str, where: str
) -> None:
    """C43: a task that is cancelled while it records leaves no doubt: that its call was made, or was not, is sent on leaving."""
    calls: list[int] = []

    async def life(struck: list[str]) -> Any:
        def passing(point: str) -> None:
            task = asyncio.current_task()
            if point == where and not struck and task is not None:
                struck.append(point)
                task.cancel()

        async with (
            AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper,
            AsyncRunning(keeper, options("order", id="1", signer=None), 10, 10, passing) as run,
        ):
            return await run.do("s", lambda: calls.append(1))

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(life([]))
    assert len(calls) == (0 if where == "intent:send" else 1)
    assert asyncio.run(life(["no more"])) is None
    assert len(calls) == 1
