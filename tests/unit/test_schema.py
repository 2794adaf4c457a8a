"""Versioned states: the envelope that is stored, and which versions read and write it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from leasekeeper.canonical import BYTES_MAX, canonical
from leasekeeper.errors import ConfigError
from leasekeeper.protocol.schema import Loaded, decode, encode, read_envelope
from leasekeeper.protocol.versions import VERSION_MAX, declared
from leasekeeper.run_errors import CorruptState, NotSerialisable, RecordTooLarge
from leasekeeper.runs.schema import migration
from leasekeeper.schema_errors import SchemaTooNew, SchemaUnknown
from tests.orders import FIRST, WHERE, OrderV1, OrderV2, OrderV3, versioned


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
