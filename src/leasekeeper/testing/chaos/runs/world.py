"""What goes wrong at the outside world of a storm, by the names of the faults, and what each step of a run does there."""

from __future__ import annotations

from leasekeeper.testing.outside.troubles import Trouble, TroubleKind

__all__ = ["DOES", "EFFECTS", "troubles"]

# Of each step, by its key: the "service.effect" that it asks for.
DOES = {
    "plan": "chat.complete",
    "charge": "payments.charge",
    "mail": "mail.send",
    "config": "configs.write",
    "tip": "till.charge",
}
EFFECTS = tuple(DOES.values())
# Those whose step declares that no request of a dead owner is still under way (probe): the world must not keep any.
AT_ONCE = ("mail.send", "configs.write")
LAG_WRITES = 3


def troubles(fault: str, lasts_s: float) -> list[Trouble]:
    """The troubles of a fault; [] for one that is none of the world's."""
    long_ms = int(lasts_s * 1000)
    kinds: dict[str, tuple[TroubleKind, tuple[str, ...], int]] = {
        "late-requests": ("delay", tuple(name for name in EFFECTS if name not in AT_ONCE), long_ms),
        "late-replies": ("delay_reply", EFFECTS, long_ms),
        "lost-replies": ("lose_reply", EFFECTS, 0),
        "fails-after": ("fail_after", EFFECTS, 0),
        "fails": ("fail", EFFECTS, 0),
        "outage": ("outage", EFFECTS, 0),
    }
    if fault == "old-reads":
        return [Trouble("lag", "payments.list", times=0, ms=long_ms, writes=LAG_WRITES)]
    if fault not in kinds:
        return []
    kind, where, ms = kinds[fault]
    return [Trouble(kind, each, times=0, ms=ms) for each in where]
