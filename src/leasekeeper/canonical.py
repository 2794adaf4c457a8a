"""One text for one value: canonical JSON (RFC 8785), so that a digest means the same on both sides of a wire.

Two programs that agree on a value, in whatever language, get the same bytes: object keys sorted by UTF-16 code units, no white
space, strings escaped only where they must be, numbers as ECMAScript prints them (so 1 and 1.0 are one value). What not every
reader would understand alike is refused rather than bent.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from leasekeeper.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BYTES_MAX", "DEPTH_MAX", "TooMuch", "canonical"]

BYTES_MAX = 64 * 1024
DEPTH_MAX = 32
# Beyond it a double, which is what many JSON readers make of a number, no longer tells whole numbers apart.
NUMBER_MAX = 2**53 - 1
# Python writes so many digits wherever its own limit may be set to (sys.int_info.str_digits_check_threshold).
DIGITS_MAX = 640
BIG_LIMIT = 10**DIGITS_MAX
# In a complaint so much of a key is shown.
KEY_SHOWN_MAX = 40

EXPECTED = "text, numbers, True, False, None, lists, and dicts whose keys are text"

Big = Literal["refuse", "text"]

NULL = b"null"
CONTAINERS = frozenset((dict, list, tuple))
_ENCODER = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False
)


class TooMuch(ConfigError):
    """A value takes more bytes of JSON than it may."""


def canonical(
    value: object,
    what: str = "value",
    *,
    big: Big = "refuse",
    most: int = BYTES_MAX,
    depth_max: int = DEPTH_MAX,
) -> bytes:
    """The canonical JSON of ``value``, as UTF-8.

    Takes None, bool, str, int and float up to 2**53 - 1, list, tuple (an array like a list) and dict with text as keys.
    Errors never show the value: it may be a secret. Nothing may change it meanwhile.

    Args:
        value: what to write.
        what: what it is called in errors.
        big: what becomes of whole numbers beyond 2**53 - 1, in either direction: ``refuse``, or ``text`` for their decimal digits
            as a string, at most 640. They then read back as text.
        most: bytes of JSON at most.
        depth_max: levels of lists and dicts at most.

    Raises:
        ConfigError: a part of it cannot be written; ``field`` is the path to that part.
    """
    if value is None and most >= len(NULL):
        return NULL  # what most steps come to
    written = _at_once(value, most, depth_max)
    return _piecewise(value, what, big, most, depth_max) if written is None else written


# ---------------------------------------------------------------- at once


def _at_once(value: object, most: int, depth_max: int) -> bytes | None:
    """What json's own encoder, which is written in C, spells just as canonical JSON does; None: not surely such a value."""
    if not _is_plain(value, most, depth_max):
        return None
    try:
        written = _ENCODER.encode(value).encode()
    except UnicodeEncodeError:
        return None  # a lone surrogate, and still to be found
    return written if len(written) <= most else None


def _is_plain(value: object, most: int, depth_max: int) -> bool:
    """Whether it holds nothing that needs a look of our own, and is bounded.

    Not: floats, which ECMAScript prints in another way; large numbers; keys beyond U+FFFF, whose order by UTF-16 is another than
    that by code point; keys that are no text, which json would make text; subclasses, whose methods might tell otherwise.
    """
    left: float = most
    level: list[object] = [value]
    for levels in range(depth_max, -1, -1):
        below: list[object] = []
        for each in level:
            kind = type(each)
            if kind is str:
                left -= len(each)  # type: ignore[arg-type]
            elif kind in CONTAINERS:
                # Counted before it is taken: lists that hold one list many times over are larger than they look.
                left -= _size(each) if levels else math.inf
                if left < 0:
                    return False
                below += each.values() if kind is dict else each  # type: ignore[attr-defined, arg-type]
            elif kind is int:
                if not -NUMBER_MAX <= each <= NUMBER_MAX:  # type: ignore[operator]
                    return False
            elif kind is not bool and each is not None:
                return False
        if left < 0:
            return False
        level = below
    return True


def _size(container: Any) -> float:
    """How many bytes of JSON a container has at least, its values' own apart; without end if a key needs a look of our own."""
    if type(container) is dict and container:
        if set(map(type, container)) != {str}:
            return math.inf
        keys = "".join(container)
        if not keys.isascii() and max(keys) > "\uffff":
            return math.inf
        return len(keys) + len(container)
    return len(container)


