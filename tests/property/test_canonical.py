"""Canonical JSON has two writers, one fast and one thorough: no value may show which of them was at work."""

from __future__ import annotations

import json
from collections import OrderedDict
from enum import Enum, IntEnum
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from leasekeeper import canonical as module
from leasekeeper.canonical import DEPTH_MAX, NUMBER_MAX, Big, canonical
from leasekeeper.errors import ConfigError


class Colour(str, Enum):
    """A text by another name."""

    RED = "red"


class Level(IntEnum):
    """A number by another name."""

    HIGH = 3


class Hiding(dict[str, int]):
    """Tells its members otherwise than it holds them."""

    def items(self) -> Any:
        """Nothing of what is there."""
        return {}.items()


class Loud(str):
    """A text that spells itself otherwise."""

    __slots__ = ()

    def __len__(self) -> int:
        return 1

    def encode(self, *_: object) -> bytes:
        """Not what it holds."""
        return b"loud"


whole = st.integers(-NUMBER_MAX, NUMBER_MAX)
plain = st.recursive(
    st.none() | st.booleans() | whole | st.text(),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=25,
)
odd_text = st.text(
    st.characters(categories=None, codec=None) | st.sampled_from("\ud800\udfff\ue000\uffff\U0001f600\x7f\x00")
)
odd_leaf = (
    st.floats()
    | st.integers()
    | st.sampled_from([2**53, -(2**53), 10**639, 10**640, -(10**640)])
    | odd_text
    | st.sampled_from([Colour.RED, Level.HIGH, b"x", Hiding(a=1), OrderedDict(b=1, a=2), Loud("x"), object, {1, 2}])
)
odd_key = odd_text | st.integers() | st.booleans() | st.none() | st.floats() | st.just(Colour.RED) | st.just(Loud("k"))
odd = st.recursive(
    st.none() | st.booleans() | whole | odd_leaf,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(odd_key, inner, max_size=4)
    ),
    max_leaves=15,
)
bigs = st.sampled_from(["refuse", "text"])


def outcome(write: Any) -> tuple[str, object]:
    """The bytes, or all that an error tells."""
    try:
        return "bytes", write()
    except ConfigError as error:
        return "error", (str(error), error.field, error.value, error.expected)


def both(value: object, big: Big, most: int, depth_max: int) -> tuple[tuple[str, object], tuple[str, object]]:
    """What canonical makes of a value, and what the thorough writer alone does."""
    return (
        outcome(lambda: canonical(value, "v", big=big, most=most, depth_max=depth_max)),
        outcome(lambda: module._piecewise(value, "v", big, most, depth_max)),
    )


@given(value=plain)
@example(value={"\uffff": 1, "\ue000": 2, "": 3, "\x00": 4})
def test_the_fast_writer_writes_what_the_thorough_one_does(value: object) -> None:
    """Plain values go the fast way, and come out byte for byte as piece by piece; what is read back is the value."""
    thorough = module._piecewise(value, "v", "refuse", 10**6, DEPTH_MAX)
    fast = module._at_once(value, 10**6, DEPTH_MAX)
    assert fast == thorough or (fast is None and has_astral_key(value))
    assert json.loads(thorough) == as_json(value)


def has_astral_key(value: object) -> bool:
    """Whether the order of some keys needs a look."""
    if isinstance(value, dict):
        return any(max(key, default="") > "\uffff" or has_astral_key(inner) for key, inner in value.items())
    return isinstance(value, (list, tuple)) and any(map(has_astral_key, value))


def as_json(value: Any) -> Any:
    """A value as reading its JSON gives it: a tuple is a list."""
    if isinstance(value, dict):
        return {key: as_json(inner) for key, inner in value.items()}
    return [as_json(inner) for inner in value] if isinstance(value, (list, tuple)) else value


@given(value=odd, big=bigs, most=st.integers(0, 200), depth_max=st.integers(0, 5))
@example(value=[Hiding(a=1)], big="refuse", most=200, depth_max=5)
@example(value=Loud("x" * 300), big="refuse", most=10, depth_max=5)
@example(value={"\U0001f600": 1, "\ufb33": 2}, big="refuse", most=200, depth_max=5)
@example(value={"a": "\ud800", "b": 2**53}, big="refuse", most=200, depth_max=5)
@example(value=[[[]]], big="refuse", most=200, depth_max=2)
@example(value=[True, 1, 1.0], big="text", most=200, depth_max=1)
def test_no_value_shows_which_writer_was_at_work(value: object, big: Big, most: int, depth_max: int) -> None:
    """Whatever the value and the bounds are: the same bytes, or the same error with the same path."""
    fast, thorough = both(value, big, most, depth_max)
    assert fast == thorough


@given(value=plain, short=st.integers(0, 3))
def test_the_bounds_are_exact(value: object, short: int) -> None:
    """Exactly as many bytes and levels as a value has are enough, and one less is not, on either way."""
    written = canonical(value, most=10**6)
    most = len(written) - short
    fast, thorough = both(value, "refuse", most, DEPTH_MAX)
    assert fast == thorough
    assert (fast == ("bytes", written)) == (short == 0)


@given(number=st.integers(-(10**40), 10**40))
def test_big_numbers_are_text_when_that_is_asked_for(number: int) -> None:
    """Beyond 2**53 - 1 in either direction a whole number is a string of its digits, and within it is a number."""
    back = json.loads(canonical({"n": [number]}, big="text"))
    assert back == {"n": [number if abs(number) <= NUMBER_MAX else str(number)]}
