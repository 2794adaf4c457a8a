"""A program's state as its first version has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class OrderState:
    """How often an order was tried."""

    schema: ClassVar[str] = "order"
    version: ClassVar[int] = 1

    attempts: int

    @classmethod
    def begun(cls) -> OrderState:
        """The first state."""
        return cls(1)

    def counted(self) -> OrderState:
        """One more attempt."""
        return OrderState(self.attempts + 1)

    def told(self) -> dict[str, Any]:
        """For reports."""
        return {"attempts": self.attempts}
