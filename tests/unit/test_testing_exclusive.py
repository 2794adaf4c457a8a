"""assert_exclusive and its history: overlaps, tokens that go back and empty histories are caught, the rest passes."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from leasekeeper.errors import ConfigError
from leasekeeper.testing import History, Span, assert_exclusive
from leasekeeper.testing.trial import Writer

A, B = Writer("replica-a", 7, "claim-a"), Writer("replica-b", 8, "claim-b")


def span(owner: Writer, begin_s: float, end_s: float) -> Span:
    """A span of one of the two."""
    return Span(owner.token, owner.claim, begin_s, end_s, owner.holder)


def complaint(*spans: Span, owners: int = 1) -> str:
    """What assert_exclusive says of a bad history."""
    with pytest.raises(AssertionError) as caught:
        assert_exclusive(spans, owners=owners)
    return str(caught.value)


def test_owners_in_turn_pass() -> None:
    """One after the other, and many spans of one owner side by side, are exclusive."""
    assert_exclusive([span(B, 2, 3), span(A, 0, 1), span(A, 0.5, 2)], owners=2)


def test_an_overlap_is_told_with_both_owners_and_its_length() -> None:
    """Two owners at once: who, for how long, and a table with arrows at the two."""
    said = complaint(span(A, 10, 10.1), span(A, 11, 13), span(B, 12.5, 14))
    assert said.startswith("two owners acted at once, for 0.500 s: replica-a (token 7) and replica-b (token 8)")
    assert "->     1.000       3.000  replica-a (token 7)" in said
    assert "->     2.500       4.000  replica-b (token 8)" in said
    assert "       0.000       0.100  replica-a (token 7)" in said


def test_an_overlap_with_one_that_began_long_before_is_found() -> None:
    """A short span in between does not hide a long one."""
    assert "at once" in complaint(span(A, 0, 100), span(A, 1, 2), span(B, 50, 51))


def test_a_token_that_goes_back_is_told() -> None:
    """G2: an older owner after a newer one is wrong also where they do not overlap."""
    assert "an older owner acted after a newer one: replica-a (token 7)" in complaint(span(B, 0, 1), span(A, 2, 3))


def test_one_token_of_two_claims_is_told() -> None:
    """A number that two claims had is wrong, too."""
    assert "with one token" in complaint(span(A, 0, 1), Span(7, "claim-c", 2, 3, "replica-c"))


def test_a_history_in_which_nothing_happened_proves_nothing() -> None:
    """Fewer owners than asked for fail, none of them always."""
    assert "nothing was proven" in complaint()
    assert "1 of the 2 owners" in complaint(span(A, 0, 1), owners=2)
    with pytest.raises(ConfigError, match="owners"):
        assert_exclusive([], owners=0)


def test_a_history_of_threads() -> None:
    """What threads do goes into one history, in the order in which it began."""
    history = History()

    def act(owner: Writer) -> None:
        with history.acting(owner):
            pass

    for owner in (A, B):
        thread = threading.Thread(target=act, args=(owner,))
        thread.start()
        thread.join()
    history.acted(B)
    assert [one.token for one in history] == [7, 8, 8]
    assert_exclusive(history, owners=2)


def test_what_is_under_way_counts() -> None:
    """An owner that is still acting overlaps with whoever comes meanwhile."""
    history = History()
    with history.acting(A):
        history.acted(B)
        with pytest.raises(AssertionError, match="at once"):
            assert_exclusive(history)


def write_in_another_process(path: Path) -> None:
    """Act once, and die in the middle of acting once more."""
    history = History(path)
    history.acted(A)
    with history.acting(A):
        os._exit(0)


def test_a_history_of_processes(tmp_path: Path) -> None:
    """Processes write to one file; what a dead one had under way ends where it began; half a line is passed over."""
    path = tmp_path / "history.jsonl"
    child = multiprocessing.get_context("spawn").Process(target=write_in_another_process, args=(path,))
    child.start()
    child.join(60)
    history = History(path)
    with path.open("a") as file:
        file.write(json.dumps({"span": "torn", "token": 7})[:-3])
    with path.open("a") as file:
        file.write("\n")
    history.acted(B)
    assert [one.token for one in history] == [7, 7, 8]
    assert history.spans()[1].begin_s == history.spans()[1].end_s
    assert_exclusive(history, owners=2)
