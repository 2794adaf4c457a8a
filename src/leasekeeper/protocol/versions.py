"""What a state type says of its versions, and the steps between them.

A class says it in its own body, by class attributes that are not fields; none is inherited::

    schema: ClassVar[str]       what it is called where it is stored; default: the class' name
    version: ClassVar[int]      counts from 1, and is raised with every change of the fields; default 1
    min_reader: ClassVar[int]   the oldest version of this class that can still read what this one writes; default: version
    oldest: ClassVar[int]       the oldest version that this one still reads; default 1

Each version from ``oldest`` on needs a step to the next one, or the class is refused when it is first used: a hole would show
only on the day when something old is read. A step is given data of its own, and what it returns is copied, so it can neither
change what is stored nor keep a hold on what is read.
"""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from leasekeeper.canonical import canonical
from leasekeeper.errors import ConfigError, shown
from leasekeeper.protocol.shape import Misfit, Walk, plain
from leasekeeper.protocol.state_types import check_fields
from leasekeeper.schema_errors import MigrationFailed, SchemaUnknown

__all__ = ["VERSION_MAX", "Declared", "Step", "declared", "is_declared", "register"]

Step = Callable[[dict[str, Any]], dict[str, Any]]

VERSION_MAX = 1000
SCHEMA_MAX = 100
WORDS = ("schema", "version", "min_reader", "oldest")
# Where the steps of a class are kept: on the class itself, so that they go when it goes.
STEPS = "__leasekeeper_steps__"


@dataclass(frozen=True, slots=True)
class Declared:
    """What a state type says of itself, checked."""

    kind: type
    schema: str
    version: int
    min_reader: int
    oldest: int
    steps: Mapping[tuple[int, int], Step]

    @property
    def last_step(self) -> str:
        """The name of the step that makes data of the present version; empty where there is none."""
        step = self.steps.get((self.version - 1, self.version))
        return "" if step is None else _name(step)

    def upgrade(self, data: dict[str, Any], version: int) -> dict[str, Any]:
        """Data of an older version, as of the present one.

        Raises:
            SchemaUnknown: the version is older than what this type still reads.
            MigrationFailed: a step fails, or what it returns is no JSON object.
        """
        if version < self.oldest:
            raise SchemaUnknown(schema=self.schema, version=version, oldest=self.oldest)
        for at in range(version, self.version):
            data = self._stepped(data, at, at + 1)
        return data

    def downgrade(self, data: dict[str, Any], version: int) -> dict[str, Any]:
        """Data of the present version, as of an older one; ConfigError where a step down is missing."""
        for at in range(self.version, version, -1):
            if (at, at - 1) not in self.steps:
                raise ConfigError(
                    field="write_version",
                    value=version,
                    expected=f"{at} or newer, or a {_written(self.kind, at, at - 1)}",
                )
            data = self._stepped(data, at, at - 1)
        return data

    def _stepped(self, data: dict[str, Any], at: int, to: int) -> dict[str, Any]:
        step = self.steps[at, to]
        own: dict[str, Any] = json.loads(canonical(data))
        try:
            made = step(own)
        except Exception as error:
            raise self._failed(at, to, shown(error)) from error
        if type(made) is not dict:
            raise self._failed(at, to, f"it returned {type(made).__name__}, not a dict")
        try:
            copied: dict[str, Any] = json.loads(canonical(plain(made, "result", Walk()), "result"))
        except (Misfit, ConfigError) as error:
            raise self._failed(at, to, str(error)) from None
        return copied

    def _failed(self, at: int, to: int, why: str) -> MigrationFailed:
        return MigrationFailed(schema=self.schema, version=at, to=to, function=_name(self.steps[at, to]), why=why)


def is_declared(kind: object) -> bool:
    """Whether it is a dataclass that says in its own body what its version or schema is."""
    return isinstance(kind, type) and dataclasses.is_dataclass(kind) and bool({"schema", "version"} & vars(kind).keys())


def declared(kind: type) -> Declared:
    """What a state type says of itself; ConfigError for what cannot be, with what is missing."""
    if kind is dict:
        return Declared(dict, "dict", 1, 1, 1, {})
    found = _spoken(kind)
    check_fields(kind)
    missing = [at for at in range(found.oldest, found.version) if (at, at + 1) not in found.steps]
    if missing:
        steps = ", ".join(_written(kind, at) for at in missing)
        expected = f"a step from every version since {found.oldest}: {steps}"
        raise ConfigError(field=f"{kind.__name__}.version", value=found.version, expected=expected)
    return found


def register(kind: type, step: Step, at: int, to: int) -> None:
    """Take a step from one version to the next, or to the one before, among those of a class; ConfigError for what cannot be."""
    found = _spoken(kind)
    if not callable(step):
        raise ConfigError(field="migration", value=step, expected="a function that takes a dict and returns one")
    for field, number in (("from_version", at), ("to_version", to)):
        if type(number) is not int or not 1 <= number <= found.version:
            raise ConfigError(
                field=field, value=number, expected=f"1 to {found.version}, the version of {kind.__name__}"
            )
    if abs(at - to) != 1:
        raise ConfigError(field="to_version", value=to, expected=f"{at + 1}, or {at - 1} for a step down")
    if (at, to) in found.steps:
        known = _name(found.steps[at, to])
        expected = f"one step from {at} to {to}; {known} is registered"
        raise ConfigError(field="migration", value=_name(step), expected=expected)
    setattr(kind, STEPS, {**found.steps, (at, to): step})


def _spoken(kind: Any) -> Declared:
    """The class attributes, each checked for itself."""
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        raise ConfigError(field="state", value=kind, expected="a dataclass, or dict")
    fields = {one.name for one in dataclasses.fields(kind)}
    for word in WORDS:
        where = f"{kind.__name__}.{word}"
        if word in fields:
            raise ConfigError(
                field=where, value="a field", expected=f"a class attribute ({word}: ClassVar), or another name"
            )
        if word not in vars(kind) and hasattr(kind, word):
            raise ConfigError(field=where, value="inherited", expected="to be said in the class itself")
    own = vars(kind)
    version = _number(kind, "version", own.get("version", 1), VERSION_MAX)
    return Declared(
        kind,
        _schema(kind, own.get("schema", kind.__name__)),
        version,
        _number(kind, "min_reader", own.get("min_reader", version), version),
        _number(kind, "oldest", own.get("oldest", 1), version),
        own.get(STEPS, {}),
    )


def _number(kind: type, word: str, value: object, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise ConfigError(field=f"{kind.__name__}.{word}", value=value, expected=f"a whole number from 1 to {most}")
    return value


def _schema(kind: type, value: object) -> str:
    # It is a directory's name, too, where fixtures are kept.
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= SCHEMA_MAX
        or value.startswith(".")
        or any(c in "/\\" or unicodedata.category(c)[0] in "CZ" for c in value)
    ):
        expected = f"1 to {SCHEMA_MAX} characters without white space and slashes, the first no dot"
        raise ConfigError(field=f"{kind.__name__}.schema", value=value, expected=expected)
    return value


def _written(kind: type, at: int, to: int | None = None) -> str:
    down = "" if to is None else f", to_version={to}"
    return f"@migration({kind.__name__}, from_version={at}{down})"


def _name(step: Step) -> str:
    return f"{getattr(step, '__module__', '?')}.{getattr(step, '__qualname__', type(step).__name__)}"
