"""The owner's side: grants made from a lease at its gate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from leasekeeper.clock import boottime
from leasekeeper.errors import ConfigError
from leasekeeper.guards import Bearer
from leasekeeper.guards.grant.live import Grant, check_time, digest_of, made_live
from leasekeeper.guards.grant.terms import MS_MAX, Terms, signed_part, whole
from leasekeeper.protocol.keys import check_name
from leasekeeper.signing import check_key_id

if TYPE_CHECKING:
    from leasekeeper.signing import SigningKey

__all__ = ["Issuer", "Owned"]


class Owned(Bearer, Protocol):
    """What a grant is made from: `leasekeeper.Lease` and `leasekeeper.AsyncLease` both fit."""

    @property
    def name(self) -> str:
        """What is leased."""
        ...

    def remaining(self) -> float:
        """Seconds of proven authority left."""
        ...

    def deadlines(self) -> tuple[float, float]:
        """When work must pause and when authority ends, on `leasekeeper.clock`."""
        ...


@dataclass(frozen=True, slots=True)
class _AtOwner:
    """The lease's gate, and the grant's deadline on the same clock."""

    lease: Owned
    issued_s: float
    until_s: float
    clock: Callable[[], float]

    def check(self, grant: Grant, need: float) -> None:
        self.lease.check(need)
        now_s = self.clock()
        check_time(grant, self.until_s - now_s, need, now_s - self.issued_s)

    def remaining(self, grant: Grant) -> float:
        return min(self.lease.remaining(), self.until_s - self.clock())


class Issuer:
    """Makes grants from leases and signs them.

    Give it a key of its own for each etcd and namespace: a token says nothing where another etcd gave it.

    Args:
        key: what signs.
        clock: the clock of the leases.
        wall: seconds since 1970, for the deadline that is written into the grant.
    """

    __slots__ = ("_clock", "_key", "_wall")

    def __init__(
        self, key: SigningKey, *, clock: Callable[[], float] = boottime, wall: Callable[[], float] = time.time
    ) -> None:
        check_key_id(key.key_id)
        self._key = key
        self._clock = clock
        self._wall = wall

    def grant(self, lease: Owned, effect: str, arguments: Mapping[str, object], *, need: float = 0.0) -> Grant:
        """A grant for one effect, as long as the lease's authority is proven now; later heartbeats do not prolong it.

        Args:
            lease: asked at its gate.
            effect: its name, which the resource must know too; 1 to 255 characters, no control characters.
            arguments: its arguments by name; what `leasekeeper.canonical` can write. Only their digest is carried.
            need: seconds of proven authority that the effect needs.

        Raises:
            LeaseSuspended, LeaseLost: the gate does not let work through.
            ConfigError: the effect or an argument cannot be.
        """
        check_name(effect, "effect")
        digest = digest_of(arguments)
        token = lease.check(need)
        # The wall clock first: what happens between the two readings makes the deadline earlier, never later.
        wall_s, now_s = self._wall(), self._clock()
        until_s = lease.deadlines()[1]
        left_s = until_s - now_s
        until_ms = wall_s * 1000 + left_s * 1000 if left_s > 0 else wall_s * 1000
        terms = Terms(
            name=lease.name,
            token=token,
            claim=lease.claim,
            holder=lease.holder,
            effect=effect,
            digest=digest,
            issued_ms=_milliseconds(wall_s * 1000),
            until_ms=_milliseconds(until_ms),
        )
        signed = signed_part(self._key.key_id, terms)
        text = whole(signed, self._key.sign(signed.encode()))
        grant = made_live(terms, self._key.key_id, text, _AtOwner(lease, now_s, until_s, self._clock))
        # Authority may have lapsed while it was made.
        grant.check(need)
        return grant

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key.key_id!r}>"


def _milliseconds(value: float) -> int:
    if not 0 <= value <= MS_MAX:
        raise ConfigError(field="wall clock", value=value, expected="milliseconds since 1970 that a number can hold")
    return math.floor(value)
