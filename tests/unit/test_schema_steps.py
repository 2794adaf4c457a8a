"""Versioned states: the steps between versions, and what a class declares of them; what fails is told and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from typing import Any, ClassVar

import pytest

from leasekeeper.canonical import BYTES_MAX
from leasekeeper.errors import ConfigError
from leasekeeper.protocol.schema import Envelope, decode, encode, seal_envelope
from leasekeeper.protocol.versions import VERSION_MAX, declared, is_declared
from leasekeeper.runs.schema import migration
from leasekeeper.schema_errors import MigrationFailed
from tests.orders import FIRST, WHERE, OrderV1, OrderV2, versioned

# ---------------------------------------------------------------- steps that fail


def fails(data: dict[str, Any]) -> dict[str, Any]:
    """A bug."""
    data.clear()
    raise KeyError("paid")


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (fails, "KeyError('paid')"),
        (lambda data: None, "it returned NoneType, not a dict"),
        (lambda data: {**data, "x": {1, 2}}, "result.x: expected JSON"),
        (lambda data: {**data, "x": 2**53}, "result.x: a number beyond"),
        (lambda data: {**data, "x": "\ud800"}, "a lone surrogate"),
        (lambda data: {**data, "x": "x" * BYTES_MAX}, "at most 65536 bytes"),
        (lambda data: {**data, "x": "one"}, "data.x: expected int, found str"),
        (lambda data: {}, "data.x: the field is missing"),
    ],
)
def test_a_step_that_fails_leaves_what_is_stored(step: Callable[[Any], Any], why: str) -> None:
    """B18: a migration's exception, or a result that does not fit, is MigrationFailed with its name; the bytes still serve."""
    kind = versioned(2, {(1, 2): step})
    stored = seal_envelope(Envelope("Made", 1, 1, 1, 1, {"x": 1}))
    before = bytes(stored)
    with pytest.raises(MigrationFailed) as caught:
        decode(stored, kind, WHERE)
    error = caught.value
    assert (error.schema, error.version, error.to) == ("Made", 1, 2)
    assert why in error.why
    assert error.function.startswith(f"{step.__module__}.")
    assert stored == before
    assert decode(stored, versioned(1, {}), WHERE).value.x == 1


def test_the_exception_of_a_step_is_the_cause() -> None:
    """Who mends it sees where it happened."""
    stored = seal_envelope(Envelope("Made", 1, 1, 1, 1, {"x": 1}))
    with pytest.raises(MigrationFailed) as caught:
        decode(stored, versioned(2, {(1, 2): fails}), WHERE)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_step_cannot_reach_what_others_see() -> None:
    """Each run of a step has data of its own: what it changes or keeps is seen by nobody else."""
    kept: list[dict[str, Any]] = []

    def greedy(data: dict[str, Any]) -> dict[str, Any]:
        kept.append(data)
        data["x"] = {"count": len(kept)}
        return data

    kind = versioned(3, {(1, 2): greedy, (2, 3): lambda data: {"x": data["x"]["count"]}})
    stored = seal_envelope(Envelope("Made", 1, 1, 1, 1, {"x": 1}))
    assert [decode(stored, kind, WHERE).value.x for _ in range(2)] == [1, 2]
    kept[0]["x"]["count"] = 99
    assert json.loads(stored)["data"] == {"x": 1}


def test_a_step_is_given_data_as_it_is_read() -> None:
    """Steps down and up see the same: keys in stored order, and nothing that the caller holds."""
    seen: list[list[str]] = []

    def look(data: dict[str, Any]) -> dict[str, Any]:
        seen.append([*data, *data.pop("table")])
        return {"x": 1}

    data = {"table": {"b": 1, "a": 2}, "aa": 0}
    declared(versioned(2, {(1, 2): look})).upgrade(data, 1)
    declared(versioned(2, {(1, 2): look, (2, 1): look})).downgrade(data, 1)
    assert seen == [["aa", "table", "a", "b"]] * 2
    assert data == {"table": {"b": 1, "a": 2}, "aa": 0}


def test_a_pinned_write_that_could_not_be_read_again_is_refused() -> None:
    """B19: a step down whose result the steps up do not take back fails when it is written, not at the next start."""
    kind = versioned(2, {(1, 2): lambda data: {"x": data["y"]}, (2, 1): lambda data: data})
    with pytest.raises(MigrationFailed, match="'y'"):
        encode(kind(x=1), kind, over=None, seq=1, write_version=1)


