"""Failpoints that are armed on a keeper strike the runs that its workers go on with, too."""

from __future__ import annotations

import asyncio

import pytest

from leasekeeper import AsyncKeeper, Keeper
from leasekeeper.runs.aio import AsyncRun
from leasekeeper.runs.run import Run
from leasekeeper.testing import EtcdServer, failpoints
from tests.support import until


def test_of_a_worker(etcd: EtcdServer, namespace: str) -> None:
    """A24: a point is passed, and an error raised there, in a run that a worker goes on with; the next time it is done."""

    def main(run: Run) -> None:
        run.do("ask", lambda: 42)

    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        failpoint = failpoints.raise_at("intent:send", RuntimeError("struck"), on=keeper)
        with failpoint:
            assert keeper.begin("order", id="o-1", signer=None)
            with keeper.worker({"order": main}, every=0.05, signer=None) as worker:
                until(lambda: worker.finished == 1)
        assert failpoint.struck
        assert worker.failed == 1


def test_of_begin(etcd: EtcdServer, namespace: str) -> None:
    """A24: beginning a run for a worker passes the point of its opening."""
    with (
        Keeper(etcd.endpoint, namespace=namespace) as keeper,
        failpoints.raise_at("open:send", RuntimeError("struck"), on=keeper),
    ):
        with pytest.raises(RuntimeError, match="struck"):
            keeper.begin("order", id="o-1", signer=None)
        assert keeper.begin("order", id="o-1", signer=None)


def test_of_an_async_worker(etcd: EtcdServer, namespace: str) -> None:
    """A24: the same under asyncio."""

    async def main(run: AsyncRun) -> None:
        await run.do("ask", lambda: 42)

    async def story() -> tuple[bool, int]:
        async with AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper:
            failpoint = failpoints.raise_at("intent:send", RuntimeError("struck"), on=keeper)
            with failpoint:
                await keeper.begin("order", id="o-1", signer=None)
                worker = keeper.worker({"order": main}, every=0.05, signer=None)
                work = asyncio.create_task(worker.run())
                while worker.finished < 1:  # noqa: ASYNC110 - the worker has no event for it
                    await asyncio.sleep(0.05)
                work.cancel()
            return failpoint.struck, worker.failed

    assert asyncio.run(asyncio.wait_for(story(), 50)) == (True, 1)
