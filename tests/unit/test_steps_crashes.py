"""Steps with an outside world, crashed at every point in every way: how often something was applied, and what is recorded."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasekeeper.run_errors import InDoubt
from tests.model.steps import Crash, Crashed, Life, Outside, Way, Works
from tests.model.works import BY_NAME, KINDS, attempt, check_records

WAYS: tuple[Way, ...] = ("before", "after", "late")
TWO_WAYS: tuple[tuple[Way, Way], ...] = (("before", "after"), ("after", "before"), ("late", "after"))
# These always come to their end by themselves.
SURE = {"dedupes", "dedupes and lags", "probe", "all of it", "memo"}
LIVES_MAX = 12


def check_world(works: Works, outside: Outside) -> None:
    """How often something may have been applied and asked."""
    assert len(set(outside.requests)) <= 1, "a key that changed"
    if works.kind == "do":
        assert len(outside.applied) <= 1, "applied twice"
    if works.name not in SURE:
        assert len(outside.requests) <= 1, "called again without help"


def live_through(works: Works, crashes: list[Crash]) -> tuple[Outside, Any]:
    """Lives that crash, and then ones that do not, until the step ends: its result, or InDoubt."""
    outside = works.outside()
    life = Life(crash=crashes[0] if crashes else None)
    for number in range(LIVES_MAX):
        try:
            result: Any = attempt(life, works, outside)
        except Crashed:
            result = None
        except InDoubt as doubt:
            result = doubt
        check_world(works, outside)
        if result is not None:
            check_records(life)
            return outside, result
        life.end()
        life = Life(life.world, crashes[number + 1] if number + 1 < len(crashes) else None)
        life.world.arrive()  # what was still on its way: its owner is gone
        check_records(life)
    raise AssertionError("it does not come to its end")


def points(works: Works) -> int:
    """How many points the step passes where nothing happens."""
    life = Life()
    attempt(life, works, works.outside())
    return life.points


@pytest.mark.parametrize("name", BY_NAME)
def test_without_a_crash(name: str) -> None:
    """A step is called once, costs two transactions beside what it asks, and gives what is recorded, now and ever after."""
    works = BY_NAME[name]
    life = Life()
    outside = works.outside()
    assert attempt(life, works, outside) == 1
    assert life.points == 3 + works.asks + works.verifies
    assert attempt(life, works, outside) == 1
    life.end()
    again = Life(life.world)
    assert attempt(again, works, outside) == 1
    assert again.points <= 1 + works.verifies
    assert len(outside.requests) == 1
    check_records(again)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_crash_at_every_point(name: str) -> None:
    """B1, A4, A13, A18: killed at each point in each way, the step is applied at most once, and ends or is in doubt."""
    works = BY_NAME[name]
    for at, way in product(range(points(works)), WAYS):
        outside, result = live_through(works, [Crash(at, way)])
        if works.name in SURE:
            assert result == len(outside.applied) == 1 or works.kind == "memo"
        elif isinstance(result, InDoubt):
            assert result.step == "s"
        else:
            assert result == len(outside.applied) == 1


@pytest.mark.parametrize("name", BY_NAME)
def test_two_crashes_at_every_two_points(name: str) -> None:
    """A24: also when the next life is killed at any of its points: what it found, adopted or called is not lost or doubled."""
    works = BY_NAME[name]
    count = points(works)
    for first, second, ways in product(range(count), range(count + 2), TWO_WAYS):
        _, result = live_through(works, [Crash(first, ways[0]), Crash(second, ways[1])])
        if works.name in SURE:
            assert not isinstance(result, InDoubt)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KINDS), st.lists(st.builds(Crash, st.integers(0, 9), st.sampled_from(WAYS)), max_size=8))
def test_any_row_of_crashes(works: Works, crashes: list[Crash]) -> None:
    """A13, A24: any row of crashes, each at any point, ends in one effect or in doubt."""
    live_through(works, crashes)
