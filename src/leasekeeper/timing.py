"""How long things take: the durations of a lease, with the relations between them checked.

Deadlines count from the moment a beat was *sent*, so for a lease of ``ttl`` seconds etcd cannot have let it expire before
``proof + ttl`` on any clock that runs at the right rate. ``margin`` is kept back for clock *rate* error and for the time
between the gate and the first instruction after it::

    proof        pause_after                  ttl - margin      ttl
      |---- HELD ----|-------- SUSPENDED ----------|---- margin --|  the earliest another owner can exist
      beat  beat  beat

A call begun at the gate therefore has at least ``ttl - margin - pause_after`` seconds (by default nearly half a TTL)
before anybody else can own the name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from leasekeeper.errors import ConfigError

__all__ = ["TTL_MAX_S", "TTL_MIN_S", "Timing"]

# etcd counts whole seconds and raises what is too small; below 1 s no relation between the parts can hold.
TTL_MIN_S = 1.0
# A crashed owner blocks its name for a whole TTL. More than a day is a mistake in units, not a wish.
TTL_MAX_S = 86_400.0
# Some thirty years: as good as no bound at all.
PATIENCE_MAX_S = 1e9
# What a server may add on its own: etcd's minimum TTL is 1.5 election timeouts, at most 75 s.
SERVER_MINIMUM_MAX_S = 120.0

BEAT_SHARE = 1 / 5
PAUSE_SHARE = 1 / 2
MARGIN_SHARE = 0.03
MARGIN_MIN_S = 0.25


def _seconds(field: str, value: object, *, low: float, high: float) -> float:
    """``value`` as seconds, or a ConfigError that names the field and its bounds."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # type: ignore[operator]
        raise ConfigError(field=field, value=value, expected=f"seconds from {low:g} to {high:g}")
    return float(value)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Timing:
    """The durations of a lease, all in seconds.

    Guarantees that two beats fit before the pause and that the pause comes before ``ttl - margin``; a wrong relation is
    a ConfigError that names both values. Fields left None follow from ``ttl``, also when the server grants another one.

    Args:
        ttl: how long after the last beat etcd keeps the claim; 1 to 86,400. etcd counts whole seconds: a fraction is
            rounded up when it is asked for.
        beat_every: time between heartbeats; default ttl/5, or half of ``pause_after`` if that is shorter.
        pause_after: age of the proof at which work is held; default ttl/2.
        margin: kept back before the TTL is out; default max(0.25, 3 % of ttl).
        give_up_after: how long SUSPENDED may last before the lease counts as LOST; default: as long as etcd leaves it open.
        max_hold: how long one claim may be owned at all, for work that may hang; default: no bound. When it is over the
            lease is LOST with reason ``gave_up`` and the claim is removed.
    """

    ttl: float = 10.0
    beat_every: float | None = None
    pause_after: float | None = None
    margin: float | None = None
    give_up_after: float | None = None
    max_hold: float | None = None

    # What follows from the above, in seconds; worked out once because the gate reads it on every check.
    beat_s: float = field(init=False, repr=False, compare=False)
    """Between beats."""
    pause_s: float = field(init=False, repr=False, compare=False)
    """Age of the proof at which the state turns SUSPENDED."""
    margin_s: float = field(init=False, repr=False, compare=False)
    """Kept back before the TTL is out."""
    authority_s: float = field(init=False, repr=False, compare=False)
    """How much authority one proof is worth: ttl - margin."""
    gate_s: float = field(init=False, repr=False, compare=False)
    """Age of the proof by which what the gate lets through must be done: authority_s, or when a patience gives up."""

    def __post_init__(self) -> None:
        ttl = _seconds("ttl", self.ttl, low=TTL_MIN_S, high=TTL_MAX_S)
        for name in ("beat_every", "pause_after", "margin"):
            value = getattr(self, name)
            if value is not None:
                _seconds(name, value, low=0.01, high=ttl)
        for name in ("give_up_after", "max_hold"):
            value = getattr(self, name)
            if value is not None:
                _seconds(name, value, low=0.01, high=PATIENCE_MAX_S)
        margin_s = max(MARGIN_MIN_S, ttl * MARGIN_SHARE) if self.margin is None else self.margin
        pause_s = ttl * PAUSE_SHARE if self.pause_after is None else self.pause_after
        # Two must fit before a pause that was set, also when the server grants a longer TTL than was asked for.
        beat_s = min(ttl * BEAT_SHARE, pause_s / 2)
        self._set("beat_s", beat_s if self.beat_every is None else self.beat_every)
        self._set("pause_s", pause_s)
        self._set("margin_s", margin_s)
        self._set("authority_s", ttl - margin_s)
        # A lease that is given up is free for others at once, so nobody may be promised more than the patience.
        patience_s = math.inf if self.give_up_after is None else pause_s + self.give_up_after
        self._set("gate_s", min(ttl - margin_s, patience_s))
        self._check_relations()

    def _set(self, name: str, value: float) -> None:
        object.__setattr__(self, name, value)

    def _check_relations(self) -> None:
        if 2 * self.beat_s > self.pause_s:
            raise ConfigError(
                f"beat_every={self.beat_s:g} is too long for pause_after={self.pause_s:g}: two beats must fit before"
                f" the pause, so beat_every may be at most {self.pause_s / 2:g}",
                field="beat_every",
                value=self.beat_s,
                expected=f"at most {self.pause_s / 2:g} s",
            )
        if self.pause_s >= self.ttl - self.margin_s:
            raise ConfigError(
                f"pause_after={self.pause_s:g} must be less than ttl - margin = {self.ttl:g} - {self.margin_s:g}"
                f" = {self.ttl - self.margin_s:g}",
                field="pause_after",
                value=self.pause_s,
                expected=f"less than {self.ttl - self.margin_s:g} s",
            )

    @property
    def beat_late_s(self) -> float:
        """After how many seconds an unanswered beat is late and the next is sent to another endpoint.

        Half a beat interval: with the default shares four endpoints can be tried before work pauses.
        """
        return self.beat_s / 2

    @property
    def ask_s(self) -> int:
        """The TTL to ask etcd for: whole seconds, rounded up."""
        return math.ceil(self.ttl)

    def granted(self, ttl: int) -> Timing:
        """The timing for what the server granted.

        The reply counts, not what was asked: etcd raises a TTL below its own minimum. A value that no server grants in
        earnest is not believed; believing less than the server keeps is always safe. Explicit durations stay as they
        are, so a reply shorter than they allow is a ConfigError.
        """
        plausible = ttl if ttl <= max(self.ask_s, SERVER_MINIMUM_MAX_S) else self.ask_s
        return self if plausible == self.ttl else replace(self, ttl=float(plausible))
