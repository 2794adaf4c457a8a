"""A run object that owns nothing any more: left, lost, forked or copied, it writes nothing, and nothing is kept of it."""

from __future__ import annotations

import copy
import gc
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from leasekeeper import (
    InDoubt,
    Keeper,
    LeaseLost,
    Misuse,
    RunFinished,
)
from leasekeeper.runs.run import Run
from tests.crowds import Count, chain_is_whole, in_threads
from tests.raw import RawEtcd
from tests.support import until


def uses(run: Run) -> list[Callable[[], Any]]:
    """Everything that could write."""
    state = run.checkpoint("count", Count)
    phase = run.phase("keys", {"a": ["b"]})
    return [
        lambda: run.do("late", lambda: 1),
        lambda: run.memo("late memo", lambda: 1),
        lambda: state.commit(total=9),
        lambda: state.put(Count(9)),
        lambda: state.update(lambda now: Count(9)),
        lambda: phase.move("b"),
        lambda: run.checkpoint("another", Count).commit(total=1),
    ]


def test_after_the_block(keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """A19: once the block is left, nothing can be added through the run, its states or its phases; nothing is called."""
    with keeper.run("order", id="1", signer=None) as run:
        late = uses(run)
    revision = raw.revision()
    for use in late:
        with pytest.raises(LeaseLost) as told:
            use()
        assert told.value.reason == "released"
    assert raw.revision() == revision
    with pytest.raises(RunFinished), keeper.run("order", id="1", signer=None) as again:
        again.do("late", lambda: 1)


def test_after_the_lease_is_lost(keeper: Keeper, raw: RawEtcd) -> None:
    """A19: when somebody else may own the run, every use says LeaseLost, and the records are as they were."""

    def lose() -> None:
        with keeper.run("order", id="1", signer=None, ttl=5) as run:
            late.extend(uses(run))
            raw.delete(run.lease.key)
            for use in late:
                with pytest.raises(LeaseLost):
                    use()
            records.append(chain_is_whole(keeper))
            run.do("once more", lambda: 1)

    late: list[Callable[[], Any]] = []
    records: list[int] = []
    with pytest.raises(LeaseLost):
        lose()
    assert records == [1] == [chain_is_whole(keeper)]


def test_lost_while_the_call_is_under_way(keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """The lease goes during a call: LeaseLost, no outcome, a hint of what was seen; the next owner is in doubt."""

    def effect() -> str:
        raw.delete(run.lease.key)
        return "seen"

    with pytest.raises(LeaseLost), keeper.run("order", id="1", signer=None, ttl=5) as run:
        run.do("s", effect)
    (late,) = raw.keys(f"leasekeeper/{namespace}/run/order/1/late/")
    assert b'"seen"' in late.value
    with pytest.raises(InDoubt), keeper.run("order", id="1", signer=None, ttl=5) as run:
        run.do("s", effect)


def test_in_a_forked_child(keeper: Keeper, raw: RawEtcd) -> None:
    """In the child of a fork the run is lost; the parent's goes on, and the child has added nothing."""
    with keeper.run("order", id="1", signer=None) as run:
        run.do("one", lambda: 1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run.do("two", lambda: 1)
            except (LeaseLost, Misuse):
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert run.do("three", lambda: 3) == 3
        assert [step.key for step in run.steps()] == ["one", "three"]


def test_it_is_not_pickled_or_copied(keeper: Keeper) -> None:
    """A run, a state, a phase: none is pickled or copied; each says so, and shows no more than its name."""
    with keeper.run("order", id="1", signer=None) as run:
        for each in (run, run.checkpoint("count", Count), run.phase("keys", {"a": []})):
            for use in (pickle.dumps, copy.deepcopy):
                with pytest.raises(TypeError, match="cannot pickle or copy"):
                    use(each)
            assert "order/1" in repr(each)
        with pytest.raises(TypeError, match="cannot pickle or copy"):
            copy.copy(run)


def test_nothing_is_kept_of_a_run_that_is_over(keeper: Keeper) -> None:
    """A run that was left is garbage at once: neither keeper nor heart holds it."""
    import weakref

    def live() -> weakref.ref[Run]:
        with keeper.run("order", id="1", signer=None) as run:
            run.do("one", lambda: 1)
            in_threads(4, lambda index: run.do(f"t{index}", lambda: index))
            return weakref.ref(run)

    ref = live()

    def gone() -> bool:
        gc.collect()
        return ref() is None

    until(gone)
