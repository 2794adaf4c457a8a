"""Which types a state may have, and the shape of each.

A state is a dataclass, or ``dict`` for any JSON object. Its fields are text, int, float, bool, None, an Enum of text or whole
numbers, ``T | None``, ``list[T]``, ``tuple[T, ...]``, ``dict[str, T]``, other dataclasses, or ``Any`` for any JSON. What is
outside of that is refused when the type is first used, not when such a value first turns up.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable
from enum import Enum, Flag
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from leasekeeper.errors import ConfigError, shown
from leasekeeper.protocol.shape import Anything, Choice, Exactly, Items, Maybe, Real, Record, Shape, Table, Whole

__all__ = ["check_fields", "shape_of"]

FIELDS = (
    "str, int, float, bool, None, Any, an Enum of text or whole numbers, a dataclass, or list, tuple[T, ...], dict[str, T] and"
    " T | None of these"
)

SIMPLE: dict[Any, Shape] = {
    str: Exactly(str),
    bool: Exactly(bool),
    type(None): Exactly(type(None)),
    int: Whole(),
    float: Real(),
    Any: Anything(),
    list: Items(Anything(), list),
    dict: Table(Anything()),
}


def shape_of(hint: Any, where: str = "state") -> Shape:
    """The shape of a type; ConfigError for one that states cannot have, naming ``where`` it stands."""
    if hint in SIMPLE:
        return SIMPLE[hint]
    if isinstance(hint, type) and not get_args(hint):
        if dataclasses.is_dataclass(hint):
            return Record(hint, _fields)
        if issubclass(hint, Enum) and _is_choice(hint):
            return Choice(hint)
    return _composed(hint, where)


def _is_choice(kind: type[Enum]) -> bool:
    """Whether every value is one of the members: flags can be combined."""
    return not issubclass(kind, Flag) and {type(member.value) for member in kind} <= {str, int}


def _composed(hint: Any, where: str) -> Shape:
    args, origin = get_args(hint), get_origin(hint)
    if origin in (list, dict) and not args:
        return SIMPLE[origin]
    match origin:
        case _ if origin in (Union, types.UnionType) and len(args) == 2 and type(None) in args:
            return Maybe(shape_of(args[0] if args[1] is type(None) else args[1], where))
        case _ if origin is list:
            return Items(shape_of(args[0], where), list)
        case _ if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
            return Items(shape_of(args[0], where), tuple)
        case _ if origin is dict and args[0] is str:
            return Table(shape_of(args[1], where))
    raise ConfigError(field=where, value=getattr(hint, "__name__", hint), expected=FIELDS)


@lru_cache(maxsize=1024)
def _fields(kind: type) -> dict[str, Shape]:
    """The fields of a dataclass; ConfigError for what could not be read back."""
    hints = _hints(kind)
    stored = dataclasses.fields(kind)
    for name, hint in hints.items():
        if isinstance(hint, dataclasses.InitVar):
            raise ConfigError(field=f"{kind.__name__}.{name}", value="InitVar", expected="a field, which is kept")
    for one in stored:
        if not one.init:
            raise ConfigError(
                field=f"{kind.__name__}.{one.name}",
                value="field(init=False)",
                expected="a field that __init__ takes; make it a property if it follows from the others",
            )
    return {one.name: shape_of(hints[one.name], f"{kind.__name__}.{one.name}") for one in stored}


def _hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except Exception as error:
        raise ConfigError(
            field=kind.__name__,
            value=shown(error),
            expected="types that are defined at the top of a module, and not only under TYPE_CHECKING",
        ) from error


@lru_cache(maxsize=1024)
def check_fields(kind: type) -> None:
    """ConfigError unless every field of a state type, and of the dataclasses in it, can be written."""
    waiting, seen = [kind], set()
    while waiting:
        one = waiting.pop()
        if one not in seen and dataclasses.is_dataclass(one):
            seen.add(one)
            _fields(one)
            waiting += _types_in(dataclasses.fields(one), _hints(one))


def _types_in(fields: Iterable[dataclasses.Field[Any]], hints: dict[str, Any]) -> list[type]:
    waiting, found = [hints[one.name] for one in fields], []
    while waiting:
        hint = waiting.pop()
        found += [hint] if isinstance(hint, type) and not get_args(hint) else []
        waiting += get_args(hint)
    return found
