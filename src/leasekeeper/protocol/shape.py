"""Shapes: how each kind of value in a state is written as JSON data and read back, strictly in both directions.

What is read is exactly what was written, or a Misfit that names the part: no field may be missing, also none that has a default;
none may be there that the type does not have; and 1, 1.0, True and "1" are four different things. Numbers that many JSON
readers would round, beyond 2**53 - 1, are written as text where the type says int or float, and refused where it says Any.
The order of a dict's keys is not kept: they are stored sorted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from leasekeeper.errors import shown

__all__ = [
    "Anything",
    "Choice",
    "Exactly",
    "Items",
    "Maybe",
    "Misfit",
    "Real",
    "Record",
    "Shape",
    "Table",
    "Walk",
    "Whole",
    "plain",
]

NUMBER_MAX = 2**53 - 1
# Whole numbers beyond NUMBER_MAX as they are written, of 100 digits at most.
LARGE = re.compile(r"-?[1-9][0-9]{15,99}")
PARTS_MAX = 500_000
LEVELS_MAX = 32
# In a complaint so much of a key is shown.
KEY_SHOWN_MAX = 40


class Misfit(ValueError):
    """A value is not of its shape: ``path`` names the part, ``why`` says what is wrong. Neither shows the value."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


class Walk:
    """One way through a value, with a bound: lists that hold each other would fill the memory long before they are text.

    ``lenient``: fields that the type does not have are passed over, for data of a newer version that says this one can read it.
    """

    __slots__ = ("_left", "lenient")

    def __init__(self, *, lenient: bool = False) -> None:
        self.lenient = lenient
        self._left = PARTS_MAX

    def part(self, path: str, level: int) -> None:
        """Count one part."""
        self._left -= 1
        if self._left < 0:
            raise Misfit(path, f"the whole has more than {PARTS_MAX} parts")
        if level > LEVELS_MAX:
            raise Misfit(path, f"more than {LEVELS_MAX} levels")


class Shape(Protocol):
    """One type of values."""

    def dump(self, value: Any, path: str, walk: Walk, level: int) -> Any:
        """The JSON data of a value; Misfit if it is not of this type."""

    def load(self, data: Any, path: str, walk: Walk, level: int) -> Any:
        """The value of JSON data; Misfit if it is not what `dump` writes."""


def _expected(what: str, value: object, path: str) -> Misfit:
    return Misfit(path, f"expected {what}, found {type(value).__name__}")


def plain(value: Any, path: str, walk: Walk, level: int = 0) -> Any:
    """A copy of any JSON value, tuples as lists; Misfit for what is none."""
    walk.part(path, level)
    match value:
        case None | bool() | str() | float() if type(value) in (type(None), bool, str, float):
            return value
        case int() if type(value) is int:
            if abs(value) > NUMBER_MAX:
                raise Misfit(
                    path, f"a number beyond {NUMBER_MAX}: give it a field of type int, or hand it over as text"
                )
            return value
        case list() | tuple():
            return [plain(one, f"{path}[{index}]", walk, level + 1) for index, one in enumerate(value)]
        case dict():
            return {key: plain(one, inner, walk, level + 1) for key, inner, one in _members(value, path)}
    raise _expected("JSON: text, numbers, True, False, None, lists, dicts", value, path)


def _members(value: dict[Any, Any], path: str) -> Iterator[tuple[str, str, Any]]:
    for key, one in value.items():
        if type(key) is not str:
            raise Misfit(path, f"a key of type {type(key).__name__}, where all keys are text")
        yield key, f"{path}.{key[:KEY_SHOWN_MAX]}", one


@dataclass(frozen=True, slots=True)
class Anything:
    """Any JSON."""

    def dump(self, value: Any, path: str, walk: Walk, level: int) -> Any:
        """A copy."""
        return plain(value, path, walk, level)

    def load(self, data: Any, path: str, walk: Walk, level: int) -> Any:
        """A copy."""
        return plain(data, path, walk, level)


@dataclass(frozen=True, slots=True)
class Exactly:
    """Text, a bool or None: that very type, no subclass, which would come back as another."""

    kind: type

    def dump(self, value: Any, path: str, walk: Walk, level: int) -> Any:
        """The value itself."""
        walk.part(path, level)
        if type(value) is not self.kind:
            raise _expected(self.kind.__name__, value, path)
        return value

    def load(self, data: Any, path: str, walk: Walk, level: int) -> Any:
        """The value itself."""
        return self.dump(data, path, walk, level)


@dataclass(frozen=True, slots=True)
class Whole:
    """An int; a large one is text in JSON."""

    def dump(self, value: Any, path: str, walk: Walk, level: int) -> Any:
        """A number, or text."""
        walk.part(path, level)
        if type(value) is not int:
            raise _expected("int", value, path)
        if abs(value) <= NUMBER_MAX:
            return value
        if value.bit_length() > 400 or not LARGE.fullmatch(str(value)):
            raise Misfit(path, "a whole number of more than 100 digits")
        return str(value)

    def load(self, data: Any, path: str, walk: Walk, level: int) -> Any:
        """From a number, or text."""
        walk.part(path, level)
        if type(data) is int and abs(data) <= NUMBER_MAX:
            return data
        if type(data) is str and LARGE.fullmatch(data) and abs(int(data)) > NUMBER_MAX:
            return int(data)
        raise _expected("int", data, path)


