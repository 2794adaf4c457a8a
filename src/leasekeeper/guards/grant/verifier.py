"""The resource's side: signed texts read, believed or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasekeeper.errors import AuthError, ConfigError, Misuse
from leasekeeper.guards.grant.live import Grant, check_time, digest_of, is_seconds, made_live
from leasekeeper.guards.grant.terms import Terms, decoded, split
from leasekeeper.signing import Keyring

if TYPE_CHECKING:
    from leasekeeper.signing import VerifyingKey

__all__ = ["Verifier"]

SKEW_MAX_S = 3600.0


@dataclass(frozen=True, slots=True)
class _AtResource:
    """The resource's wall clock, distrusted by ``skew_s``."""

    skew_s: float
    wall: Callable[[], float]

    def check(self, grant: Grant, need: float) -> None:
        if not is_seconds(need):
            raise Misuse(f"need={need!r}: expected seconds from 0 on")
        now_s = self.wall()
        age_s = now_s - grant.issued_ms / 1000
        if age_s < -self.skew_s:
            raise ConfigError(
                f"grant of {grant.effect!r} on {grant.name!r} was issued {-age_s:.2f} s in the future: the wall clocks of"
                f" {grant.holder!r} and of this host differ by more than skew_s={self.skew_s:g}",
                field="skew_s",
                value=self.skew_s,
                expected="wall clocks that differ by no more",
            )
        check_time(grant, self._left(grant, now_s), need, age_s)

    def remaining(self, grant: Grant) -> float:
        return self._left(grant, self.wall())

    def _left(self, grant: Grant, now_s: float) -> float:
        return grant.until_ms / 1000 - self.skew_s - now_s


class Verifier:
    """Reads grants at a resource: which are rightly signed, and for what.

    Safety rests on the token and the fence (G4): feed the grant to a guard as if it were the lease. The deadline is a second
    line only. It is judged by this host's wall clock, ``skew_s`` early: while that clock and the issuer's differ by at most
    ``skew_s``, no grant passes after the authority behind it has ended. If they differ by more it may, and then only the fence
    refuses; that the clocks are wrong is noticed only when a fresh grant seems to come from the future.

    Args:
        keys: the keys that are believed, at most 32; more than one while they are exchanged.
        skew_s: by how many seconds wall clocks may differ; 0 to 3,600. Every grant ends that much earlier here.
        wall: seconds since 1970.

    Raises:
        ConfigError: an argument cannot be right.
    """

    __slots__ = ("_keys", "_skew_s", "_wall")

    def __init__(self, *keys: VerifyingKey, skew_s: float = 0.5, wall: Callable[[], float] = time.time) -> None:
        self._keys = Keyring(*keys)
        if not is_seconds(skew_s) or skew_s > SKEW_MAX_S:
            raise ConfigError(field="skew_s", value=skew_s, expected=f"seconds from 0 to {SKEW_MAX_S:g}")
        self._skew_s = skew_s
        self._wall = wall

    def accept(self, text: str, *, name: str, effect: str, arguments: Mapping[str, object], need: float = 0.0) -> Grant:
        """The grant of this text, if it is rightly signed, for just this and not run out.

        Args:
            text: what was sent.
            name: the lease's name that stands for this resource; an owner of any other name is nobody here.
            effect: what is asked for.
            arguments: its arguments as they are about to be used, by name.
            need: seconds that the work will take; 0: it is about to be done.

        Raises:
            AuthError: the signature is wrong, its key unknown, or it was given for something else.
            LeaseSuspended: it has run out; its sender may have a new one if the lease is still good.
            ConfigError: the text is no grant, and says where; or the wall clocks do not agree.
        """
        grant = self.read(text)
        for what, granted, wanted in (("name", grant.name, name), ("effect", grant.effect, effect)):
            if granted != wanted:
                raise AuthError(f"the grant is for the {what} {granted!r}, not for {wanted!r}", operation="accept")
        if grant.digest != digest_of(arguments):
            raise AuthError(f"the grant for {effect!r} is for other arguments", operation="accept")
        grant.check(need)
        return grant

    def read(self, text: str) -> Grant:
        """The grant of this text, if it is rightly signed; it may have run out long ago. For records and for looking.

        Raises AuthError and ConfigError as `accept` does.
        """
        parts = split(text)
        self._keys.verify(parts.key_id, parts.signed, parts.signature)
        terms = Terms.of(decoded("payload", parts.payload))
        return made_live(terms, parts.key_id, text, _AtResource(self._skew_s, self._wall))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._keys!r} skew_s={self._skew_s:g}>"
