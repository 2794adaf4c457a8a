"""What an observer keeps about each claim from its acquisition to its end.

Some events are told on the caller's thread and some later on another one, so a claim's end can be told before its beginning.
It is then remembered for a while, and the beginning comes to nothing.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

__all__ = ["Holds"]

T = TypeVar("T")

# Claims that are held at once; further ones are not followed.
HOLDS_MAX = 100_000
# Ends that came first.
EARLY_MAX = 1000


class Holds(Generic[T]):
    """A value per claim that is held now. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._values: dict[str, T] = {}
        self._early: dict[str, None] = {}

    def begin(self, claim: str, value: T) -> bool:
        """Keep ``value`` until `end`; False, and nothing is kept, when the end was told already or too many are held."""
        with self._lock:
            if claim in self._early:
                del self._early[claim]
                return False
            if len(self._values) >= HOLDS_MAX:
                return False
            self._values[claim] = value
            return True

    def get(self, claim: str) -> T | None:
        """What is kept about a claim."""
        return self._values.get(claim)

    def pop(self, claim: str) -> T | None:
        """What was kept about a claim, which is over, where nothing can be told before its beginning."""
        with self._lock:
            return self._values.pop(claim, None)

    def end(self, claim: str) -> T | None:
        """What was kept about a claim, which is over."""
        with self._lock:
            value = self._values.pop(claim, None)
            if value is None:
                self._early[claim] = None
                while len(self._early) > EARLY_MAX:
                    del self._early[next(iter(self._early))]
            return value
