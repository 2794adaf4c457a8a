"""Types of states: what a value is written as, what is read back, and what is refused instead of bent."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import Enum, Flag, IntEnum
from typing import Any, ClassVar, Dict, Generic, List, Optional, TypeVar  # noqa: UP035 - users write these, too

import pytest

from leasekeeper.errors import ConfigError
from leasekeeper.protocol.shape import PARTS_MAX, Misfit, Walk
from leasekeeper.protocol.state_types import check_fields, shape_of

T = TypeVar("T")


class Colour(Enum):
    """Text."""

    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    """Numbers."""

    LOW = 1
    HIGH = 2


class Mixed(Enum):
    """No text, no number."""

    PAIR = (1, 2)


@dataclass(frozen=True)
class Item:
    """Inside of another."""

    sku: str
    count: int = 1


@dataclass(slots=True)
class Everything:
    """One field of each kind."""

    version: ClassVar[int] = 1

    text: str
    whole: int
    real: float
    flag: bool
    nothing: None
    maybe: str | None
    other: Optional[int]  # noqa: UP045
    items: list[Item]
    pair: tuple[float, ...]
    table: dict[str, Item]
    colour: Colour
    level: Level
    anything: Any
    bare: dict  # type: ignore[type-arg]
    old: List[int]  # noqa: UP006
    older: Dict[str, int]  # noqa: UP006
    rows: list[dict[str, list[int]]] = field(default_factory=list)


@dataclass
class Tree:
    """Holds its like."""

    name: str
    children: list[Tree]


@dataclass
class Checked:
    """Refuses some values itself."""

    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError("a share is from 0 to 1")


FULL = Everything(
    text="ü\u2028",
    whole=2**63 - 1,
    real=2.0,
    flag=True,
    nothing=None,
    maybe=None,
    other=0,
    items=[Item("a"), Item("b", 2)],
    pair=(0.5, 1e300),
    table={"x": Item("c")},
    colour=Colour.BLUE,
    level=Level.HIGH,
    anything={"a": [1, None, {"b": True}]},
    bare={"deep": {"er": 1}},
    old=[1],
    older={"one": -(2**53)},
    rows=[{"r": [1, 2]}],
)


def dump(value: object, kind: Any = None) -> Any:
    """The JSON data of a value."""
    return shape_of(kind or type(value)).dump(value, "data", Walk(), 1)


def each(kind: Any, *values: Any) -> list[tuple[Any, Any]]:
    """A type with each of some values."""
    return [(kind, value) for value in values]


def load(data: object, kind: Any, *, lenient: bool = False) -> Any:
    """The value of JSON data."""
    return shape_of(kind).load(data, "data", Walk(lenient=lenient), 1)


def test_every_kind_of_field_comes_back() -> None:
    """Each supported type is written and read back equal, with its type."""
    check_fields(Everything)
    back = load(dump(FULL), Everything)
    assert back == FULL
    assert type(back.real) is float
    assert type(back.pair) is tuple
    assert back.level is Level.HIGH
    assert dump(back) == dump(FULL)


def test_numbers_that_json_readers_round_are_text() -> None:
    """Beyond 2^53 - 1 an int and a float are written as text, and only there."""
    data = dump(FULL)
    assert data["whole"] == "9223372036854775807"
    assert data["pair"] == [0.5, "1e+300"]
    assert data["older"] == {"one": "-9007199254740992"}
    assert dump(2**53 - 1, int) == 2**53 - 1
    assert load("9007199254740992", int) == 2**53


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        *each(int, True, 1.0, "1", "9007199254740991", "09007199254740992", "+1", 2**53, None, "9" * 200),
        *each(float, True, "1.5", "inf", "nan", "1e300", "0", None, float(2**60)),
        *each(str, 1, None, [], True),
        *each(bool, 0, 1, "true", None),
        *each(Colour, "green", 1, None, ["red"]),
        *each(Level, 3, True, "1", 1.0),
        *each(list[int], {}, "12", (1,), [1, "2"]),
        *each(tuple[int, ...], (1,), {}, [None]),
        *each(dict[str, int], [], {"a": "b"}),
        *each(dict, [], {"a": {1}}, {1: 2}, {"a": 2**53}),
        *each(Item, [], "x", {"sku": "a"}, {"count": 1}, {"sku": "a", "count": 1, "more": 1}),
        (Checked, {"share": 2}),
    ],
    ids=repr,
)
def test_nothing_is_bent_when_it_is_read(kind: Any, data: object) -> None:
    """A3: data that `dump` does not write is refused: True is no 1, 1.0 no int, and no default replaces a missing field."""
    with pytest.raises(Misfit):
        load(data, kind)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *each(int, True, 1.0, Level.LOW, 10**100),
        *each(float, True, "1", 2**53, float("inf"), float("nan")),
        *each(str, b"a", 1, None),
        *each(Colour, "red", Level.LOW),
        *each(list[int], (1,), [1.5], None),
        *each(dict[str, int], {1: 1}, [("a", 1)]),
        *each(Any, {1}, b"a", {1: 1}, 2**53, Item("a"), Level.LOW, ...),
        *each(Item, Item("a", "1"), {"sku": "a", "count": 1}, None),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_nothing_is_bent_when_it_is_written(kind: Any, value: object) -> None:
    """A value that would come back as another, or not at all, is not written."""
    with pytest.raises(Misfit):
        dump(value, kind)


def test_a_misfit_names_the_part_and_hides_the_value() -> None:
    """The path leads to the part; what stands there may be a secret."""
    data = dump(FULL)
    data["items"][1]["count"] = "hunter2"
    with pytest.raises(Misfit) as caught:
        load(data, Everything)
    assert str(caught.value) == "data.items[1].count: expected int, found str"


def test_a_class_may_refuse_values_itself() -> None:
    """What __post_init__ raises is a Misfit that says so, with the exception as its cause."""
    with pytest.raises(Misfit, match=r"data: Checked refuses it: ValueError\('a share is from 0 to 1'\)") as caught:
        load({"share": 2}, Checked)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_type_may_hold_its_like() -> None:
    """A tree is written and read, down to a bounded depth."""
    tree = Tree("a", [Tree("b", []), Tree("c", [Tree("d", [])])])
    check_fields(Tree)
    assert load(dump(tree), Tree) == tree
    for _ in range(40):
        tree = Tree("up", [tree])
    with pytest.raises(Misfit, match="levels"):
        dump(tree)


def test_what_holds_itself_is_refused() -> None:
    """Neither a list in itself nor lists that hold each other many times over can hang or fill the memory."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(Misfit, match="levels"):
        dump(loop, Any)
    many: list[Any] = []
    for _ in range(25):
        many = [many, many]
    with pytest.raises(Misfit, match=str(PARTS_MAX)):
        dump(many, Any)


