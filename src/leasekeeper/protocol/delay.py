"""What is told of a record that cannot be written for now: evidence waits as long as it takes, and never in silence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from leasekeeper.protocol.plan import Fault

__all__ = ["Delay", "Ending", "again"]

Ending = Literal["recorded", "given_up"]


@dataclass(frozen=True, slots=True)
class Delay:
    """How a record stands that waits: told each time that trying has come to nothing, and once when it is over.

    ``kind`` and ``step`` are the record's; ``in_a_row`` counts the spells of trying that came to nothing, ``fault`` is why the
    last one did. ``how``: ``waits``, and is tried again; ``recorded``; ``given_up``: nobody waits for it any more.
    """

    kind: str
    step: str
    fault: Fault
    in_a_row: int
    waited_s: float
    how: Literal["waits", "recorded", "given_up"] = "waits"

    def over(self, how: Ending, waited_s: float) -> Delay:
        """The same, at its end."""
        return replace(self, how=how, waited_s=waited_s)


def again(before: Delay | None, *, kind: str, step: str, fault: Fault, waited_s: float) -> Delay:
    """After one more spell; ``before`` is what was told last of this record, None: nothing yet."""
    return Delay(kind, step, fault, 1 if before is None else before.in_a_row + 1, waited_s)
