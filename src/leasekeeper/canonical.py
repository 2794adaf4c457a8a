"""One text for one value: canonical JSON (RFC 8785), so that a digest means the same on both sides of a wire.

Two programs that agree on a value, in whatever language, get the same bytes: object keys sorted by UTF-16 code units, no white
space, strings escaped only where they must be, numbers as ECMAScript prints them (so 1 and 1.0 are one value). What not every
reader would understand alike is refused rather than bent.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING

from leasekeeper.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BYTES_MAX", "DEPTH_MAX", "canonical"]

BYTES_MAX = 64 * 1024
DEPTH_MAX = 32
# Beyond it a double, which is what many JSON readers make of a number, no longer tells whole numbers apart.
NUMBER_MAX = 2**53 - 1
# In a complaint so much of a key is shown.
KEY_SHOWN_MAX = 40

EXPECTED = "text, numbers, True, False, None, lists, and dicts whose keys are text"


def canonical(value: object, what: str = "value", *, bytes_max: int = BYTES_MAX, depth_max: int = DEPTH_MAX) -> bytes:
    """The canonical JSON of ``value``, as UTF-8.

    Takes None, bool, str, int and float up to 2**53 - 1, list, tuple (an array like a list) and dict with text as keys; at most
    64 KiB of JSON and 32 levels. Errors never show the value: it may be a secret.

    Args:
        value: what to write.
        what: what it is called in errors.
        bytes_max: other bounds, for what was put together of several values.
        depth_max: the levels.

    Raises:
        ConfigError: a part of it cannot be written; ``field`` is the path to that part.
    """
    pieces = []
    left = bytes_max
    for piece in _written(value, what, depth_max):
        # Counted on the way: a few lists that hold each other would fill the memory before they are one text.
        left -= len(piece)
        if left < 0:
            raise ConfigError(field=what, value="more than that", expected=f"at most {bytes_max} bytes of JSON")
        pieces.append(piece)
    return b"".join(pieces)


def _written(value: object, path: str, levels: int) -> Iterator[bytes]:
    match value:
        case None:
            yield b"null"
        case bool():
            yield b"true" if value else b"false"
        case str():
            yield _text(value, path)
        case int() | float():
            yield _number(value, path)
        case list() | tuple() | dict() if levels == 0:
            raise ConfigError(field=path, value=type(value).__name__, expected=f"at most {DEPTH_MAX} levels")
        case list() | tuple():
            yield from _array(value, path, levels - 1)
        case dict():
            yield from _object(value, path, levels - 1)
        case _:
            raise ConfigError(field=path, value=type(value).__name__, expected=EXPECTED)


def _array(values: list[object] | tuple[object, ...], path: str, levels: int) -> Iterator[bytes]:
    yield b"["
    for index, value in enumerate(values):
        if index:
            yield b","
        yield from _written(value, f"{path}[{index}]", levels)
    yield b"]"


def _object(members: dict[object, object], path: str, levels: int) -> Iterator[bytes]:
    keys = []
    for key in members:
        if not isinstance(key, str):
            raise ConfigError(field=path, value=f"a key of type {type(key).__name__}", expected=EXPECTED)
        keys.append((_text(key, f"{path}, a key"), key))
    keys.sort(key=lambda pair: pair[1].encode("utf-16-be"))
    yield b"{"
    for index, (written, key) in enumerate(keys):
        yield (b"," if index else b"") + written + b":"
        yield from _written(members[key], f"{path}.{key[:KEY_SHOWN_MAX]}", levels)
    yield b"}"


def _text(value: str, path: str) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ConfigError(field=path, value="a lone surrogate", expected="text that UTF-8 can carry") from None


def _number(value: float, path: str) -> bytes:
    if not abs(value) <= NUMBER_MAX:
        expected = f"a number from -{NUMBER_MAX} to {NUMBER_MAX}; hand over larger ones as text"
        raise ConfigError(field=path, value=f"another {type(value).__name__}", expected=expected)
    return (int.__repr__(value) if isinstance(value, int) else _ecmascript(value)).encode()


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