@dataclass(frozen=True, slots=True)
class Real:
    """A finite float; a large one is text in JSON, and a whole one looks like an int there."""

    def dump(self, value: Any, path: str, walk: Walk, level: int) -> Any:
        """A number, or text."""
        walk.part(path, level)
        if type(value) not in (int, float) or (type(value) is int and abs(value) > NUMBER_MAX):
            raise _expected("float", value, path)
        if not math.isfinite(value):
            raise Misfit(path, "a float that is no number, or infinite")
        return float(value) if abs(value) <= NUMBER_MAX else repr(value)

    def load(self, data: Any, path: str, walk: Walk, level: int) -> Any:
        """From a number, or text."""
        walk.part(path, level)
        if type(data) in (int, float) and abs(data) <= NUMBER_MAX:
            return float(data)
        if type(data) is str and _is_large_float(data):
            return float(data)
        raise _expected("float", data, path)


def _is_large_float(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isfinite(value) and abs(value) > NUMBER_MAX and repr(value) == text


@dataclass(frozen=True, slots=True)
class Choice:
    """A member of an Enum, written as its value."""

    kind: type[Enum]

    def dump(self, value: Any, path: str, walk: Walk, level: int) -> Any:
        """The member's value."""
        walk.part(path, level)
        if not isinstance(value, self.kind) or not self._is_value(value.value):
            raise _expected(self.kind.__name__, value, path)
        return value.value

    def load(self, data: Any, path: str, walk: Walk, level: int) -> Any:
        """The member of that value."""
        walk.part(path, level)
        if not self._is_value(data):
            raise Misfit(path, f"no member of {self.kind.__name__} has this value")
        return self.kind(data)

    def _is_value(self, data: object) -> bool:
        # True equals 1, so the types are compared, too.
        return any(type(data) is type(member.value) and data == member.value for member in self.kind)


@dataclass(frozen=True, slots=True)
class Maybe:
    """A value or None."""

    of: Shape

    def dump(self, value: Any, path: str, walk: Walk, level: int) -> Any:
        """Null for None."""
        return None if value is None else self.of.dump(value, path, walk, level)

    def load(self, data: Any, path: str, walk: Walk, level: int) -> Any:
        """None for null."""
        return None if data is None else self.of.load(data, path, walk, level)


@dataclass(frozen=True, slots=True)
class Items:
    """A list or a tuple of one kind of values."""

    of: Shape
    kind: type[list[Any] | tuple[Any, ...]]

    def dump(self, value: Any, path: str, walk: Walk, level: int) -> Any:
        """An array."""
        walk.part(path, level)
        if type(value) is not self.kind:
            raise _expected(self.kind.__name__, value, path)
        return [self.of.dump(one, f"{path}[{index}]", walk, level + 1) for index, one in enumerate(value)]

    def load(self, data: Any, path: str, walk: Walk, level: int) -> Any:
        """From an array."""
        walk.part(path, level)
        if type(data) is not list:
            raise _expected("a list", data, path)
        return self.kind(self.of.load(one, f"{path}[{index}]", walk, level + 1) for index, one in enumerate(data))


@dataclass(frozen=True, slots=True)
class Table:
    """A dict with text as keys and one kind of values."""

    of: Shape

    def dump(self, value: Any, path: str, walk: Walk, level: int) -> Any:
        """An object."""
        walk.part(path, level)
        if type(value) is not dict:
            raise _expected("dict", value, path)
        return {key: self.of.dump(one, inner, walk, level + 1) for key, inner, one in _members(value, path)}

    def load(self, data: Any, path: str, walk: Walk, level: int) -> Any:
        """From an object."""
        walk.part(path, level)
        if type(data) is not dict:
            raise _expected("an object", data, path)
        return {key: self.of.load(one, inner, walk, level + 1) for key, inner, one in _members(data, path)}


@dataclass(frozen=True, slots=True)
class Record:
    """A dataclass, written as an object of all its fields, which are looked up when they are needed: it may hold its like."""

    kind: type
    fields_of: Callable[[type], Mapping[str, Shape]]

    def dump(self, value: Any, path: str, walk: Walk, level: int) -> Any:
        """An object."""
        walk.part(path, level)
        if type(value) is not self.kind:
            raise _expected(self.kind.__name__, value, path)
        return {
            name: shape.dump(getattr(value, name), f"{path}.{name}", walk, level + 1)
            for name, shape in self.fields_of(self.kind).items()
        }

    def load(self, data: Any, path: str, walk: Walk, level: int) -> Any:
        """From an object; what the class itself refuses is a Misfit, too."""
        walk.part(path, level)
        if type(data) is not dict:
            raise _expected("an object", data, path)
        fields = self.fields_of(self.kind)
        for name in fields:
            if name not in data:
                raise Misfit(f"{path}.{name}", "the field is missing")
        for name in data:
            if name not in fields and not walk.lenient:
                raise Misfit(f"{path}.{name[:KEY_SHOWN_MAX]}", f"{self.kind.__name__} has no such field")
        given = {name: shape.load(data[name], f"{path}.{name}", walk, level + 1) for name, shape in fields.items()}
        try:
            return self.kind(**given)
        except Exception as error:
            raise Misfit(path, f"{self.kind.__name__} refuses it: {shown(error)}") from error
