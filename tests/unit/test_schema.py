"""Versioned states: what a class declares, the steps between its versions, and the envelope that is stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from typing import Any, ClassVar

import pytest

from leasekeeper.canonical import BYTES_MAX, canonical
from leasekeeper.errors import ConfigError
from leasekeeper.protocol.schema import Envelope, Loaded, decode, encode, read_envelope, seal_envelope
from leasekeeper.protocol.versions import VERSION_MAX, declared, is_declared
from leasekeeper.run_errors import CorruptState, NotSerialisable, RecordTooLarge
from leasekeeper.runs.schema import migration
from leasekeeper.schema_errors import MigrationFailed, SchemaTooNew, SchemaUnknown

WHERE = "run/order/o-1/ck/state"


@dataclass(frozen=True)
class OrderV1:
    """As the first release had it."""

    schema: ClassVar[str] = "order"

    order: str
    paid: bool


@dataclass
class OrderV2:
    """A field more, which readers of version 1 may miss."""

    schema: ClassVar[str] = "order"
    version: ClassVar[int] = 2
    min_reader: ClassVar[int] = 1

    order: str
    paid: bool
    attempts: int


@dataclass(frozen=True)
class OrderV3:
    """Another type of a field, which no older reader understands."""

    schema: ClassVar[str] = "order"
    version: ClassVar[int] = 3

    order: str
    paid: str | None
    attempts: int


for later in (OrderV2, OrderV3):

    @migration(later, from_version=1)
    def count_attempts(data: dict[str, Any]) -> dict[str, Any]:
        """A new field."""
        return {**data, "attempts": 0}

    @migration(later, from_version=2, to_version=1)
    def forget_attempts(data: dict[str, Any]) -> dict[str, Any]:
        """Without it."""
        del data["attempts"]
        return data


@migration(OrderV3, from_version=2)
def name_payment(data: dict[str, Any]) -> dict[str, Any]:
    """Another type."""
    return {**data, "paid": "unknown" if data["paid"] else None}


@migration(OrderV3, from_version=3, to_version=2)
def only_whether_paid(data: dict[str, Any]) -> dict[str, Any]:
    """Back."""
    return {**data, "paid": data["paid"] is not None}


FIRST = encode(OrderV1("o-1", True), OrderV1, over=None, seq=4)


def sealed(**changed: Any) -> bytes:
    """The first envelope with other fields, and a digest to match."""
    fields = {**json.loads(FIRST), **changed}
    fields = {name: value for name, value in fields.items() if name != "digest" and value is not ...}
    return canonical({**fields, "digest": hashlib.sha256(canonical(fields)).hexdigest()})


# ---------------------------------------------------------------- the envelope


def test_what_is_stored_is_read_back() -> None:
    """B17: the envelope has just the fields of its format, its digest covers all others, and the state comes back."""
    fields = json.loads(FIRST)
    digest = fields.pop("digest")
    assert fields == {
        "v": 1,
        "schema": "order",
        "version": 1,
        "min_reader": 1,
        "n": 1,
        "seq": 4,
        "data": {"order": "o-1", "paid": True},
    }
    assert digest == hashlib.sha256(canonical(fields)).hexdigest()
    assert decode(FIRST, OrderV1, WHERE) == Loaded(
        value=OrderV1("o-1", True),
        data={"order": "o-1", "paid": True},
        version=1,
        n=1,
        seq=4,
        migrated=False,
        newer=False,
        stored=FIRST,
    )


def test_commits_are_counted() -> None:
    """B8: the logical version grows by one with each commit over what was read."""
    loaded = decode(FIRST, OrderV1, WHERE)
    for n in (2, 3, 4):
        loaded = decode(encode(OrderV1("o-1", False), OrderV1, over=loaded, seq=n), OrderV1, WHERE)
        assert (loaded.n, loaded.seq) == (n, n)


def test_a_plain_dict_is_a_state() -> None:
    """A dict is kept as it is, in a schema of its own, which a class may take over as its second version."""
    stored = encode({"a": [1, None]}, dict, over=None, seq=1)
    assert decode(stored, dict, WHERE).value == {"a": [1, None]}

    @dataclass
    class Taken:
        schema: ClassVar[str] = "dict"
        version: ClassVar[int] = 2

        a: list[int]

    migration(Taken, from_version=1)(lambda data: {"a": [one or 0 for one in data["a"]]})
    assert decode(stored, Taken, WHERE).value == Taken([1, 0])


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (b"", "no canonical JSON"),
        (b"null", "no canonical JSON object"),
        (b"\xff\xfe", "no canonical JSON"),
        (b"[" * 100_000, "more than"),
        (b"[" * 60_000, "no canonical JSON"),
        (b'{"v":1,"v":1}', "no canonical JSON object"),
        (FIRST + b"\n", "no canonical JSON object"),
        (json.dumps(json.loads(FIRST)).encode(), "no canonical JSON object"),
        (FIRST.replace(b'"seq":4', b'"seq":5'), "the digest is wrong"),
        (FIRST.replace(b'"version":1', b'"version":2'), "the digest is wrong"),
        (sealed(digest=...).replace(b"digest", b"digesu"), "the digest is wrong"),
        (sealed(n=0), "n is no number"),
        (sealed(n=True), "n is no number"),
        (sealed(seq="4"), "seq is no number"),
        (sealed(version=VERSION_MAX + 1), "version is no number"),
        (sealed(v=0), "v is no number"),
        (sealed(min_reader=2), "newer than its own"),
        (sealed(more=1), "it is no checkpoint"),
        (sealed(schema=...), "it is no checkpoint"),
        (sealed(schema=1), "it is no checkpoint"),
        (sealed(data=[]), "it is no checkpoint"),
        (sealed(schema="other"), "it is of schema other, not order"),
        (sealed(data={"order": "o-1"}), "data.paid: the field is missing"),
        (sealed(data={"order": "o-1", "paid": 1}), "data.paid: expected bool, found int; was OrderV1 changed without"),
        (sealed(data={"order": "o-1", "paid": True, "more": 1}), "data.more: OrderV1 has no such field"),
    ],
)
def test_damage_is_told_and_nothing_takes_its_place(stored: bytes, why: str) -> None:
    """A3: whatever else stands where a checkpoint should is CorruptState, with the place and what is wrong."""
    with pytest.raises(CorruptState) as caught:
        decode(stored, OrderV1, WHERE)
    assert caught.value.where == WHERE
    assert why in caught.value.why
    assert WHERE in str(caught.value)


def test_a_later_format_of_envelopes_is_not_taken_for_damage() -> None:
    """A format that this program does not know, with a digest that is right, asks for the newer program."""
    with pytest.raises(SchemaTooNew) as caught:
        decode(sealed(v=2, more=1), OrderV1, WHERE)
    assert (caught.value.version, caught.value.reads) == (2, 1)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (OrderV1("o-1", 1), "data.paid"),  # type: ignore[arg-type]
        (OrderV1("\ud800", True), "checkpoint.data.order"),
        (OrderV2("o-1", True, 0), "data"),
    ],
)
def test_what_is_not_of_its_type_is_not_written(value: Any, field: str) -> None:
    """A state that could not be read back raises NotSerialisable with the path, before anything is written."""
    with pytest.raises(NotSerialisable) as caught:
        encode(value, OrderV1, over=None, seq=1)
    assert caught.value.field == field


def test_a_state_that_its_own_class_refuses_is_not_written() -> None:
    """A changed object may break the rule of its class: that shows when it is written, not when it is needed."""

    @dataclass
    class Share:
        share: float

        def __post_init__(self) -> None:
            if self.share > 1:
                raise ValueError("too much")

    state = Share(0.5)
    state.share = 2.0
    with pytest.raises(NotSerialisable, match="too much"):
        encode(state, Share, over=None, seq=1)


def test_a_large_state_is_refused_with_its_size() -> None:
    """A checkpoint beyond 64 KiB names its size and the bound, also when only older bytes are asked for."""
    state = OrderV2("x" * BYTES_MAX, True, 0)
    for version in (None, 1):
        with pytest.raises(RecordTooLarge) as caught:
            encode(state, OrderV2, over=None, seq=1, write_version=version)
        assert caught.value.size > caught.value.most == BYTES_MAX


# ---------------------------------------------------------------- versions


def test_older_data_is_migrated_step_by_step() -> None:
    """B18: version 1 becomes version 3 by both steps in order, and the bytes that were stored are kept as they were."""
    loaded = decode(FIRST, OrderV3, WHERE)
    assert loaded.value == OrderV3("o-1", "unknown", 0)
    assert loaded.data == {"order": "o-1", "paid": "unknown", "attempts": 0}
    assert (loaded.migrated, loaded.version, loaded.stored) == (True, 1, FIRST)
    again = decode(encode(loaded.value, OrderV3, over=loaded, seq=9), OrderV3, WHERE)
    assert (again.value, again.version, again.migrated, again.n) == (loaded.value, 3, False, 2)


def test_newer_data_is_read_where_it_says_so_and_never_written_over() -> None:
    """B17: version 1 reads version 2, whose min_reader is 1, without the new field; writing is refused: it would be lost."""
    stored = encode(OrderV2("o-1", True, 7), OrderV2, over=None, seq=1)
    loaded = decode(stored, OrderV1, WHERE)
    assert loaded.value == OrderV1("o-1", True)
    assert (loaded.newer, loaded.version, loaded.data["attempts"]) == (True, 2, 7)
    with pytest.raises(SchemaTooNew, match="would lose what is new") as caught:
        encode(loaded.value, OrderV1, over=loaded, seq=2)
    assert (caught.value.schema, caught.value.version, caught.value.reads) == ("order", 2, 1)


@pytest.mark.parametrize("kind", [OrderV1, OrderV2])
def test_newer_data_is_refused_otherwise(kind: type) -> None:
    """B17: version 3 says that only version 3 reads it."""
    stored = encode(OrderV3("o-1", None, 7), OrderV3, over=None, seq=1)
    with pytest.raises(SchemaTooNew) as caught:
        decode(stored, kind, WHERE)
    assert (caught.value.version, caught.value.reads) == (3, declared(kind).version)


def test_a_pinned_writer_writes_what_older_programs_read() -> None:
    """B19: replicas of versions 1 and 3, the newer pinned to 1, pass a checkpoint back and forth."""
    one = decode(FIRST, OrderV3, WHERE)
    stored = encode(OrderV3("o-1", "ch_1", 5), OrderV3, over=one, seq=5, write_version=1)
    two = decode(stored, OrderV1, WHERE)
    assert (two.value, two.version, two.n, two.newer) == (OrderV1("o-1", True), 1, 2, False)
    assert read_envelope(stored, WHERE).min_reader == 1
    three = decode(encode(OrderV1("o-1", False), OrderV1, over=two, seq=6), OrderV3, WHERE)
    assert (three.value, three.n) == (OrderV3("o-1", None, 0), 3)


def test_a_pinned_writer_says_nothing_of_even_older_readers() -> None:
    """B19: min_reader is what the present version promises; an older one that is written can be read by itself only."""
    assert read_envelope(encode(OrderV2("o", True, 1), OrderV2, over=None, seq=1), WHERE).min_reader == 1
    stored = encode(OrderV3("o", None, 1), OrderV3, over=None, seq=1, write_version=2)
    assert (read_envelope(stored, WHERE).version, read_envelope(stored, WHERE).min_reader) == (2, 2)


@pytest.mark.parametrize("version", [0, 4, True, "1", 1.0])
def test_a_pin_to_no_version_is_refused(version: Any) -> None:
    """A version that the type does not have cannot be written."""
    with pytest.raises(ConfigError, match="write_version"):
        encode(OrderV3("o", None, 1), OrderV3, over=None, seq=1, write_version=version)


def test_a_pin_without_the_way_down_is_refused() -> None:
    """The message names the function that is missing."""
    kind = versioned(2, {(1, 2): lambda data: data})
    with pytest.raises(ConfigError, match=r"@migration\(Made, from_version=2, to_version=1\)"):
        encode(kind(x=1), kind, over=None, seq=1, write_version=1)


def test_versions_that_are_read_no_more_are_unknown() -> None:
    """B20: below ``oldest`` nothing is guessed, and no step is asked for."""
    kind = versioned(3, {(2, 3): lambda data: data}, schema="order", oldest=2)
    with pytest.raises(SchemaUnknown) as caught:
        decode(FIRST, kind, WHERE)
    assert (caught.value.version, caught.value.oldest) == (1, 2)


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


def versioned(version: int, steps: dict[tuple[int, int], Callable[[Any], Any]], **said: Any) -> Any:
    """A state type with one field of type int."""
    kind = make_dataclass("Made", [("x", int)], namespace={"version": version, **said})
    for (at, to), step in steps.items():
        migration(kind, from_version=at, to_version=to)(step)
    return kind


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
