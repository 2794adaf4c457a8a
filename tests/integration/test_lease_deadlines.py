"""A timeout that the caller gave bounds the call, whatever became of etcd meanwhile; what is left to do is done behind it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from leasekeeper import AsyncKeeper, Keeper, NotAcquired, Timing, Unavailable
from leasekeeper.runtime.core import ONCE_S
from leasekeeper.testing import EtcdServer, Fault, FaultProxy
from tests.raw import RawEtcd
from tests.support import until

TIMING = Timing(ttl=20)
# What the documentation says, and as much for a busy machine.
LATER_S = 2.0 + 2.0
FAULTS = [Fault("blackhole"), Fault("lose_replies"), Fault("cut")]


@pytest.fixture
def keeper(proxy: FaultProxy, namespace: str) -> Iterator[Keeper]:
    """A keeper whose network can be broken; no claim is left once it is whole again, although the keeper lives on."""
    with Keeper(proxy.endpoint, namespace=namespace, timing=TIMING) as made:
        yield made
        proxy.heal()
        raw = RawEtcd(proxy.endpoint)
        until(
            lambda: (
                [key for key in raw.claims(namespace) if key.key.startswith(f"leasekeeper/{namespace}/lease/n/")] == []
            )
        )


def patience_s(timeout_s: float) -> float:
    """How long a call with this timeout may take at the most."""
    return (timeout_s or ONCE_S) + LATER_S


@pytest.mark.parametrize("timeout_s", [0, 0.3])
@pytest.mark.parametrize("session", ["at hand", "none"])
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_an_acquire_ends_in_its_time(
    keeper: Keeper, proxy: FaultProxy, fault: Fault, session: str, timeout_s: float
) -> None:
    """C10: With etcd out of reach an acquire ends with its timeout, and one that has none to spare after one try."""
    other = keeper.acquire("other", timeout=10) if session == "at hand" else None
    proxy.inject(fault)
    began_s = time.monotonic()
    with pytest.raises((NotAcquired, Unavailable)):
        keeper.acquire("n", timeout=timeout_s)
    assert time.monotonic() - began_s < patience_s(timeout_s)
    del other


@pytest.mark.parametrize("timeout_s", [0, 0.3])
@pytest.mark.parametrize("session", ["at hand", "none"])
def test_an_acquire_under_asyncio_ends_in_its_time(
    proxy: FaultProxy, namespace: str, session: str, timeout_s: float
) -> None:
    """C10: The same under asyncio."""

    async def run() -> float:
        keeper = AsyncKeeper(proxy.endpoint, namespace=namespace, timing=TIMING)
        try:
            other = await keeper.acquire("other", timeout=10) if session == "at hand" else None
            proxy.blackhole()
            began_s = time.monotonic()
            with pytest.raises((NotAcquired, Unavailable)):
                await keeper.acquire("n", timeout=timeout_s)
            took_s = time.monotonic() - began_s
            del other
        finally:
            proxy.heal()
            await keeper.close()
        return took_s

    assert asyncio.run(run()) < patience_s(timeout_s)


def test_a_waiter_that_is_cut_off_ends_in_its_time(
    keeper: Keeper, proxy: FaultProxy, etcd: EtcdServer, namespace: str
) -> None:
    """C10: A claim that stands in the queue when etcd falls silent is given up with its timeout."""
    with (
        Keeper(etcd.endpoint, namespace=namespace) as rival,
        rival.lease("n", timeout=10),
        ThreadPoolExecutor(1) as pool,
    ):
        began_s = time.monotonic()
        waiting = pool.submit(keeper.acquire, "n", timeout=1.0)
        until(lambda: len(rival.claims("n")) == 2 or waiting.done())
        proxy.blackhole()
        with pytest.raises((NotAcquired, Unavailable)):
            waiting.result(30)
        assert time.monotonic() - began_s < patience_s(1.0)


def test_trying_once_still_waits_for_an_answer(keeper: Keeper, proxy: FaultProxy) -> None:
    """A slow etcd is asked all the same by a call without time to wait, and its answer counts."""
    proxy.delay(0.05)
    lease = keeper.acquire("n", timeout=0)
    with pytest.raises(NotAcquired):
        keeper.acquire("n", timeout=0)
    lease.release()
