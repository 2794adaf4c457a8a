"""Checkpoints of any content: what is written comes back, damage of any byte shows, and migrations neither lose nor harm."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.protocol.schema import Envelope, decode, encode, seal_envelope
from leasekeeper.run_errors import CorruptState
from leasekeeper.runs.schema import migration
from leasekeeper.schema_errors import MigrationFailed, SchemaTooNew

WHERE = "run/w/i/ck/state"


class Stage(Enum):
    """Where it stands."""

    OPEN = "open"
    DONE = "done"


@dataclass(frozen=True)
class Line:
    """Inside of the state."""

    sku: str
    price: float | None


@dataclass(frozen=True)
class Old:
    """Version 1."""

    schema: ClassVar[str] = "bill"

    number: int
    lines: tuple[Line, ...]
    stage: Stage
    notes: dict[str, str]


@dataclass(frozen=True)
class New:
    """Version 3: the number is text, and the notes are a list of pairs."""

    schema: ClassVar[str] = "bill"
    version: ClassVar[int] = 3

    number: str
    lines: tuple[Line, ...]
    stage: Stage
    notes: list[list[str]]


@migration(New, from_version=1)
def number_as_text(data: dict[str, Any]) -> dict[str, Any]:
    """1 to 2."""
    return {**data, "number": str(data["number"])}


@migration(New, from_version=2)
def notes_as_pairs(data: dict[str, Any]) -> dict[str, Any]:
    """2 to 3."""
    data["notes"] = [list(pair) for pair in data["notes"].items()]
    return data


@migration(New, from_version=3, to_version=2)
def notes_as_object(data: dict[str, Any]) -> dict[str, Any]:
    """3 to 2."""
    return {**data, "notes": dict(data["notes"])}


@migration(New, from_version=2, to_version=1)
def number_as_number(data: dict[str, Any]) -> dict[str, Any]:
    """2 to 1: a large number is text in the JSON of an int as well."""
    number = int(data["number"])
    return {**data, "number": number if abs(number) < 2**53 else str(number)}


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
lines = st.builds(Line, texts, st.none() | st.floats(allow_nan=False, allow_infinity=False))
olds = st.builds(
    Old,
    st.integers(-(2**70), 2**70),
    st.lists(lines, max_size=3).map(tuple),
    st.sampled_from(Stage),
    st.dictionaries(texts, texts, max_size=3),
)


@given(olds)
def test_any_state_comes_back(state: Old) -> None:
    """A state that can be written is read back equal, and written again is the same bytes."""
    stored = encode(state, Old, over=None, seq=1)
    loaded = decode(stored, Old, WHERE)
    assert loaded.value == state
    assert encode(loaded.value, Old, over=None, seq=1) == stored


@given(olds, st.data())
def test_any_flipped_byte_shows(state: Old, data: st.DataObject) -> None:
    """A3: no byte of a stored checkpoint can be another without CorruptState, wherever it stands."""
    stored = encode(state, Old, over=None, seq=1)
    at = data.draw(st.integers(0, len(stored) - 1), "at")
    flip = data.draw(st.integers(1, 255), "flip")
    damaged = stored[:at] + bytes([stored[at] ^ flip]) + stored[at + 1 :]
    with pytest.raises(CorruptState):
        decode(damaged, Old, WHERE)


def test_any_flipped_bit_of_one_checkpoint_shows() -> None:
    """A3: every bit of one checkpoint in turn, so that none is left to chance."""
    state = Old(2**60, (Line("a", 0.5),), Stage.OPEN, {"k": "v"})
    stored = encode(state, Old, over=None, seq=1)
    for at in range(len(stored)):
        for bit in range(8):
            damaged = stored[:at] + bytes([stored[at] ^ 1 << bit]) + stored[at + 1 :]
            with pytest.raises(CorruptState):
                decode(damaged, Old, WHERE)


@given(olds, st.data())
def test_what_is_cut_off_or_added_shows(state: Old, data: st.DataObject) -> None:
    """A3: a part of a checkpoint is none, and neither is one with something behind it."""
    stored = encode(state, Old, over=None, seq=1)
    cut = data.draw(st.integers(0, len(stored) - 1), "cut")
    more = data.draw(st.binary(min_size=1, max_size=4), "more")
    for damaged in (stored[:cut], stored + more, more + stored):
        with pytest.raises(CorruptState):
            decode(damaged, Old, WHERE)


@given(st.binary(max_size=300))
def test_anything_else_is_no_checkpoint(stored: bytes) -> None:
    """A3: whatever bytes stand there, the answer is CorruptState."""
    with pytest.raises(CorruptState):
        decode(stored, New, WHERE)


@given(olds)
def test_every_old_state_becomes_a_valid_new_one(state: Old) -> None:
    """B18: migrate(old) is valid, the same each time, and once written is read without any step."""
    stored = encode(state, Old, over=None, seq=1)
    loaded = decode(stored, New, WHERE)
    assert loaded.migrated
    # A dict comes back in the order in which it is stored.
    pairs = sorted(state.notes.items(), key=lambda pair: pair[0].encode("utf-16-be"))
    assert loaded.value == New(str(state.number), state.lines, state.stage, [list(pair) for pair in pairs])
    assert decode(stored, New, WHERE) == loaded
    again = decode(encode(loaded.value, New, over=loaded, seq=2), New, WHERE)
    assert (again.value, again.data, again.migrated) == (loaded.value, loaded.data, False)


@given(olds)
def test_a_pinned_writer_loses_nothing_that_the_old_version_has(state: Old) -> None:
    """B19: new program, pinned, then old program: the old one sees its state, whichever of them wrote it."""
    loaded = decode(encode(state, Old, over=None, seq=1), New, WHERE)
    stored = encode(loaded.value, New, over=loaded, seq=2, write_version=1)
    assert decode(stored, Old, WHERE).value == state
    assert decode(stored, New, WHERE).value == loaded.value


@given(olds)
def test_new_data_is_refused_by_old_code(state: Old) -> None:
    """B17: version 3 is never read by version 1, and nothing comes of trying."""
    new = decode(encode(state, Old, over=None, seq=1), New, WHERE)
    stored = encode(new.value, New, over=new, seq=2)
    with pytest.raises(SchemaTooNew):
        decode(stored, Old, WHERE)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["number", "lines", "stage", "notes", "more"]), json_values))
def test_what_no_release_wrote_never_becomes_a_state_in_silence(data: dict[str, Any]) -> None:
    """B18: data of an old version that no old version wrote is either migrated to a valid state or MigrationFailed."""
    if any(isinstance(value, int) and abs(value) > 2**53 - 1 for value in _leaves(data)):
        return
    stored = seal_envelope(Envelope("bill", 2, 2, 1, 1, data))
    try:
        loaded = decode(stored, New, WHERE)
    except MigrationFailed:
        return
    assert encode(loaded.value, New, over=loaded, seq=2)


def _leaves(value: object) -> list[object]:
    match value:
        case dict():
            return [leaf for one in value.values() for leaf in _leaves(one)]
        case list():
            return [leaf for one in value for leaf in _leaves(one)]
    return [value]
