"""Canonical JSON: one spelling for one value, the one of RFC 8785, or a clear no."""

from __future__ import annotations

import decimal
import itertools
import random
import shutil
import struct
import subprocess
from enum import Enum, IntEnum
from typing import Any

import pytest

from leasekeeper.canonical import BYTES_MAX, DEPTH_MAX, canonical
from leasekeeper.errors import ConfigError

# RFC 8785, appendix B: a double by its bits, and how it is written.
DOUBLES = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


class Colour(str, Enum):
    """A text by another name."""

    RED = "red"


class Level(IntEnum):
    """A number by another name."""

    HIGH = 3


@pytest.mark.parametrize(("bits", "written"), DOUBLES.items())
def test_doubles_are_written_as_ecmascript_does(bits: str, written: str) -> None:
    """Every double of RFC 8785's list that is not too large gets its spelling, whatever the caller's decimal context is."""
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    with decimal.localcontext() as context:
        context.prec = 3
        assert canonical(value) == written.encode()


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "null"),
        ([True, False, 1, 1.0, -7, 1.5, 100.0], "[true,false,1,1,-7,1.5,100]"),
        ((), "[]"),
        ({}, "{}"),
        ({"b": [{}], "a": {"d": 1, "c": ""}}, '{"a":{"c":"","d":1},"b":[{}]}'),
        (2**53 - 1, "9007199254740991"),
        ([Colour.RED, Level.HIGH], '["red",3]'),
        ("€$\x0f\nA'B\"\\/\x7f", '"€$\\u000f\\nA\'B\\"\\\\/\x7f"'),
    ],
)
def test_values_have_one_spelling(value: object, written: str) -> None:
    """No white space, sorted keys, only the escapes that must be, and 1.0 is 1."""
    assert canonical(value).decode() == written


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, whose JSON.stringify is the reference")
def test_random_doubles_are_written_as_javascript_writes_them() -> None:
    """20,000 doubles of random bits, those that are not too large, come out as JSON.stringify writes them."""
    bits = (random.getrandbits(64).to_bytes(8, "big") for _ in itertools.count())
    doubles = ((eight.hex(), struct.unpack(">d", eight)[0]) for eight in bits)
    drawn = list(itertools.islice(((text, value) for text, value in doubles if abs(value) <= 2**53 - 1), 20_000))
    script = (
        "for (const bits of require('fs').readFileSync(0, 'utf8').split('\\n'))"
        " console.log(JSON.stringify(Buffer.from(bits, 'hex').readDoubleBE(0)))"
    )
    given = "\n".join(text for text, _ in drawn)
    done = subprocess.run(["node", "-e", script], input=given, capture_output=True, text=True, check=True)
    theirs = done.stdout.split()
    different = [
        (value, their) for (_, value), their in zip(drawn, theirs, strict=True) if canonical(value).decode() != their
    ]
    assert different == []


def test_keys_are_sorted_by_utf_16() -> None:
    """The keys of RFC 8785's example come in its order: by UTF-16 code units, not by code points."""
    ordered = ["\r", "1", "\x80", "ö", "€", "\U0001f600", "\ufb33"]
    written = canonical(dict.fromkeys(sorted(ordered), 0)).decode()
    places = [written.index(key) for key in ordered[1:]]
    assert places == sorted(places)
    assert written.startswith('{"\\r":0,')


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"a": [0, {"b": object()}]}, "value.a[1].b"),
        ({"a": b"bytes"}, "value.a"),
        ({"a": {1, 2}}, "value.a"),
        ([{1: "a"}], "value[0]"),
        (2**53, "value"),
        (-(2**53), "value"),
        (2.0**53, "value"),
        (-1e300, "value"),
        (float("nan"), "value"),
        ([float("-inf")], "value[0]"),
        ("\ud800", "value"),
        ({"\ud800": 1}, "value, a key"),
    ],
)
def test_what_has_no_spelling_is_named(value: object, field: str) -> None:
    """What readers would not all understand alike is a ConfigError that says where it is."""
    with pytest.raises(ConfigError) as caught:
        canonical(value)
    assert caught.value.field == field


def test_errors_do_not_show_what_may_be_secret() -> None:
    """The value that cannot be written appears neither in the error's text nor in its attributes."""

    class Secret:
        def __repr__(self) -> str:
            return "hunter2"

    for value in (Secret(), b"hunter2", 2**60, "hunter2\ud800"):
        with pytest.raises(ConfigError) as caught:
            canonical({"password": value})
        assert "hunter2" not in f"{caught.value}{caught.value.value}"
        assert str(2**60) not in str(caught.value)


def nested(levels: int) -> list[Any]:
    """Lists in lists."""
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_depth_and_size_are_bounded() -> None:
    """32 levels and 64 KiB pass, one more does not; a value that contains itself, or doubles at each level, ends soon."""
    assert canonical(nested(DEPTH_MAX)) == b"[" * DEPTH_MAX + b"]" * DEPTH_MAX
    assert len(canonical("x" * (BYTES_MAX - 2))) == BYTES_MAX
    endless: list[Any] = []
    endless.append(endless)
    doubling: list[Any] = ["x"]
    for _ in range(DEPTH_MAX - 2):
        doubling = [doubling, doubling]
    for value in (nested(DEPTH_MAX + 1), "x" * (BYTES_MAX - 1), endless, doubling):
        with pytest.raises(ConfigError, match="at most"):
            canonical(value)


def test_other_bounds_may_be_given() -> None:
    """``most`` and ``depth_max`` take the place of the usual bounds, upward as well, and the error names them."""
    assert len(canonical("x" * BYTES_MAX, most=BYTES_MAX + 2)) == BYTES_MAX + 2
    assert canonical(nested(DEPTH_MAX + 1), depth_max=DEPTH_MAX + 1).count(b"[") == DEPTH_MAX + 1
    with pytest.raises(ConfigError, match="at most 9 bytes"):
        canonical("x" * 8, most=9)
    with pytest.raises(ConfigError, match="at most 2 levels"):
        canonical(nested(3), depth_max=2)


def test_what_looks_small_and_is_large_ends_soon() -> None:
    """One long text, or one list, that is held many times over is refused before it is written out."""
    text: list[Any] = ["x" * 1_000_000] * 60_000
    lists: list[Any] = [[0] * 60_000] * 60_000
    keys: list[Any] = [{"x" * 1_000_000: 0}] * 60_000
    for value in (text, lists, keys):
        with pytest.raises(ConfigError, match="at most 65536 bytes"):
            canonical(value)


def test_a_number_too_long_for_python_to_print_is_refused() -> None:
    """640 digits can be printed however Python is set up; one more is a ConfigError, and not Python's ValueError."""
    assert canonical(10**640 - 1, big="text") == b'"' + b"9" * 640 + b'"'
    for number in (10**640, -(10**640), 10**5000):
        with pytest.raises(ConfigError, match="at most 640 digits"):
            canonical(number, big="text")


def test_only_whole_numbers_become_text() -> None:
    """A large float stays refused: its digits would pretend to an exactness that it does not have."""
    with pytest.raises(ConfigError, match="another float"):
        canonical(1e300, big="text")
    assert (
        canonical([True, Level.HIGH, -(2**53), 2**53 - 1], big="text")
        == b'[true,3,"-9007199254740992",9007199254740991]'
    )
