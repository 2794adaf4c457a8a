"""Many tasks that acquire, give up and are cancelled at random while the network breaks: the rules hold and nothing is left."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from leasekeeper import AsyncKeeper, AsyncLease, LeasekeeperError, LeaseSuspended, Timing
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.loops import eventually, on_loop
from tests.raw import RawEtcd

TIMING = Timing(ttl=2)
TASKS = 24
STORM_S = 5.0


class Storm:
    """What the tasks do, and what they find."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.over = time.monotonic() + STORM_S
        self.inside: dict[str, AsyncLease] = {}
        self.both: list[tuple[int, int]] = []
        self.tokens: dict[str, list[int]] = {}
        self.cancelled = 0

    async def work(self, keeper: AsyncKeeper) -> None:
        """One job after the other, most of them cancelled sooner or later, some of them twice."""
        while time.monotonic() < self.over:
            job = asyncio.ensure_future(self.job(keeper))
            if self.chance.random() < 0.6:
                await asyncio.sleep(self.chance.random() ** 3 * 0.2)
                job.cancel()
            if self.chance.random() < 0.2:
                await asyncio.sleep(0)
                job.cancel()
            try:
                await job
            except asyncio.CancelledError:
                self.cancelled += 1
            except LeasekeeperError:
                pass  # lost, late or out of reach, as it has to be now and then

    async def job(self, keeper: AsyncKeeper) -> None:
        """Own one of three names for a moment and look whether anybody else does."""
        name = self.chance.choice("abc")
        async with keeper.lease(name, timeout=self.chance.choice((None, 0.05, 0.5, 5.0))) as lease:
            self.tokens.setdefault(name, []).append(lease.token)
            for _ in range(self.chance.randrange(3)):
                try:
                    lease.check()
                except LeaseSuspended:
                    await lease.wait()
                other = self.inside.get(name)
                if other is not None and other is not lease and other.remaining() > 0 and lease.remaining() > 0:
                    self.both.append((other.token, lease.token))
                self.inside[name] = lease
                await asyncio.sleep(self.chance.random() * 0.01)

    async def break_the_network(self, proxy: FaultProxy) -> None:
        """Resets, clean ends, silence, refusals and lost replies."""
        while time.monotonic() < self.over:
            await asyncio.sleep(self.chance.random() * 0.5)
            self.chance.choice((proxy.close_cleanly, proxy.blackhole, proxy.cut, proxy.lose_replies))()
            await asyncio.sleep(self.chance.random() * 0.6)
            proxy.heal(reset=self.chance.random() < 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
@on_loop
async def test_a_storm_of_cancellations(proxy: FaultProxy, etcd: EtcdServer, namespace: str, broken: bool) -> None:
    """G1 G2 C10: tasks cancelled at random, on a sound and a broken network: one owner, growing tokens, no leftovers."""
    raw = RawEtcd(etcd.endpoint)
    storm = Storm(seed=random.randrange(2**32))
    async with (
        AsyncKeeper(proxy.endpoint, namespace=namespace, timing=TIMING) as one,
        AsyncKeeper(etcd.endpoint, namespace=namespace, timing=TIMING) as other,
    ):
        jobs = [storm.work((one, other)[number % 2]) for number in range(TASKS)]
        await asyncio.gather(*jobs, *([storm.break_the_network(proxy)] if broken else []))
        proxy.heal(reset=True)
        await eventually(lambda: not raw.claims(namespace))
        for keeper in (one, other):
            async with keeper.lease("a", timeout=30):
                pass
    assert storm.both == []
    assert all(tokens == sorted(set(tokens)) for tokens in storm.tokens.values())
    assert storm.cancelled
