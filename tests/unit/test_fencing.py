"""Tokens: made of epoch and revision, printed and parsed, refused when they cannot be one."""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper.errors import ConfigError
from leasekeeper.fencing import (
    EPOCH_MAX,
    REVISION_MAX,
    TOKEN_MAX,
    Admitted,
    admits,
    format_token,
    make_token,
    parse_token,
    split_token,
)


def test_with_epoch_zero_a_token_is_the_create_revision() -> None:
    """As long as nothing was ever restored, an observer needs no arithmetic."""
    assert make_token(0, 42) == 42


def test_the_parts_fill_sixty_three_bits() -> None:
    """A token is a positive int64: 44 bits of revision, 19 of epoch, and no more."""
    assert make_token(EPOCH_MAX, REVISION_MAX) == TOKEN_MAX == 2**63 - 1
    assert make_token(1, 1) == 2**44 + 1
    assert split_token(TOKEN_MAX) == (EPOCH_MAX, REVISION_MAX)


@pytest.mark.parametrize(
    ("epoch", "revision", "field"),
    [
        (-1, 1, "epoch"),
        (EPOCH_MAX + 1, 1, "epoch"),
        (0, 0, "create_revision"),
        (0, -1, "create_revision"),
        (0, REVISION_MAX + 1, "create_revision"),
    ],
)
def test_a_part_out_of_range_is_refused(epoch: int, revision: int, field: str) -> None:
    """No part ever spills over into the other."""
    with pytest.raises(ConfigError) as caught:
        make_token(epoch, revision)
    assert caught.value.field == field


def test_text_has_nineteen_digits() -> None:
    """Zero-padded, so that text compares as the numbers do, up to the largest token."""
    assert format_token(42) == "0000000000000000042"
    assert format_token(TOKEN_MAX) == "9223372036854775807"
    assert len(format_token(1)) == 19


@pytest.mark.parametrize("token", [2**53 - 1, 2**53 + 1, 2**53 + 2, 2**63 - 1, 1])
def test_no_token_is_rounded(token: int) -> None:
    """Around 2**53, where floating-point numbers lose integers, and at the very end, text gives back the same token."""
    assert parse_token(format_token(token)) == token
    assert parse_token(str(token)) == token
    assert parse_token(token) == token


@pytest.mark.parametrize(
    "bad",
    [
        "",
        " ",
        "1 ",
        "+1",
        "-1",
        "0",
        "00",
        "1.0",
        "1e3",
        "0x10",
        "1_000",
        "٣",  # a digit, but not an ASCII one
        "²",
        "99999999999999999999",
        "9223372036854775808",
        str(2**44),  # an epoch without a revision
        0,
        -1,
        2**63,
        2**44,
        1.0,
        True,
        None,
        b"1",
        [1],
    ],
    ids=repr,
)
def test_what_cannot_be_a_token_is_refused(bad: Any) -> None:
    """Text with signs, points, other scripts' digits, too many digits, or a number out of range: ConfigError, nothing else."""
    with pytest.raises(ConfigError) as caught:
        parse_token(bad)
    assert caught.value.field == "token"
    if isinstance(bad, int) and not isinstance(bad, bool):
        with pytest.raises(ConfigError):
            format_token(bad)


def test_the_first_writer_is_admitted() -> None:
    """A resource that has seen nobody accepts anybody."""
    assert admits(None, 1, "claim")


def test_the_same_owner_may_write_again_and_an_older_one_may_not() -> None:
    """The rule in one table: larger passes, equal passes only for the same claim, smaller never."""
    highest = Admitted(7, "mine", "holder")
    assert admits(highest, 8, "other")
    assert admits(highest, 7, "mine")
    assert not admits(highest, 7, "other")
    assert not admits(highest, 6, "mine")