# ---------------------------------------------------------------- piece by piece


def _piecewise(value: object, what: str, big: Big, most: int, depth_max: int) -> bytes:
    """What canonical promises, errors and all; about ten times as slow."""
    pieces = []
    left = most
    for piece in _Spelling(big, depth_max).of(value, what, depth_max):
        # Counted on the way: a few lists that hold each other would fill the memory before they are one text.
        left -= len(piece)
        if left < 0:
            raise TooMuch(field=what, value="more than that", expected=f"at most {most} bytes of JSON")
        pieces.append(piece)
    return b"".join(pieces)


class _Spelling:
    """How values are written, piece by piece; each with the path to it and the levels that are left."""

    __slots__ = ("_big", "_depth_max")

    def __init__(self, big: Big, depth_max: int) -> None:
        self._big = big
        self._depth_max = depth_max

    def of(self, value: object, path: str, levels: int) -> Iterator[bytes]:
        match value:
            case None:
                yield b"null"
            case bool():
                yield b"true" if value else b"false"
            case str():
                yield _text(value, path)
            case int() | float():
                yield self._number(value, path)
            case list() | tuple() | dict() if levels == 0:
                raise ConfigError(field=path, value=type(value).__name__, expected=f"at most {self._depth_max} levels")
            case list() | tuple():
                yield from self._array(value, path, levels - 1)
            case dict():
                yield from self._object(value, path, levels - 1)
            case _:
                raise ConfigError(field=path, value=type(value).__name__, expected=EXPECTED)

    def _array(self, values: list[object] | tuple[object, ...], path: str, levels: int) -> Iterator[bytes]:
        yield b"["
        for index, value in enumerate(values):
            if index:
                yield b","
            yield from self.of(value, f"{path}[{index}]", levels)
        yield b"]"

    def _object(self, members: dict[object, object], path: str, levels: int) -> Iterator[bytes]:
        keys = []
        for key in members:
            if not isinstance(key, str):
                raise ConfigError(field=path, value=f"a key of type {type(key).__name__}", expected=EXPECTED)
            keys.append((_text(key, f"{path}, a key"), key))
        keys.sort(key=lambda pair: pair[1].encode("utf-16-be"))
        yield b"{"
        for index, (written, key) in enumerate(keys):
            yield (b"," if index else b"") + written + b":"
            yield from self.of(members[key], f"{path}.{key[:KEY_SHOWN_MAX]}", levels)
        yield b"}"

    def _number(self, value: float, path: str) -> bytes:
        if abs(value) <= NUMBER_MAX:
            return (int.__repr__(value) if isinstance(value, int) else _ecmascript(value)).encode()
        if self._big == "text" and isinstance(value, int):
            if -BIG_LIMIT < value < BIG_LIMIT:
                return f'"{int.__repr__(value)}"'.encode()
            raise ConfigError(field=path, value="a longer int", expected=f"at most {DIGITS_MAX} digits")
        expected = f"a number from -{NUMBER_MAX} to {NUMBER_MAX}; hand over larger ones as text"
        raise ConfigError(field=path, value=f"another {type(value).__name__}", expected=expected)


def _text(value: str, path: str) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ConfigError(field=path, value="a lone surrogate", expected="text that UTF-8 can carry") from None


def _ecmascript(value: float) -> str:
    """A double of this size as ECMAScript's Number::toString writes it (ECMA-262, 6.1.6.1.20)."""
    if value == 0:
        return "0"
    # Python prints the fewest digits that read back as the same double, as ECMAScript does; only the layout differs.
    # normalize() would round to the caller's decimal context.
    sign, digits, exponent = Decimal(float.__repr__(value)).as_tuple()
    assert isinstance(exponent, int)  # the others stand for infinities and NaN
    padded = "".join(map(str, digits)).lstrip("0")
    text = padded.rstrip("0")
    point = len(padded) + exponent
    if len(text) <= point:
        text += "0" * (point - len(text))
    elif point > 0:
        text = f"{text[:point]}.{text[point:]}"
    elif point > -6:
        text = f"0.{'0' * -point}{text}"
    else:
        fraction = f".{text[1:]}" if len(text) > 1 else ""
        text = f"{text[0]}{fraction}e{point - 1}"
    return f"-{text}" if sign else text