def test_unknown_fields_pass_only_where_they_are_expected() -> None:
    """B17: a reader of newer data passes over what it does not know, at any depth, but misses nothing that it knows."""
    newer = {"name": "a", "children": [{"name": "b", "children": [], "new": 1}], "new": 2}
    assert load(newer, Tree, lenient=True) == Tree("a", [Tree("b", [])])
    with pytest.raises(Misfit, match=r"data\.children: the field is missing"):
        load({"name": "a"}, Tree, lenient=True)
    with pytest.raises(Misfit, match=r"data\.new: Tree has no such field"):
        load({**newer, "children": []}, Tree)


def made(hint: Any, **options: Any) -> type:
    """A dataclass with one field of a type."""
    return dataclasses.make_dataclass("Made", [("x", hint, field(**options))])


class Generically(Generic[T]):
    """Not a dataclass at all."""


@pytest.mark.parametrize(
    "kind",
    [
        *[made(hint) for hint in (set, bytes, tuple, tuple[int, str], dict[int, str], int | str, Mixed, object, T)],
        *[made(hint) for hint in (list[set[int]], Generically, Generically[int], "Nowhere", Flag)],
        made(int, init=False, default=1),
        made(dataclasses.InitVar[int]),
        made(list[made(bytes)]),  # type: ignore[misc]
    ],
    ids=lambda kind: str(kind.__annotations__["x"]),
)
def test_types_that_cannot_be_kept_are_refused_at_once(kind: type) -> None:
    """A field whose values could not be read back is a ConfigError when the type is first used, and names the field."""
    with pytest.raises(ConfigError) as caught:
        check_fields(kind)
    assert caught.value.field.startswith("Made")
