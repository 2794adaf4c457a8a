"""What tests share: waiting for a condition instead of guessing a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
POLL_S = 0.02


def until(predicate: Callable[[], T], timeout_s: float = 30.0) -> T:
    """Poll ``predicate`` until it is true and return its value; fail after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            what = getattr(predicate, "__name__", repr(predicate))
            raise AssertionError(f"not true within {timeout_s:g} s: {what}, last value {value!r}")
        time.sleep(POLL_S)
