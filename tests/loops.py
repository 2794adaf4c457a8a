"""Coroutines as tests: each on an event loop of its own, and waiting for a condition without blocking it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")
POLL_S = 0.02


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine function as a test, on a new loop; what it leaves unfinished there is an error of the test."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(_whole(test(*args, **kwargs)))

    return run


async def _whole(test: Coroutine[Any, Any, None]) -> None:
    await test
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"tasks still run: {left}"


async def eventually(predicate: Callable[[], T], timeout_s: float = 30.0) -> T:
    """Poll ``predicate`` until it is true and return its value; fail after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not (value := predicate()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not true within {timeout_s:g} s: {predicate!r}, last value {value!r}")
        await asyncio.sleep(POLL_S)
    return value
