"""Text for people: nothing that was stored can act on a terminal, and durations read well."""

from __future__ import annotations

import math
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.cli.text import (
    brief,
    clip,
    last_said,
    lease_hex,
    moment,
    one_line,
    plural,
    safe,
    short_duration,
    time_of_day,
)


@given(st.text(st.characters()))
def test_safe_text_has_no_character_that_acts(text: str) -> None:
    """Whatever text comes in, no control, direction, surrogate or separator character comes out."""
    shown = safe(text)
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    shown.encode()


def test_safe_text_leaves_writing_alone() -> None:
    """Letters of any script stay as they are, and an escape says what was there."""
    assert safe("Größe 日本 [bold]x[/bold]") == "Größe 日本 [bold]x[/bold]"
    assert safe("\x1b[31m\x9b\u202e\ud800\U000e0041") == r"\x1b[31m\x9b\u202e\ud800\U000e0041"


@given(st.text(), st.integers(2, 40))
def test_clipped_text_has_its_length_at_most(text: str, most: int) -> None:
    """Clipping bounds what is shown, escapes included."""
    assert len(clip(text, most)) <= most


def test_one_line_is_one_line() -> None:
    """Line breaks of every kind become spaces."""
    assert one_line("a\n\tb\r\n c\u2028d") == "a b c d"


def test_a_long_text_is_made_brief() -> None:
    """One line, of so many characters at most."""
    assert brief("a\nb") == "a b"
    assert brief("x" * 9000) == "x" * 499 + "…"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            '{"msg":"starting"}\n{"level":"fatal","msg":"discovery failed","error":"no space"}\n',
            "discovery failed: no space",
        ),
        ('{"msg":"closed"}', "closed"),
        ("first\nlast\n", "last"),
        ("[1]", "[1]"),
        ("{}", "{}"),
        ("", ""),
    ],
)
def test_what_a_log_said_last(log: str, said: str) -> None:
    """Of etcd's JSON the words; of anything else the last line."""
    assert last_said(log) == said


def test_a_time_of_day_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the time zone of the machine is, lines of several machines fit together."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert time_of_day(12 * 3600 + 5) == "12:00:05Z"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.9, "0s"),
        (59, "59s"),
        (60, "1m00s"),
        (3599.9, "59m59s"),
        (7620, "2h07m"),
        (86_400 * 4 + 3600 * 11, "4d11h"),
        (86_400 * 100, "100d"),
        (-1, "unknown"),
        (math.nan, "unknown"),
        (math.inf, "unknown"),
    ],
)
def test_durations_read_well(seconds: float, shown: str) -> None:
    """A duration shows its two largest units, and what is none shows as unknown."""
    assert short_duration(seconds) == shown


@pytest.mark.parametrize("wall_s", [None, math.nan, math.inf, 1e308, -1e308])
def test_what_is_no_time_has_no_moment(wall_s: float | None) -> None:
    """A stored time that cannot be one is not shown, and never an error."""
    assert moment(wall_s) is None


def test_moments_are_utc() -> None:
    """Times are shown in UTC with milliseconds."""
    assert moment(1_772_366_400.25) == "2026-03-01T12:00:00.250Z"


def test_leases_show_as_in_etcdctl() -> None:
    """A lease id that is negative on the wire shows as etcdctl prints it."""
    assert lease_hex(255) == "ff"
    assert lease_hex(-1) == "f" * 16


def test_plurals() -> None:
    """One claim, two claims."""
    assert (plural(1, "claim"), plural(2, "claim")) == ("1 claim", "2 claims")
