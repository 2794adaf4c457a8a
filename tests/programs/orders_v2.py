"""The same program's state as its second version has it: counted by kind, which the first version cannot know."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any, ClassVar

from leasekeeper import migration

# Whether the next migration is the process's end.
DIES: list[bool] = []


@dataclass(frozen=True)
class OrderState:
    """How often an order was tried, and with what."""

    schema: ClassVar[str] = "order"
    version: ClassVar[int] = 2

    tries: int
    by: str

    @classmethod
    def begun(cls) -> OrderState:
        """The first state."""
        return cls(1, "card")

    def counted(self) -> OrderState:
        """One more try."""
        return OrderState(self.tries + 1, self.by)

    def told(self) -> dict[str, Any]:
        """For reports."""
        return {"tries": self.tries, "by": self.by}


@migration(OrderState, from_version=1)
def name_the_kind(data: dict[str, Any]) -> dict[str, Any]:
    """Orders of the first version were all paid by card."""
    if any(DIES):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"tries": data["attempts"], "by": "card"}


@migration(OrderState, from_version=2, to_version=1)
def forget_the_kind(data: dict[str, Any]) -> dict[str, Any]:
    """The first version knows no kinds."""
    return {"attempts": data["tries"]}
