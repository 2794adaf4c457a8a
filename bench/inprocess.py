"""What can be measured inside one process: uncontended leases, the gate, long use of one name."""

from __future__ import annotations

import asyncio
import statistics
import time
from functools import partial

import grpc

from bench.measure import Row, interleaved, interleaved_async, micros
from bench.raw import Raw
from leasekeeper import AsyncKeeper, Keeper
from leasekeeper.clock import boottime

__all__ = ["asynchronous", "gate", "long_use", "uncontended"]


def uncontended(endpoint: str, rounds: int) -> Row:
    """Acquire and release beside the same two raw transactions on the same channel."""
    with grpc.insecure_channel(endpoint) as channel, Keeper(channel=channel, namespace="bench") as keeper:
        raw = Raw(channel)
        times = interleaved(
            {"raw": raw.same, "barest": raw.barest, "ours": lambda: keeper.acquire("name").release()}, rounds
        )
    return Row(
        "acquire + release, uncontended, blocking",
        times["ours"] / times["raw"],
        1.10,
        f"{micros(times['ours'])} beside {micros(times['raw'])}; {times['ours'] / times['barest']:.2f} × the barest pair",
        figures=times,
    )


def asynchronous(endpoint: str, rounds: int) -> Row:
    """The same under asyncio, beside the same blocking raw transactions on the same channel.

    For information also beside the raw transactions as futures of that channel, awaited: what a loop costs at the least.
    """
    times = asyncio.run(_asynchronous(endpoint, rounds))
    return Row(
        "the same under asyncio",
        times["ours"] / times["raw"],
        1.30,
        f"{micros(times['ours'])} beside {micros(times['raw'])}; awaited raw futures: {times['awaited'] / times['raw']:.2f} ×",
        figures=times,
    )


async def _asynchronous(endpoint: str, rounds: int) -> dict[str, float]:
    with grpc.insecure_channel(endpoint) as channel:
        async with AsyncKeeper(channel=channel, namespace="bench-async") as keeper:
            raw = Raw(channel)

            async def ours() -> None:
                lease = await keeper.acquire("name")
                await lease.release()

            async def blocking() -> None:
                raw.same()

            return await interleaved_async({"raw": blocking, "awaited": raw.same_awaited, "ours": ours}, rounds)


def gate(endpoint: str, rounds: int) -> Row:
    """check() beside one reading of the clock."""

    def many(call: object, times: int = 1000) -> None:
        for _ in range(times):
            call()  # type: ignore[operator]

    with Keeper(endpoint, namespace="bench") as keeper, keeper.lease("gate") as lease:
        times = interleaved({"clock": partial(many, boottime), "check": partial(many, lease.check)}, rounds)
    ratio = times["check"] / times["clock"]
    detail = f"{micros(times['check'] / 1000)} beside {micros(times['clock'] / 1000)}"
    return Row("check()", ratio, 4.0, detail, figures=times)


def long_use(endpoint: str, acquires: int) -> Row:
    """The last of many acquires of one name beside the first, with no compaction in between."""
    share = max(50, acquires // 20)
    first: list[float] = []
    last: list[float] = []
    with Keeper(endpoint, namespace="bench-long") as keeper:
        for _ in range(50):
            keeper.acquire("name").release()
        for number in range(acquires):
            begun = time.perf_counter()
            lease = keeper.acquire("name")
            taken = time.perf_counter() - begun
            lease.release()
            if number < share:
                first.append(taken)
            elif number >= acquires - share:
                last.append(taken)
    early, late = statistics.median(first), statistics.median(last)
    return Row(
        f"the {acquires:,}th acquire of one name",
        late / early,
        1.1,
        f"{micros(late)} beside {micros(early)} (medians of {share} acquires)",
        figures={"first": early, "last": late},
    )
