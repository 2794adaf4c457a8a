"""A run's states: an update is applied to what is there, a commit is refused on what is old, and a step's state goes with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leasekeeper import (
    Keeper,
    Misuse,
    StaleCheckpoint,
)
from tests.crowds import Count


def test_an_update_is_applied_anew_to_what_is_there(keeper: Keeper) -> None:
    """B9: somebody is faster between read and commit: the function runs again on the fresh state; no effect does."""
    calls: list[int] = []
    with keeper.run("order", id="1", signer=None) as run:
        run.do("effect", calls.append, 1)
        mine, other = run.checkpoint("count", Count), run.checkpoint("count", Count)
        seen: list[int] = []

        def add(now: Count | None) -> Count:
            seen.append(0 if now is None else now.total)
            if len(seen) <= 2:
                other.update(lambda at: Count((at or Count()).total + 10))
            return Count((now or Count()).total + 1)

        assert mine.update(add) == Count(21)
        assert seen == [0, 10, 20]
        assert mine.read() == Count(21)
        with pytest.raises(StaleCheckpoint):
            mine.update(lambda now: (other.update(lambda at: Count(99)), Count(1))[1], tries=3)
    assert calls == [1]


def test_a_commit_on_an_old_state_is_refused(keeper: Keeper) -> None:
    """B8: commit and put change what this handle has read, or nothing."""
    with keeper.run("order", id="1", signer=None) as run:
        mine, other = run.checkpoint("count", Count), run.checkpoint("count", Count)
        other.commit(total=5)
        changes: list[Callable[[], Any]] = [lambda: mine.commit(total=1), lambda: mine.put(Count(2))]
        for change in changes:
            with pytest.raises(StaleCheckpoint) as told:
                change()
            assert (told.value.expected, told.value.found) == (0, 1)
        assert mine.read() == Count(5)
        assert mine.commit(total=6) == Count(6)


def test_a_state_goes_with_its_step(keeper: Keeper) -> None:
    """B5: a step's outcome and the state it makes are one transaction; who was faster with the state does not undo the step."""
    with keeper.run("order", id="1", signer=None) as run:
        state, other = run.checkpoint("count", Count), run.checkpoint("count", Count)
        assert run.do("one", lambda: 1, commit=lambda result: state.change(total=result)) == 1
        assert state.value == Count(1)
        record = run.last()
        assert record.kind == "outcome"
        assert record.data["checkpoint"]["data"] == {"total": 1}
        other.read()
        other.commit(total=50)
        with pytest.raises(StaleCheckpoint):
            run.do("two", lambda: 2, commit=lambda result: state.change(total=result))
        assert run.do("two", lambda: 3) == 2
        assert state.read() == Count(50)


def test_a_commit_that_is_none(keeper: Keeper) -> None:
    """What ``commit`` makes is no change, or of another run's state, or fails: the outcome lands alone, and who asked is told."""
    with keeper.run("order", id="1", signer=None) as run, keeper.run("order", id="2", signer=None) as other:
        foreign = other.checkpoint("count", Count)
        bad: list[Callable[[Any], Any]] = [
            lambda result: None,
            lambda result: {"total": result},
            lambda result: foreign.change(total=result),
            lambda result: run.checkpoint("count", Count).change(nothing=result),
        ]
        for number, commit in enumerate(bad):
            with pytest.raises(Misuse):
                run.do(f"s{number}", lambda number=number: number, commit=commit)
            assert run.do(f"s{number}", lambda: -1) == number
        assert foreign.read() is None
        assert run.checkpoint("count", Count).value is None


def test_what_became_of_a_value_is_not_committed(keeper: Keeper) -> None:
    """A19: a state that the program changed in its own memory does not slip into the next change."""
    with keeper.run("order", id="1", signer=None) as run:
        state = run.checkpoint("any", dict)
        state.commit(a=1)
        assert state.value is not None
        state.value["sneaked"] = True
        run.do("one", lambda: 1, commit=lambda result: state.change(b=result))
        assert state.read() == {"a": 1, "b": 1}
        assert state.value is not None
        state.value["sneaked"] = True
        assert state.commit(c=1) == {"a": 1, "b": 1, "c": 1}


def test_whatever_a_handle_remembers_wrongly_writes_nothing_wrong(keeper: Keeper) -> None:
    """A19, B10: the remembered state or revision of a handle, changed: the commit is right or refused."""
    with keeper.run("order", id="1", signer=None) as run:
        for wrong in ((None, 0), ("loaded", 1), (None, "revision")):
            state = run.checkpoint("any", dict)
            state.commit(a=1)
            loaded, revision = state._seen
            state._seen = (loaded if wrong[0] else None, revision if wrong[1] == "revision" else int(wrong[1]))
            try:
                state.commit(b=2)
            except StaleCheckpoint:
                pass
            found = state.read()
            assert found is not None
            assert found["a"] == 1
            state.put({})
