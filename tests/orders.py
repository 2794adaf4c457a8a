"""States of orders in three versions, and the steps between them, for tests of versioned states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from typing import Any, ClassVar

from leasekeeper.protocol.schema import encode
from leasekeeper.runs.schema import migration

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


def versioned(version: int, steps: dict[tuple[int, int], Callable[[Any], Any]], **said: Any) -> Any:
    """A state type with one field of type int."""
    kind = make_dataclass("Made", [("x", int)], namespace={"version": version, **said})
    for (at, to), step in steps.items():
        migration(kind, from_version=at, to_version=to)(step)
    return kind
