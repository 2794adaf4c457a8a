"""Durations: their relations are checked, the server's TTL re-scales them, and nonsense is refused by name."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from leasekeeper.errors import ConfigError
from leasekeeper.timing import SERVER_MINIMUM_MAX_S, TTL_MAX_S, TTL_MIN_S, Timing

BAD_NUMBERS = [
    0,
    -1,
    -0.0,
    0.009,
    math.nan,
    math.inf,
    -math.inf,
    1e12,
    10**400,
    -(10**400),
    10**5000,
    True,
    False,
    "10",
    b"10",
    "",
    None.__class__,
    [10],
    Decimal(10),
    1 + 0j,
]


def test_the_defaults_follow_from_the_ttl() -> None:
    """A beat every fifth, pause at half, 3 % or a quarter of a second of margin."""
    timing = Timing()
    assert timing.ttl == 10.0
    assert (timing.beat_s, timing.pause_s, timing.margin_s, timing.authority_s) == (2.0, 5.0, 0.3, 9.7)
    assert Timing(ttl=2.0).margin_s == 0.25
    assert Timing(ttl=100.0).margin_s == 3.0
    assert (timing.give_up_after, timing.max_hold) == (None, None)


@pytest.mark.parametrize("value", BAD_NUMBERS, ids=lambda value: str(type(value).__name__))
@pytest.mark.parametrize("field", ["ttl", "beat_every", "pause_after", "margin", "give_up_after", "max_hold"])
def test_nonsense_is_refused_by_name(field: str, value: Any) -> None:
    """C52: zero, negative, endless, not a number, a truth value or text: each is a ConfigError that names the field."""
    with pytest.raises(ConfigError) as caught:
        Timing(**{field: value})
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}=")
    assert "expected seconds from" in str(caught.value)


@pytest.mark.parametrize("ttl", [0.5, 0.999, TTL_MAX_S + 1, 86_400_000])
def test_a_ttl_outside_its_bounds_is_refused(ttl: float) -> None:
    """Less than etcd can count, or more than a day (milliseconds taken for seconds), is a mistake."""
    with pytest.raises(ConfigError) as caught:
        Timing(ttl=ttl)
    assert caught.value.value == ttl


@pytest.mark.parametrize("ttl", [1, 1.0, 1.5, 5, 10, 60, 3600, 86_400])
def test_every_reasonable_ttl_works_with_its_defaults(ttl: float) -> None:
    """The shares hold their relations at both ends of the range."""
    timing = Timing(ttl=ttl)
    assert 2 * timing.beat_s <= timing.pause_s < timing.ttl - timing.margin_s
    assert timing.authority_s == timing.ttl - timing.margin_s


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"beat_every": 3.0}, ("beat_every=3", "pause_after=5", "at most 2.5")),
        ({"beat_every": 2.0, "pause_after": 3.0}, ("beat_every=2", "pause_after=3", "at most 1.5")),
        ({"pause_after": 9.7}, ("pause_after=9.7", "less than ttl - margin = 10 - 0.3", "9.7")),
        ({"margin": 5.0}, ("pause_after=5", "ttl - margin = 10 - 5")),
        ({"margin": 10.0}, ("pause_after=5", "ttl - margin = 10 - 10")),
    ],
)
def test_a_wrong_relation_names_both_values(fields: dict[str, float], names: tuple[str, ...]) -> None:
    """Two beats fit before the pause, and the pause comes before ttl - margin; else both values are told."""
    with pytest.raises(ConfigError) as caught:
        Timing(**fields)
    for part in names:
        assert part in str(caught.value)
    assert caught.value.field in ("beat_every", "pause_after")


def test_the_relations_may_just_hold() -> None:
    """Exactly two beats before the pause are enough; the pause may come any time before ttl - margin."""
    assert Timing(ttl=10.0, beat_every=2.5).beat_s == 2.5
    assert Timing(ttl=10.0, pause_after=9.69).pause_s == 9.69


@pytest.mark.parametrize(("ttl", "asked"), [(1.0, 1), (1.2, 2), (10, 10), (9.999, 10)])
def test_a_fraction_is_rounded_up_when_it_is_asked_for(ttl: float, asked: int) -> None:
    """Servers count whole seconds; asking for less would let the lease expire before its time."""
    assert Timing(ttl=ttl).ask_s == asked


def test_a_larger_grant_rescales_what_was_not_set() -> None:
    """C39: the granted TTL is used for beats, pause and margin; explicit durations stay."""
    granted = Timing(ttl=2.0, margin=0.5, give_up_after=7.0).granted(8)
    assert (granted.ttl, granted.beat_s, granted.pause_s, granted.margin_s) == (8.0, 1.6, 4.0, 0.5)
    assert granted.give_up_after == 7.0


def test_a_longer_grant_breaks_no_relation() -> None:
    """C39: a pause that was set stays, and the beats that were not set fit before it, however long the TTL becomes."""
    assert Timing(ttl=10.0, pause_after=3.0).beat_s == 1.5
    granted = Timing(ttl=3.0, pause_after=2.0).granted(60)
    assert (granted.ttl, granted.pause_s, granted.beat_s) == (60.0, 2.0, 1.0)


@pytest.mark.parametrize("absurd", [9_223_372_036, 2**63 - 1, 10**400, int(SERVER_MINIMUM_MAX_S) + 1])
def test_an_absurd_grant_is_not_believed(absurd: int) -> None:
    """C24: a TTL that no server grants in earnest counts as the one that was asked for."""
    assert Timing(ttl=10.0).granted(absurd).ttl == 10.0
    assert Timing(ttl=9.5).granted(absurd).ttl == 10.0


def test_what_was_asked_for_is_believed_however_long() -> None:
    """A grant of exactly the long TTL that was asked for is no absurdity."""
    timing = Timing(ttl=3600.0)
    assert timing.granted(3600) is timing
    assert timing.granted(1800).ttl == 1800.0


def test_a_shorter_grant_that_explicit_durations_do_not_fit_is_refused() -> None:
    """Explicit durations are never bent: a reply that they do not fit is told."""
    with pytest.raises(ConfigError):
        Timing(ttl=30.0, pause_after=20.0).granted(10)


def test_a_beat_is_late_after_half_an_interval() -> None:
    """With the default shares four endpoints can be tried before work pauses."""
    timing = Timing(ttl=10.0)
    assert timing.beat_late_s == 1.0
    assert timing.beat_s + 3 * timing.beat_late_s <= timing.pause_s


def test_least_and_most_are_what_the_documentation_says() -> None:
    """1 second to a day."""
    assert (TTL_MIN_S, TTL_MAX_S) == (1.0, 86_400.0)


def test_equal_timings_are_equal() -> None:
    """A session is shared by all claims with an equal Timing, so 10 and 10.0 are one."""
    assert Timing(ttl=10) == Timing(ttl=10.0)
    assert hash(Timing(ttl=10)) == hash(Timing(ttl=10.0))
    assert Timing(ttl=10) != Timing(ttl=10, max_hold=5.0)
