"""Effects for tests of runs: one that counts its calls, and how a run's life ends that an error ends."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest


def ends_with(
    error: type[BaseException] | tuple[type[BaseException], ...], match: str | None = None
) -> AbstractContextManager[Any, bool]:
    """Around the life of a run: how it ends."""
    return pytest.raises(error, match=match)


class Effect:
    """An effect that counts."""

    def __init__(self, result: Any = 1) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.result = result

    def __call__(self, *args: Any) -> Any:
        """Do it."""
        self.calls.append(args)
        return self.result
