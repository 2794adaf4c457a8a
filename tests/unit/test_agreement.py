"""What the outside world's ledger and a run's records say is compared: whatever cannot be true in both is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from leasekeeper.run_records import Receipt
from leasekeeper.testing.outside.agreement import disagreements
from leasekeeper.testing.outside.ledger import Entry

KEY, OTHER_KEY = "a" * 64, "b" * 64

Story = tuple[list[Entry], list[Receipt]]
Change = Callable[[list[Entry], list[Receipt]], Story]


def record(seq: int, kind: str, step: str = "charge", key: str = KEY, *, token: int = 7, at_ms: int = 1000) -> Receipt:
    """A record as a run would have it."""
    data: dict[str, Any] = {"idem": key} if kind in ("intent", "before") else {}
    return Receipt(
        run="order/o-1",
        workflow="order",
        id="o-1",
        gen=1,
        seq=seq,
        kind=kind,
        step=step,
        data=data,
        token=token,
        claim="c",
        holder="h",
        life="l",
        nonce=f"n{seq}",
        namespace_id="i",
        prev="",
        at_ms=at_ms,
        hash="",
        key_id="",
        signature="",
        stored=b"",
    )


def line(number: int, kind: Any, *, key: str = KEY, token: str = "", at_ms: int = 1001, **rest: Any) -> Entry:
    """A line as the world would write it."""
    return Entry(number, at_ms, kind, 1, "payments", "charge", "o-1", key, token, **rest)


def story() -> Story:
    """A step that was called, killed, called again with the same key and done; a memo; a request of somebody without a key."""
    entries = [
        line(1, "received", token="0000000000000000007"),
        line(2, "applied", token="0000000000000000007"),
        line(3, "received", token="0000000000000000008", at_ms=1005),
        line(4, "answered", repeated=True, at_ms=1005),
        line(5, "received", key=""),
        line(6, "applied", key=""),
    ]
    records = [
        record(1, "opened", ""),
        record(2, "intent"),
        record(3, "opened", "", token=8),
        record(4, "intent", token=8, at_ms=1004),
        record(5, "outcome", token=8),
        record(6, "before", "ask", OTHER_KEY, token=8),
        record(7, "outcome", "ask", token=8),
    ]
    return entries, records


def test_a_story_of_a_kill_agrees() -> None:
    """A call that was repeated with its key is one effect of one step; what has no key is nobody's, a memo needs no effect."""
    assert disagreements(*story()) == []
    assert disagreements([], []) == []


def without(seq: int) -> Change:
    """The story without one record."""
    return lambda entries, records: (entries, [one for one in records if one.seq != seq])


def with_line(entry: Entry) -> Change:
    """The story with one more line."""
    return lambda entries, records: ([*entries, entry], records)


def with_record(receipt: Receipt) -> Change:
    """The story with one more record."""
    return lambda entries, records: (entries, [*records, receipt])


WRONG: dict[str, tuple[Change, str]] = {
    "a call that no intent knows": (with_line(line(7, "received", key=OTHER_KEY[:-1])), "no intent has"),
    "a call under a token without an intent": (without(4), "came with token 0000000000000000008"),
    "a call under another token": (with_line(line(7, "received", token="9")), "came with token 9, under which"),
    "a call before its intent": (
        lambda entries, records: ([replace(entries[0], at_ms=999), *entries[1:]], records),
        "before the intent of its step, record 2 of order/o-1",
    ),
    "an effect that happened twice": (with_line(line(7, "applied")), "payments.charge happened 2 times"),
    "an outcome of nothing": (
        lambda entries, records: ([one for one in entries if one.kind != "applied"], records),
        "record 5 of order/o-1, the outcome of step 'charge', is of something that did not happen",
    ),
    "an outcome without an intent": (with_record(record(8, "outcome", "mail")), "'mail', has no intent before it"),
    "an outcome before its intent": (
        lambda entries, records: (entries, [records[4], *records[:4], *records[5:]]),
        "'charge', has no intent before it",
    ),
    "two outcomes": (with_record(record(8, "outcome")), "is not the first one"),
    "one key of two steps": (with_record(record(8, "intent", "mail")), "belongs to 2 steps"),
    "two keys of one step": (with_record(record(8, "intent", key="c" * 64)), "step 'charge' of order/o-1 has 2 keys"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_is_found(what: str) -> None:
    """B28: each way in which the two can contradict each other gets its sentence, and no other one."""
    change, told = WRONG[what]
    (found,) = disagreements(*change(*story()))
    assert told in found


def test_what_happens_elsewhere_and_clocks_that_differ_are_no_contradiction() -> None:
    """Steps that act on something else are named, and two machines' clocks may be apart by so much."""
    entries, records = story()
    nothing = [one for one in entries if one.kind != "applied"]
    assert disagreements(nothing, records, elsewhere=["charge"]) == []
    early = [replace(one, at_ms=one.at_ms - 50) for one in entries]
    assert disagreements(early, records)
    assert disagreements(early, records, apart_ms=50) == []
