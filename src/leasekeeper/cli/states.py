"""State types and examples of states, found by the name of the module that declares them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from leasekeeper.cli.text import brief
from leasekeeper.errors import ConfigError
from leasekeeper.protocol.versions import is_declared

__all__ = ["Found", "find_states"]

FIELD = "STATES"
EXPECTED = "MODULE or FILE.py, with :NAME,NAME for some of its state types and states"


@dataclass(slots=True)
class Found:
    """State types, and states by their names, in the order in which they were found."""

    kinds: list[type] = field(default_factory=list)
    examples: dict[str, Any] = field(default_factory=dict)

    def take(self, name: str, value: Any) -> None:
        """A type, or a state and its type."""
        kind = value if isinstance(value, type) else type(value)
        if kind not in self.kinds:
            self.kinds.append(kind)
        if value is not kind:
            if self.examples.get(name, value) is not value:
                raise ConfigError(
                    field=FIELD, value=name, expected="states with names that differ: they name the fixtures"
                )
            self.examples[name] = value


def find_states(named: Sequence[str]) -> Found:
    """What is meant by some arguments ``MODULE``, ``FILE.py``, ``MODULE:NAME,NAME``.

    Without names it is every dataclass of the module that says its ``version`` or ``schema``, and every state of such a type.

    Raises:
        ConfigError: the module cannot be loaded, there is no such name, or nothing in it is a state.
    """
    found = Found()
    for one in named:
        place, names = _parted(one)
        module = _loaded(place, one)
        for name, value in _chosen(module, names, one) if names else _declared_in(module):
            found.take(name, value)
    if not found.kinds:
        expected = "a module with a dataclass that declares its version or schema"
        raise ConfigError(field=FIELD, value=" ".join(named), expected=expected)
    return found


def _parted(named: str) -> tuple[str, list[str]]:
    place, colon, names = named.rpartition(":")
    # A drive letter's colon stands before a separator.
    if not colon or any(c in names for c in "/\\"):
        return named, []
    wanted = names.split(",")
    if not place or not all(wanted):
        raise ConfigError(field=FIELD, value=named, expected=EXPECTED)
    return place, wanted


def _loaded(place: str, named: str) -> ModuleType:
    try:
        if place.endswith(".py"):
            return _loaded_file(Path(place).resolve())
        if not all(part.isidentifier() for part in place.split(".")):
            raise ConfigError(field=FIELD, value=named, expected=EXPECTED)
        return importlib.import_module(place)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        why = brief(f"{type(error).__name__}: {error}")
        raise ConfigError(field=FIELD, value=named, expected=f"a module that can be loaded ({why})") from error


def _loaded_file(path: Path) -> ModuleType:
    # With its ending it can hide no module of that name, such as a json.py the standard library's.
    name = path.name
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    module = module_from_spec(spec)
    # Dataclasses look up their annotations there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _chosen(module: ModuleType, names: Sequence[str], named: str) -> Iterator[tuple[str, Any]]:
    for name in names:
        value = getattr(module, name, None)
        kind = value if isinstance(value, type) else type(value)
        if not hasattr(kind, "__dataclass_fields__"):
            raise ConfigError(field=FIELD, value=named, expected=f"a dataclass, or a state of one, called {name}")
        yield name, value


def _declared_in(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(module).items()):
        if not name.startswith("_") and is_declared(value if isinstance(value, type) else type(value)):
            yield name, value
