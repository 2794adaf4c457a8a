"""What goes wrong at the outside world: a list of troubles, each for some requests of one kind.

Troubles are put before or after the one instant at which an effect happens, for that is all that matters to whoever asks:
whether it happened, and whether he heard of it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from leasekeeper.errors import ConfigError

__all__ = ["Trouble", "TroubleKind", "Troubles"]

TroubleKind = Literal["delay", "delay_reply", "lose_reply", "trickle", "fail", "fail_after", "lag", "outage"]
KINDS: tuple[str, ...] = get_args(TroubleKind)
TROUBLES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Trouble:
    """One trouble.

    Args:
        kind: ``delay`` the effect by ``ms``; ``delay_reply`` by ``ms``, the effect has happened; ``lose_reply``: it has
            happened, and the connection is dropped without a word, or in the middle of a stream; ``trickle``: ``ms`` between
            the pieces of a stream; ``fail`` with ``status``, nothing has happened;
            ``fail_after`` with ``status`` although it has happened; ``lag``: who reads sees the past, see ``ms`` and
            ``writes``; ``outage``: the connection is dropped, and nothing has happened.
        where: "service.effect", as "payments.charge"; "payments.*" for all of a service, "*" for everything.
        nth: the first request that it strikes, counted from 1 among those that match from now on.
        times: how many requests in a row it strikes; 0: until the world is healed.
        ms: milliseconds of a delay, which ends early when the world is healed, or of a lag.
        writes: of a lag, how many of the latest effects are not shown.
        status: of a failure.
    """

    kind: TroubleKind
    where: str = "*"
    nth: int = 1
    times: int = 1
    ms: int = 0
    writes: int = 0
    status: int = 500

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(field="kind", value=self.kind, expected=f"one of {', '.join(KINDS)}")
        for name, least in (("nth", 1), ("times", 0), ("ms", 0), ("writes", 0), ("status", 400)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(field=name, value=value, expected=f"a whole number from {least}")

    def matches(self, service: str, effect: str) -> bool:
        """Whether a request is of the kind that it strikes."""
        return self.where in ("*", f"{service}.*", f"{service}.{effect}")

    def strikes(self, number: int) -> bool:
        """Whether it strikes the request of this number, counted from 1 among those that match."""
        return number >= self.nth and (not self.times or number < self.nth + self.times)

    def as_json(self) -> dict[str, Any]:
        """What goes through `/__control`."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Trouble:
        """What came through `/__control`; ConfigError when it is no trouble."""
        unknown = sorted(set(value) - set(cls.__slots__))
        if unknown or "kind" not in value:
            raise ConfigError(field="trouble", value=dict(value), expected=f"kind, and of {', '.join(cls.__slots__)}")
        return cls(**value)


class Troubles:
    """All troubles of a world; counts the requests that each has seen. Safe for several threads."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._seen: list[tuple[Trouble, int]] = []
        self._healed = threading.Event()

    def add(self, trouble: Trouble) -> None:
        """One more, from the next request on; ConfigError when there are too many."""
        with self._turn:
            if len(self._seen) >= TROUBLES_MAX:
                raise ConfigError(field="troubles", value=len(self._seen) + 1, expected=f"at most {TROUBLES_MAX}")
            self._seen.append((trouble, 0))

    def heal(self) -> None:
        """End them all, delays that are under way as well."""
        with self._turn:
            self._seen.clear()
            self._healed.set()
            self._healed = threading.Event()

    def meet(self, service: str, effect: str) -> Fate:
        """What becomes of one request, which counts for every trouble that matches."""
        with self._turn:
            struck = []
            for place, (trouble, seen) in enumerate(self._seen):
                if trouble.matches(service, effect):
                    self._seen[place] = (trouble, seen + 1)
                    if trouble.strikes(seen + 1):
                        struck.append(trouble)
            return Fate(tuple(struck), self._healed)


@dataclass(frozen=True, slots=True)
class Fate:
    """The troubles of one request."""

    troubles: tuple[Trouble, ...]
    healed: threading.Event

    def of(self, kind: TroubleKind) -> Trouble | None:
        """Its trouble of that kind, the latest if there are several."""
        found = [trouble for trouble in self.troubles if trouble.kind == kind]
        return found[-1] if found else None

    def wait(self, kind: TroubleKind) -> None:
        """Wait as long as a delay of that kind says, if there is one, or until the world is healed."""
        if (trouble := self.of(kind)) is not None:
            self.healed.wait(trouble.ms / 1000)
