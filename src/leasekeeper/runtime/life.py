"""How long a keeper's machinery lives that nobody has closed: as long as somebody can still use it.

Its threads refer to it, so that it would never be garbage by itself. But they do not refer to its `Life`: only the keeper and
the leases that users hold do. When the last of these is gone the machinery ends, in the background.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Life"]


class Abandonable(Protocol):
    """What ends when nobody is left."""

    def abandon(self) -> None:
        """Nobody can use it any more. Called from anywhere, also in a garbage collection: leave a note at most."""
        ...


class Life:
    """Shared by everything that users hold of one keeper."""

    __slots__ = ("__weakref__", "_of")

    def __init__(self, of: Abandonable) -> None:
        self._of = of

    def __del__(self) -> None:
        self._of.abandon()
