"""The guardian's gate: whether the tree may run at this instant.

Pure. The rule is that of a lease's own gate: the clock decides, no flag that somebody would have had to set. Authority is good
until ``pause_at_s`` and is over at ``end_at_s``; both come from the command, which has them from the last confirmed beat. An
explicit hold shuts the gate until newer authority comes.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Gate", "checked"]


def checked(pause_at_s: float, end_at_s: float) -> tuple[float, float]:
    """The two deadlines; ValueError when the pause would come after the end, or one is no number."""
    if not pause_at_s <= end_at_s:
        raise ValueError(
            f"pause_at_s={pause_at_s!r} must not be later than end_at_s={end_at_s!r}, both in "
            "seconds of leasekeeper.clock.boottime"
        )
    return pause_at_s, end_at_s


@dataclass(slots=True)
class Gate:
    """Shut unless authority is good *now*."""

    pause_at_s: float
    end_at_s: float
    held: bool = False

    def good(self, pause_at_s: float, end_at_s: float) -> None:
        """Newer authority; takes back a hold."""
        self.pause_at_s, self.end_at_s = checked(pause_at_s, end_at_s)
        self.held = False

    def hold(self) -> None:
        """Shut until the next `good`."""
        self.held = True

    def shut(self, now_s: float) -> bool:
        """Whether the tree must stand still."""
        return self.held or now_s >= self.pause_at_s

    def over(self, now_s: float) -> bool:
        """Whether even the reserve for freezing is used up."""
        return now_s >= self.end_at_s
