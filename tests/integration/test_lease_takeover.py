"""Two hundred owners that are dead, and all who want their names: nobody owns one before etcd has deleted its key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from leasekeeper import AsyncKeeper, Timing
from leasekeeper.protocol import inspect as look
from leasekeeper.testing import EtcdServer
from tests.loops import on_loop
from tests.raw import RawEtcd

NAMES = 200
LEASES = 4
TTL_S = 2


class DeadOwners:
    """Claims of processes that are no more: their keys stand until etcd ends their leases."""

    def __init__(self, raw: RawEtcd, keeper: AsyncKeeper) -> None:
        self._raw = raw
        self.leases = [raw.grant(TTL_S) for _ in range(LEASES)]
        self.names = [f"n{number}" for number in range(NAMES)]
        self._keys = {name: f"{keeper._core.ctx.keys.lock_key(name)}/dead" for name in self.names}
        for number, key in enumerate(self._keys.values()):
            raw.put(key, lease=self.leases[number % LEASES])

    def stands(self, name: str) -> bool:
        """Whether the dead owner's key is there still."""
        return self._raw.keys(self._keys[name]) != []


@asynccontextmanager
async def again_and_again(*asks: Callable[[], Coroutine[Any, Any, object]]) -> AsyncIterator[None]:
    """Ask all this over and over while the block runs."""

    async def forever(ask: Callable[[], Coroutine[Any, Any, object]]) -> None:
        while True:
            await ask()

    asking = [asyncio.ensure_future(forever(ask)) for ask in asks]
    yield
    for task in asking:
        task.cancel()
    for outcome in await asyncio.gather(*asking, return_exceptions=True):
        assert isinstance(outcome, asyncio.CancelledError), outcome


@pytest.mark.slow
@on_loop
async def test_two_hundred_turns_come_with_the_deletion(etcd: EtcdServer, namespace: str) -> None:
    """C35: Two hundred times waiters, tries and lookers ask through a dead owner's last moments; none owns before the DELETE."""
    too_early: list[str] = []
    tried = 0
    async with (
        AsyncKeeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=30)) as keeper,
        AsyncKeeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=30)) as other,
    ):
        dead = DeadOwners(RawEtcd(etcd.endpoint), keeper)

        async def wait_for_it(name: str) -> None:
            async with keeper.lease(name, timeout=40):
                if dead.stands(name):
                    too_early.append(f"{name} by waiting")

        async def try_all() -> None:
            nonlocal tried
            for name in dead.names[:20]:
                lease = await other.try_acquire(name)
                tried += 1
                if lease is not None:
                    if dead.stands(name):
                        too_early.append(f"{name} by trying")
                    await lease.release()

        async def look_at_all() -> None:
            for lease_id in dead.leases:
                await keeper._core.arun(look.time_left(lease_id))
            await keeper.claims(dead.names[0])

        async with again_and_again(try_all, look_at_all):
            await asyncio.gather(*(wait_for_it(name) for name in dead.names))
    assert too_early == []
    assert tried > NAMES
