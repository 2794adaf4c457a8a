"""Interleaved repetitions and their medians: what slows one contestant down slows them all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["Row", "interleaved", "interleaved_async", "micros"]

Contestant = Callable[[], object]


@dataclass
class Row:
    """One line of the table. ``ratio`` is compared with ``target`` (None: for information)."""

    what: str
    ratio: float | None
    target: float | None
    detail: str
    unit: str = "×"
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None when there is none."""
        return None if self.ratio is None or self.target is None else self.ratio <= self.target


def interleaved(contestants: Mapping[str, Contestant], rounds: int, warm_up: int = 20) -> dict[str, float]:
    """Median seconds of one call of each, over ``rounds`` rounds in which each has its turn, in changing order."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for kept, name in _turns(list(contestants), rounds, warm_up):
        begun = time.perf_counter()
        contestants[name]()
        if kept:
            taken[name].append(time.perf_counter() - begun)
    return {name: statistics.median(times) for name, times in taken.items()}


async def interleaved_async(
    contestants: Mapping[str, Callable[[], Awaitable[object]]], rounds: int, warm_up: int = 20
) -> dict[str, float]:
    """The same for coroutines."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for kept, name in _turns(list(contestants), rounds, warm_up):
        begun = time.perf_counter()
        await contestants[name]()
        if kept:
            taken[name].append(time.perf_counter() - begun)
    return {name: statistics.median(times) for name, times in taken.items()}


def _turns(names: list[str], rounds: int, warm_up: int) -> Iterator[tuple[bool, str]]:
    """Whose turn it is, and whether it counts."""
    for number in range(-warm_up, rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            yield number >= 0, name


def micros(seconds: float) -> str:
    """Seconds as text in microseconds or milliseconds."""
    return f"{seconds * 1e6:.2f} µs" if seconds < 1e-4 else f"{seconds * 1e3:.3f} ms"
