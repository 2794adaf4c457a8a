"""How owners and queues look to people: the cells of the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.cli.output import styled
from leasekeeper.cli.shapes import age_s
from leasekeeper.cli.standing import Seen, Standing
from leasekeeper.cli.text import clip, lease_hex, short_duration

if TYPE_CHECKING:
    from rich.text import Text

    from leasekeeper.protocol.keys import Claim

__all__ = ["age", "holder", "time_left", "who"]

NOBODY = "-"
REMARKS = {"foreign": "(foreign)", "newer": "(newer format)", "corrupt": "(corrupt record)"}


def holder(claim: Claim) -> Text:
    """Who holds it, and whether its record is odd."""
    name, remark = clip(claim.holder), REMARKS.get(claim.flag, "")
    if not name and not remark:
        return styled(NOBODY, "dim")
    return styled(name).append(" " if name and remark else "").append(remark, "yellow")


def age(claim: Claim, read_at: float) -> Text:
    """Since when."""
    seconds = age_s(claim, read_at)
    return styled(NOBODY, "dim") if seconds is None else styled(short_duration(seconds))


def time_left(seen: Seen) -> Text:
    """How long etcd will keep the claim at least."""
    match seen.standing:
        case Standing.ALIVE:
            return styled(f"at least {seen.left_s} s")
        case Standing.EXPIRING:
            return styled("expiring", "yellow")
        case Standing.OVERDUE:
            late = f" by {-seen.left_s} s" if seen.left_s else ""
            return styled(f"OVERDUE{late}", "bold red")
        case Standing.LEASELESS:
            return styled("no lease", "bold red")
    return styled("unknown", "dim")


def who(claim: Claim) -> str:
    """A claim in a sentence."""
    name = clip(claim.holder) if claim.holder else "somebody who left no name"
    lease = f"lease {lease_hex(claim.lease_id)}" if claim.lease_id else "no lease, so it never goes by itself"
    return f"{name}, token {claim.token}, {lease}"
