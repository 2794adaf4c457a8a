"""What is stored in etcd as each release wrote it: where the files are, and the values that the first release put in them.

One directory a release, one file a record: ``tests/golden/<release>/<record>.json``, the stored bytes and a line end. A file is
written once and never changed: whoever changes a format adds a directory, and keeps reading all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

HERE = Path(__file__).parent


class Stage(Enum):
    """An Enum in a state."""

    OPEN = "open"
    PAID = "paid"


@dataclass(frozen=True)
class Line:
    """A dataclass in a state."""

    sku: str
    price: float


@dataclass(frozen=True)
class Golden:
    """A state with a field of each kind."""

    schema: ClassVar[str] = "golden"
    version: ClassVar[int] = 2
    min_reader: ClassVar[int] = 1
    oldest: ClassVar[int] = 2

    text: str
    whole: int
    large: int
    real: float
    huge: float
    flag: bool
    nothing: str | None
    stage: Stage
    lines: list[Line]
    pair: tuple[int, ...]
    table: dict[str, list[int]]
    anything: Any


CHECKPOINT = Golden(
    text='line\nend, "quoted", \u20ac, \U0001f600',
    whole=-7,
    large=2**63 - 1,
    real=0.1,
    huge=1e21,
    flag=True,
    nothing=None,
    stage=Stage.PAID,
    lines=[Line("a", 1.0), Line("b", 1e-7)],
    pair=(1, 2),
    table={"\u20ac": [], "b": [1], "a": [2, 3], "\U0001f600": [], "\ufb33": []},
    anything={"nested": [None, True, 1.5, {"deep": "x"}]},
)


def stored(release: str, record: str) -> bytes:
    """The bytes that a release stored."""
    return (HERE / release / f"{record}.json").read_bytes().removesuffix(b"\n")
