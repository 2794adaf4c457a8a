"""What replicas act on: a resource that applies the fence rule, and beside it a twin that applies none.

Every write reaches both, after its way. The fenced one must never go back from a newer owner to an older one (G4); the twin only
counts how often it did, which is what locks without a fence look like.
"""

from __future__ import annotations

from leasekeeper.fencing import Admitted, admits

__all__ = ["Resource"]


class Resource:
    """One resource and its twin."""

    def __init__(self) -> None:
        self._highest: Admitted | None = None
        self._newest: tuple[int, int] | None = None
        self._owners: set[tuple[int, int]] = set()
        self.accepted = self.refused = self.overlaps = 0
        self._twin_newest = 0

    def write(self, token: int, claim: str, number: int, holder: str) -> str | None:
        """A write arrives, ``number`` being who truly sent it; what is wrong if it was accepted and must not have been."""
        if token < self._twin_newest:
            self.overlaps += 1
        self._twin_newest = max(token, self._twin_newest)
        if not admits(self._highest, token, claim):
            self.refused += 1
            return None
        self._highest = Admitted(token, claim, holder)
        self.accepted += 1
        before, self._newest = self._newest, (token, number)
        went_back = (
            before is not None and before != self._newest and (token < before[0] or self._newest in self._owners)
        )
        self._owners.add(self._newest)
        return f"token {token} accepted after {before[0]}" if went_back and before is not None else None