# ---------------------------------------------------------------- what a class declares


def test_a_class_that_says_nothing_has_one_version() -> None:
    """The defaults: the class' name, version 1, read by itself."""
    found = declared(make_dataclass("Plain", [("x", int)]))
    assert (found.schema, found.version, found.min_reader, found.oldest, found.steps) == ("Plain", 1, 1, 1, {})


def test_a_hole_in_the_steps_shows_at_first_use() -> None:
    """B18: every missing step is named, by writing as well as by reading, and before any old data turns up."""
    kind = versioned(4, {(2, 3): lambda data: data})
    for use in (lambda: encode(kind(x=1), kind, over=None, seq=1), lambda: decode(FIRST, kind, WHERE)):
        with pytest.raises(ConfigError) as caught:
            use()
        assert caught.value.expected.endswith(
            "@migration(Made, from_version=1), @migration(Made, from_version=3)",
        )


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"from_version": 0}, "from_version"),
        ({"from_version": 3}, "to_version"),
        ({"from_version": 4}, "from_version"),
        ({"from_version": "1"}, "from_version"),
        ({"from_version": True}, "from_version"),
        ({"from_version": 1, "to_version": 3}, "to_version"),
        ({"from_version": 1, "to_version": 1}, "to_version"),
        ({"from_version": 1, "to_version": 0}, "to_version"),
        ({"from_version": 2}, "migration"),
    ],
)
def test_a_step_leads_from_one_version_to_the_next(arguments: Any, field: str) -> None:
    """A step between versions that the type does not have, over more than one, or where one is registered, is refused."""
    kind = versioned(3, {(2, 3): lambda data: data})
    with pytest.raises(ConfigError) as caught:
        migration(kind, **arguments)(lambda data: data)
    assert caught.value.field == field


def test_a_step_is_a_plain_function() -> None:
    """A coroutine function would return no data; neither does what cannot be called."""

    async def step(data: dict[str, Any]) -> dict[str, Any]:
        return data

    for wrong in (step, 1):
        with pytest.raises(ConfigError, match="migration"):
            migration(versioned(2, {}), from_version=1)(wrong)  # type: ignore[type-var]


@pytest.mark.parametrize("kind", [int, dict, OrderV1("o", True), None, "OrderV1"], ids=repr)
def test_only_a_dataclass_has_steps(kind: Any) -> None:
    """There is nowhere to keep the steps of anything else."""
    with pytest.raises(ConfigError):
        migration(kind, from_version=1)(lambda data: data)


@pytest.mark.parametrize(
    "said",
    [
        *[{"version": value} for value in (0, -1, "1", True, 1.5, VERSION_MAX + 1, None)],
        *[{"min_reader": value} for value in (0, 2, "1", None)],
        *[{"oldest": value} for value in (0, 2, None)],
        *[{"schema": value} for value in ("", "a/b", "..", ".a", "a b", "a\n", "x" * 101, 1, None)],
    ],
    ids=repr,
)
def test_what_is_declared_must_be_possible(said: dict[str, Any]) -> None:
    """A class attribute that makes no sense is refused at first use and names itself."""
    kind = make_dataclass("Made", [("x", int)], namespace=said)
    with pytest.raises(ConfigError) as caught:
        declared(kind)
    assert caught.value.field == f"Made.{next(iter(said))}"


def test_what_a_class_declares_is_not_inherited_in_silence() -> None:
    """Another class with the schema and version of its parent would be taken for it: it must say so itself."""

    @dataclass
    class Child(OrderV2):
        more: int

    with pytest.raises(ConfigError, match="inherited"):
        declared(Child)
    assert not is_declared(Child)

    @dataclass
    class Named(OrderV2):
        schema: ClassVar[str] = "named"
        version: ClassVar[int] = 1
        min_reader: ClassVar[int] = 1

        more: int

    assert (declared(Named).schema, dict(declared(Named).steps)) == ("named", {})


def test_a_field_is_not_taken_for_a_declaration() -> None:
    """``version: int = 2`` is data: whoever meant the class' version is told the difference."""
    kind = make_dataclass("Made", [("version", int, 2)])
    with pytest.raises(ConfigError, match="ClassVar"):
        declared(kind)
