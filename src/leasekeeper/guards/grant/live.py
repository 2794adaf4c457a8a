"""A grant that is live: its terms, its signed text, and what tells whether it still counts where it is."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from leasekeeper.canonical import canonical
from leasekeeper.errors import ConfigError, LeaseSuspended, Misuse
from leasekeeper.guards.grant.terms import MEMBERS, Terms

__all__ = ["Gate", "Grant", "check_time", "digest_of", "is_seconds", "made_live"]


class Gate(Protocol):
    """What makes a grant live where it is."""

    def check(self, grant: Grant, need: float) -> None:
        """Return if the grant counts for ``need`` seconds more; else the error that says who must act."""
        ...

    def remaining(self, grant: Grant) -> float:
        """Seconds that are left of it; negative when it has run out."""
        ...


@dataclass(frozen=True, slots=True)
class Grant(Terms):
    """That the owner of ``name`` with this token may do ``effect`` with the arguments of this digest, until ``until_ms``.

    An `Issuer` makes it from a lease, a `Verifier` reads it at the resource; only those are live. Both fit wherever a guard
    takes a lease. Hand over ``text``; the object itself belongs to its process.
    """

    key_id: str
    text: str = field(repr=False)
    _gate: Gate | None = field(default=None, init=False, repr=False, compare=False)

    def check(self, need: float = 0.0) -> int:
        """The token, if the grant is live with ``need`` seconds left; never blocks, never asks etcd.

        From an `Issuer` it asks the lease's gate and the grant's own deadline, which no later heartbeat moves. From a
        `Verifier` it asks the resource's wall clock: see there for what that is worth.

        Raises:
            LeaseSuspended: the grant has run out, or the lease's heartbeats are missing; a new grant may be had.
            LeaseLost: the lease is over for good.
            ConfigError: at the resource, when the grant comes from the future: the wall clocks do not agree.
            Misuse: ``need`` cannot be right, or nobody issued this grant.
        """
        self._live().check(self, need)
        return self.token

    def remaining(self) -> float:
        """Seconds until the grant runs out; 0.0 when it has. Fits as a timeout for the call that carries it."""
        return max(0.0, self._live().remaining(self))

    def covers(self, effect: str, arguments: Mapping[str, object]) -> bool:
        """Whether it is for this effect with these arguments; ConfigError for arguments that no grant can be for."""
        return self.effect == effect and self.digest == digest_of(arguments)

    def _live(self) -> Gate:
        if self._gate is None:
            raise Misuse("this grant was put together by hand: an Issuer makes them, a Verifier reads them")
        return self._gate

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot pickle or copy {self!r}: hand over its text, for a Verifier to read")


def made_live(terms: Terms, key_id: str, text: str, gate: Gate) -> Grant:
    """The grant of these terms, with what tells whether it still counts."""
    grant = Grant(**{member: getattr(terms, member) for member in MEMBERS}, key_id=key_id, text=text)
    # Not an argument of Grant: a copy with other terms, as dataclasses.replace makes, must not be live.
    object.__setattr__(grant, "_gate", gate)
    return grant


def digest_of(arguments: Mapping[str, object]) -> str:
    """The SHA-256, in hex, of the canonical JSON (RFC 8785) of an effect's arguments, by name; ConfigError if there is none."""
    if not isinstance(arguments, Mapping):
        raise ConfigError(field="arguments", value=type(arguments).__name__, expected="a mapping of names to values")
    return hashlib.sha256(canonical(dict(arguments), "arguments")).hexdigest()


def check_time(grant: Grant, left_s: float, need_s: float, age_s: float) -> None:
    """LeaseSuspended unless there is time left, and enough of it. A clock that gives no number leaves none."""
    if left_s > 0 and left_s >= need_s:
        return
    raise LeaseSuspended(
        f"grant of {grant.effect!r} on {grant.name!r} (token {grant.token}) has {max(0.0, left_s):.2f} s left and"
        f" {need_s:.2f} s are needed: get a new one from the lease",
        name=grant.name,
        token=grant.token,
        age_s=age_s,
        remaining_s=max(0.0, left_s),
        need_s=need_s,
    )


def is_seconds(value: object) -> bool:
    """Whether it is a finite number, and not negative."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
