"""What the next owner does about an intent without an outcome: every combination of what it can know."""

from __future__ import annotations

from itertools import product

import pytest

from leasekeeper.protocol.doubt import KEY_AGE_MAX, Verdict, decide
from leasekeeper.run_records import Consistency, Observed

HELPS = [
    frozenset(
        name for name, is_set in zip(("dedupes", "fences", "probe", "at_most_once"), flags, strict=True) if is_set
    )
    for flags in product((False, True), repeat=4)
]
CONSISTENCIES: tuple[Consistency, ...] = ("strong", "eventual")
SEEN = [None, *(Observed(1, applied, each) for applied, each in product((True, False, None), CONSISTENCIES))]
TTL_S = 100.0
# Ages of a key, and whether the callee surely still knows it.
AGES = [
    (-1e9, False),
    (-20.1, False),
    (-19.9, True),
    (-1.0, True),
    (0.0, True),
    (79.9, True),
    (80.0, False),
    (100.0, False),
    (1e9, False),
]


def safe(helps: frozenset[str], seen: Observed | None, *, known: bool) -> bool:
    """Whether calling again cannot apply the effect twice, from first principles."""
    if "at_most_once" in helps or (seen is not None and seen.applied):
        return False
    surely_not = seen is not None and seen.applied is False and seen.consistency == "strong" and "probe" in helps
    return surely_not or ("dedupes" in helps and known)


@pytest.mark.parametrize("helps", HELPS, ids=lambda helps: "+".join(sorted(helps)) or "nothing")
@pytest.mark.parametrize(
    "seen", SEEN, ids=lambda seen: "no preflight" if seen is None else f"{seen.applied} {seen.consistency}"
)
def test_every_combination(helps: frozenset[str], seen: Observed | None) -> None:
    """A13, A17: called again just where that is safe, adopted just where it was seen, and otherwise an operator is asked."""
    for age_s, known in AGES:
        verdict, why = decide(helps, seen, age_s=age_s, key_ttl_s=TTL_S)
        assert why
        if seen is not None and seen.applied:
            assert verdict is Verdict.ADOPT
        elif safe(helps, seen, known=known):
            assert verdict is Verdict.CALL
        else:
            assert verdict is Verdict.STOP


def test_negative_evidence_of_an_eventual_read_never_authorises_a_repeat() -> None:
    """A17: what is not there in a copy that lags may be there already; declared a probe or not."""
    seen = Observed(None, applied=False, consistency="eventual")
    for helps in HELPS:
        if "dedupes" not in helps:
            assert decide(helps, seen, age_s=0.0, key_ttl_s=TTL_S)[0] is Verdict.STOP


def test_a_memo_is_always_asked_again() -> None:
    """B21: a memo only asks, whatever was seen or declared."""
    for helps, seen in product(HELPS, SEEN):
        assert decide(helps, seen, age_s=1e9, key_ttl_s=0.0, memo=True)[0] is Verdict.CALL


def test_the_age_of_a_key_leaves_room_for_two_clocks() -> None:
    """A repeat with a key stops at 0.8 of the time for which the callee remembers it."""
    assert KEY_AGE_MAX == 0.8
    assert decide(frozenset(["dedupes"]), None, age_s=float("nan"), key_ttl_s=TTL_S)[0] is Verdict.STOP
