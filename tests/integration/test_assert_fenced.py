"""assert_fenced lets right fences pass and catches each wrong one, by the rule that it breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasekeeper.errors import ConfigError, Misuse
from leasekeeper.testing import assert_fenced
from leasekeeper.testing.fenced import RULES
from leasekeeper.testing.trial import Writer
from tests import fences

ABOVE_FLOATS = "numbers near 9007199254740996"


def complaint(adapter: object, **given: object) -> str:
    """What assert_fenced says of a wrong fence."""
    with pytest.raises(AssertionError) as caught:
        assert_fenced(adapter, **given)  # type: ignore[arg-type]
    return str(caught.value)


def broken(text: str) -> set[str]:
    """The names of the rules that a complaint names."""
    return {rule.name for rule in RULES if f"\n{rule.name}: " in text}


def test_a_right_fence_passes() -> None:
    """The rule itself, under a lock, breaks none."""
    assert_fenced(fences.Guarded())


def test_our_own_guard_passes(tmp_path: Path) -> None:
    """G4: guards.sqlite obeys every rule, also between two connections that write at once."""
    assert_fenced(fences.Sqlite(tmp_path / "data.db"))


def test_a_function_is_enough() -> None:
    """An adapter that can only write is judged by what it accepts and refuses."""
    assert_fenced(fences.Guarded().write)
    assert "equal token of another claim" in broken(complaint(fences.AtLeast().write))


@pytest.mark.parametrize(
    ("kind", "rules"),
    [
        (fences.Unfenced, {"older owner", "older owner never seen", "replayed", "after a restore", ABOVE_FLOATS}),
        (fences.AtLeast, {"equal token of another claim"}),
        (fences.Larger, {"owners in order"}),
        (fences.Floating, {ABOVE_FLOATS}),
        (fences.JsonFile, {ABOVE_FLOATS}),
        (fences.AsText, {"numbers near 10"}),
        (fences.RevisionOnly, {"after a restore"}),
        (fences.Forgetful, {"older owner never seen"}),
        (fences.WritesFirst, {"older owner"}),
        (fences.Racy, {"two at once"}),
        (fences.LockedTooLate, {"two at once"}),
        (fences.InMemory, {"reopened"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_wrong_fence_is_caught(kind: type[fences.Guarded], rules: set[str]) -> None:
    """Each usual mistake breaks the rule that it must break."""
    assert rules <= broken(complaint(kind()))


@pytest.mark.parametrize("kind", [fences.AtLeast, fences.InMemory, fences.Racy])
def test_a_mistake_of_one_kind_breaks_one_rule(kind: type[fences.Guarded]) -> None:
    """The complaint does not cry wolf: a fence with one mistake is told of that one."""
    found = broken(complaint(kind())) - {"many at once"}
    assert len(found) == 1


def test_the_complaint_tells_the_story() -> None:
    """It names the adapter, the rule, each write in order, the wrong one, and what would be right."""
    said = complaint(fences.AtLeast())
    assert said.startswith("AtLeast is not fenced: it breaks 1 of ")
    assert "so `>=` is wrong" in said
    assert "1. one, token 7 of claim 'a', writes 'v1 of one': accepted\n" in said
    assert (
        "2. other, token 7 of claim 'b', writes 'v2 of other': accepted: WRONG, must be refused: the token is equal"
        in said
    )
    assert "leasekeeper.fencing.admits" in said


def test_a_race_is_shown_by_the_line_that_was_held() -> None:
    """Where a newer owner came in between is named by file, line and code."""
    said = complaint(fences.LockedTooLate())
    assert "held in fences.py:" in said
    assert "before `self.values[resource] = value`" in said


def test_a_refusal_may_be_an_exception_of_ones_own() -> None:
    """What the adapter raises to refuse is told by ``refuses``; anything else is a failure and is named."""

    class Gone(Exception):
        """The resource's own word."""

    store = fences.Guarded()

    def write(resource: str, lease: Writer, value: str) -> None:
        if not store.write(resource, lease, value):
            raise Gone("too old")

    assert_fenced(write, refuses=Gone)
    assert "failed (Gone: too old): WRONG, must be refused" in complaint(write)


def test_an_adapter_that_breaks_is_named_with_its_error() -> None:
    """A store that cannot hold a token is told so by its own exception."""

    def write(resource: str, lease: Writer, value: str) -> None:
        if lease.token >= 1 << 31:
            raise OverflowError("integer out of range")
        if not store.write(resource, lease, value):
            raise ValueError(value)

    store = fences.Guarded()
    said = complaint(write, refuses=ValueError)
    assert {"numbers near 2147483648", "numbers near 4294967296", "after a restore"} <= broken(said)
    assert "failed (OverflowError: integer out of range)" in said


def test_a_store_of_one_thread_is_told_that_nothing_was_tried() -> None:
    """An adapter that fails in every other thread has not been tried at once, which is a complaint, too."""
    import threading

    store, home = fences.Guarded(), threading.get_ident()

    def write(resource: str, lease: Writer, value: str) -> bool:
        if threading.get_ident() != home:
            raise RuntimeError("wrong thread")
        return store.write(resource, lease, value)

    said = complaint(write)
    assert "every write from a thread of its own failed" in said
    assert "RuntimeError: wrong thread" in said


def test_a_rule_can_be_left_out() -> None:
    """A resource that need not obey a rule says so by name; a name that is none is an error."""
    assert_fenced(fences.InMemory(), leave_out=("reopened",))
    with pytest.raises(ConfigError, match="leave_out"):
        assert_fenced(fences.InMemory(), leave_out=("reopend",))


def test_what_cannot_write_is_no_adapter() -> None:
    """Neither an object without write() nor a coroutine function is taken for one."""

    async def write(resource: str, lease: Writer, value: str) -> None:
        pass

    with pytest.raises(ConfigError, match="write"):
        assert_fenced(object())
    with pytest.raises(Misuse, match="coroutine"):
        assert_fenced(write)
