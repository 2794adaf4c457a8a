"""What `watch` tells: the changes between two looks, each once, in an order that makes sense."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.cli.changes import Change, Queues, changes
from leasekeeper.protocol.keys import Claim


def claim(revision: int, key: str = "") -> Claim:
    """A claim, told from others by its revision."""
    key = key or f"k{revision}"
    return Claim("n", key, revision, revision, revision, 1, nonce=f"nonce-{revision}")


def told(before: list[Claim], after: list[Claim]) -> list[tuple[str, int]]:
    """Events and the tokens they are about."""
    seen = changes({"n": before} if before else {}, {"n": after} if after else {})
    return [(change.event, change.claim.token if change.claim else 0) for change in seen]


def test_a_handoff_tells_who_went_before_who_came() -> None:
    """When an owner goes, its successor is told after it, and newcomers after that."""
    assert told([claim(1), claim(2)], [claim(2), claim(3)]) == [("ended", 1), ("owner", 2), ("waiting", 3)]


def test_a_name_becomes_owned_and_free() -> None:
    """The first claim makes an owner; the last one's end makes the name free."""
    assert told([], [claim(1)]) == [("owner", 1)]
    assert told([claim(1)], []) == [("ended", 1), ("free", 0)]


def test_a_waiter_that_leaves_changes_no_owner() -> None:
    """Who stops waiting is told, and nothing else."""
    assert told([claim(1), claim(2)], [claim(1)]) == [("left", 2)]


def test_a_key_used_again_is_another_claim() -> None:
    """The same key with another create revision, or after a restore with another nonce, is a new owner."""
    assert told([claim(1, "k")], [claim(5, "k")]) == [("ended", 1), ("owner", 5)]
    again = Claim("n", "k", 1, 1, 1, 1, nonce="other")
    assert told([claim(1, "k")], [again]) == [("ended", 1), ("owner", 1)]


queues = st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(1, 9), min_size=1, unique=True).map(sorted))


@given(queues, queues)
def test_changes_lead_from_one_look_to_the_next(before: dict[str, list[int]], after: dict[str, list[int]]) -> None:
    """Whoever applies the events to the first look gets the second; without a change there is no event."""
    old, new = ({name: [claim(r) for r in rs] for name, rs in look.items()} for look in (before, after))
    seen = changes(old, new)
    assert _applied(old, seen) == {name: {c.token for c in claims} for name, claims in new.items()}
    assert bool(seen) == (before != after)
    owners = {c.name: c.claim.token for c in seen if c.event == "owner" and c.claim is not None}
    assert owners == {n: cs[0].token for n, cs in new.items() if n not in old or old[n][0].token != cs[0].token}


def _applied(old: Queues, seen: list[Change]) -> dict[str, set[int]]:
    stand = {name: {c.token for c in claims} for name, claims in old.items()}
    for change in seen:
        tokens = stand.setdefault(change.name, set())
        if change.claim is not None and change.event in ("ended", "left"):
            tokens.remove(change.claim.token)
        elif change.claim is not None:
            tokens.add(change.claim.token)
    return {name: tokens for name, tokens in stand.items() if tokens}
