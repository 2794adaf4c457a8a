"""Time travel: the state of an exported run at any record, and none where a record is not believed."""

from __future__ import annotations

import io
from typing import Any

import pytest

from leasekeeper.errors import ConfigError
from leasekeeper.run_errors import CorruptState
from leasekeeper.runs.export import state_at
from leasekeeper.signing import SigningKey
from tests.chains import (
    Author,
    rewritten,
    ring_of,
    signing,
)
from tests.exports import (
    exported,
)


def story(key: SigningKey | None = None) -> list[bytes]:
    """A run with a bit of everything."""
    author = Author(key)
    checkpoint = {"min_reader": 1, "name": "state", "schema": "OrderState", "version": 1}
    author.write("opened", {"restarts": 0})
    author.write("intent", {"attempt": 1}, step="charge")
    author.write("outcome", {"checkpoint": {**checkpoint, "data": {"paid": 1}, "n": 1}, "result": 1}, step="charge")
    author.write("phase", {"from": "staged", "n": 1, "name": "ca", "to": "distributed"})
    author.write("before", {"attempt": 1}, step="plan")
    author.write("raised", {"applied": None}, step="plan")
    author.write("in_doubt", {"why": "nobody can tell"}, step="plan")
    author.write("resolved", {"applied": False}, step="plan")
    author.write("before", {"attempt": 2}, step="plan")
    author.write("raised", {"applied": False}, step="plan")
    author.write("conflict", {"pre": None}, step="ship")
    author.write("checkpoint", {**checkpoint, "data": {"paid": 2}, "n": 2})
    author.write("finished", {})
    return author.stored


def test_a_run_is_seen_as_it_was_at_any_record() -> None:
    """State at a record is what the records up to it say, and nothing of those after it."""
    data = exported(story())
    seen = [state_at(io.BytesIO(data), seq) for seq in range(14)]
    assert seen[0] == {"status": "running", "steps": {}, "checkpoints": {}, "phases": {}}
    assert [state["steps"].get("charge") for state in seen] == [None, None, "intent", *["done"] * 11]
    plan = [None] * 5 + ["intent", "intent", "in_doubt", "cleared", "intent", *["cleared"] * 4]
    assert [state["steps"].get("plan") for state in seen] == plan
    assert [state["status"] for state in seen] == ["running"] * 7 + ["in_doubt"] + ["running"] * 5 + ["finished"]
    paid = [state["checkpoints"].get("state", {}).get("paid") for state in seen]
    assert paid == [None] * 3 + [1] * 9 + [2] * 2
    assert [state["phases"].get("ca") for state in seen] == [None] * 4 + ["distributed"] * 10
    assert seen[-1]["steps"] == {"charge": "done", "plan": "cleared", "ship": "conflict"}


def test_an_error_that_says_nothing_settles_nothing() -> None:
    """Only an effect that surely did not happen clears its step."""
    for applied, state in ((None, "intent"), (True, "intent"), (False, "cleared")):
        author = Author()
        author.write("intent", {}, step="step")
        author.write("raised", {"applied": applied}, step="step")
        assert state_at(io.BytesIO(exported(author.stored)), 2)["steps"] == {"step": state}


def test_a_quarantine_and_a_doubt_end_by_an_operators_word() -> None:
    """Lifting a quarantine leaves a run in doubt as long as a step is, and a word on that step ends it."""
    author = Author()
    author.write("opened", {})
    for step in ("one", "two"):
        author.write("intent", {}, step=step)
        author.write("in_doubt", {}, step=step)
    author.write("quarantined", {"restarts": 11})
    author.write("resolved", {"applied": False})
    author.write("resolved", {"applied": True}, step="one")
    author.write("resolved", {"applied": False}, step="two")
    data = exported(author.stored)
    seen = [state_at(io.BytesIO(data), seq) for seq in range(5, 10)]
    assert [state["status"] for state in seen] == ["in_doubt", "quarantined", "in_doubt", "in_doubt", "running"]
    assert [state["steps"]["one"] for state in seen] == ["in_doubt"] * 3 + ["done"] * 2
    assert seen[-1]["steps"] == {"one": "done", "two": "cleared"}


def test_there_is_no_state_beyond_what_is_recorded_or_believed() -> None:
    """A number that there is not is a ConfigError; one from the first bad record on is CorruptState, though it could be read."""
    key = signing("hmac")
    stored = story(key)
    data = exported(stored, key)
    for seq in (14, -1, True, "1"):
        with pytest.raises(ConfigError, match="seq"):
            state_at(io.BytesIO(data), seq, ring_of(key))  # type: ignore[arg-type]
    stored[5] = rewritten(stored[5], lambda body: body.update(data={"applied": True}))
    tampered = exported(stored, key)
    assert state_at(io.BytesIO(tampered), 5, ring_of(key))["steps"] == {"charge": "done", "plan": "intent"}
    for seq in (6, 13):
        with pytest.raises(CorruptState, match="record 6 is forged"):
            state_at(io.BytesIO(tampered), seq, ring_of(key))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("checkpoint", {}),
        ("checkpoint", {"name": 5, "schema": "S", "version": 1, "min_reader": 1, "n": 1, "data": {}}),
        ("checkpoint", {"name": "n", "schema": "S", "version": 1, "min_reader": 1, "n": 1, "data": None}),
        ("outcome", {"checkpoint": []}),
        ("phase", {"name": "x"}),
        ("raised", {}),
        ("raised", {"applied": "no"}),
        ("resolved", {}),
        ("resolved", {"applied": None}),
    ],
)
def test_a_record_that_its_kind_does_not_allow_is_corrupt(kind: str, data: dict[str, Any]) -> None:
    """What cannot be understood has no state, rather than a part of one."""
    author = Author()
    author.write()
    author.write(kind, data, step="step")
    stream = io.BytesIO(exported(author.stored))
    with pytest.raises(CorruptState, match=f"no record of kind '{kind}'"):
        state_at(stream, 2)
