"""An intent without an outcome: was the effect applied? What the next owner does with what it knows.

===========================================  =====================================================================
it knows                                     it does
===========================================  =====================================================================
the preflight sees the effect                adopt it: nothing is seen before it happened
the preflight does not, and is a ``probe``   call again: a strongly consistent "not applied" can be believed
otherwise, and the callee ``dedupes``        call again with the same key, while the key is younger than 0.8 of the
                                             time for which the callee remembers it
otherwise                                    stop: an operator decides
===========================================  =====================================================================

A memo is repeated always: it only asks. Nothing is ever decided by how the one before ended.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasekeeper.run_records import Observed

__all__ = ["KEY_AGE_MAX", "Verdict", "decide"]

# The rest is for clocks of two machines that differ and for the way to the callee.
KEY_AGE_MAX = 0.8


class Verdict(Enum):
    """What to do about an intent without an outcome."""

    ADOPT = "it was applied: record it"
    CALL = "call again, with the same key"
    STOP = "nobody can tell: an operator decides"


def decide(
    helps: frozenset[str], observed: Observed | None, *, age_s: float, key_ttl_s: float, memo: bool = False
) -> tuple[Verdict, str]:
    """What to do, and why.

    Args:
        helps: what the effect declares, of ``dedupes fences probe at_most_once``.
        observed: what the preflight saw just now; None: there is no preflight.
        age_s: how long ago the idempotency key was sent for the first time, by wall clocks of perhaps two machines.
        key_ttl_s: how long the callee remembers a key; for ``dedupes``.
        memo: it is a memo.
    """
    if memo:
        return Verdict.CALL, "a memo is asked again"
    if observed is not None and observed.applied:
        return Verdict.ADOPT, "the preflight sees it applied"
    if "at_most_once" in helps:
        return Verdict.STOP, f"{_unseen(observed)}, and the effect is declared at_most_once"
    believed = observed is not None and observed.applied is False and observed.consistency == "strong"
    if believed and "probe" in helps:
        return Verdict.CALL, "the preflight, strongly consistent, sees that it was not applied"
    if "dedupes" not in helps:
        return Verdict.STOP, f"{_unseen(observed)}, and the callee is not declared to know a repeated key (dedupes)"
    if not -key_ttl_s * (1 - KEY_AGE_MAX) <= age_s < key_ttl_s * KEY_AGE_MAX:
        return Verdict.STOP, f"its key is {age_s:.0f} s old, and the callee remembers it for {key_ttl_s:.0f} s"
    return Verdict.CALL, "the callee applies a repeated key once"


def _unseen(observed: Observed | None) -> str:
    if observed is None:
        return "there is no preflight to ask"
    if observed.applied is None:
        return "the preflight cannot tell"
    if observed.consistency == "eventual":
        return "the preflight does not see it applied, but what it reads may be old"
    return "the preflight does not see it applied, but is not declared to be believed (probe)"
