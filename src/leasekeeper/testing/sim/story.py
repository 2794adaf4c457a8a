"""What happened in a world, as lines that a person can follow: who did or believed what, and when."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["Line", "Story"]

LINES_MAX = 5_000
# So much of it is told of a world that went wrong.
TOLD_MAX = 40


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened, at a moment of virtual time."""

    at_s: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.at_s:9.3f}  {self.who:<10} {self.what}"


class Story:
    """The lines of one world; the oldest go when there are too many."""

    def __init__(self) -> None:
        self.lines: deque[Line] = deque(maxlen=LINES_MAX)

    def tell(self, at_s: float, who: str, what: str) -> None:
        """One more line."""
        self.lines.append(Line(at_s, who, what))

    def text(self) -> str:
        """All of it."""
        return "\n".join(str(line) for line in self.lines)

    def of(self, names: tuple[str, ...], most: int = TOLD_MAX) -> list[Line]:
        """The end of it, as far as it concerns somebody: the lines of these, of etcd, and of what befell the world."""
        parents = (name.rstrip("'") for name in names)  # of a child that was forked
        concerned = {*names, *parents, "etcd", "fault"}
        return [line for line in self.lines if line.who in concerned][-most:]
