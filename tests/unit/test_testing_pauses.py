"""assert_pauses and assert_resumes: work that goes on, that never began or that stays dead is caught."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from leasekeeper.errors import ConfigError
from leasekeeper.testing import assert_pauses, assert_resumes


class Work:
    """A thread that counts while its gate is open."""

    def __init__(self) -> None:
        self.steps = 0
        self.gate = threading.Event()
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        """Count a step each millisecond."""
        while not self.ending.wait(0.001):
            if self.gate.is_set():
                self.steps += 1

    def at(self) -> int:
        """How far it has come."""
        return self.steps


@pytest.fixture
def work() -> Iterator[Work]:
    """Work that is under way."""
    one = Work()
    one.gate.set()
    one.thread.start()
    assert_resumes(one.at, within=30)
    yield one
    one.ending.set()
    one.thread.join()


def test_work_that_stops_pauses_and_goes_on(work: Work) -> None:
    """G5: a gate that shuts and opens again is what the two assertions see."""
    threading.Timer(0.05, work.gate.clear).start()
    assert_pauses(work.at, within=30, still=0.3)
    work.gate.set()
    assert_resumes(work.at, within=30)


def test_work_that_goes_on_is_told_with_its_steps(work: Work) -> None:
    """Work without a gate fails, and the message says from where to where it went and how late."""
    with pytest.raises(
        AssertionError, match=r"did not pause: it still made a step .* where 0\.1 s are allowed"
    ) as caught:
        assert_pauses(work.at, within=0.1, still=5)
    assert "steps that were seen" in str(caught.value)


def test_a_step_after_the_pause_is_caught(work: Work) -> None:
    """Work that stands still and then makes one more step did not pause."""
    work.gate.clear()
    threading.Timer(0.4, lambda: setattr(work, "steps", work.steps + 1)).start()
    with pytest.raises(AssertionError, match="did not pause"):
        assert_pauses(work.at, within=0.1, still=30)


@pytest.mark.parametrize("reading", [lambda: 0, lambda: None, str])
def test_work_that_has_not_begun_proves_nothing(reading: Callable[[], object]) -> None:
    """Standing still at nothing is a failure."""
    with pytest.raises(AssertionError, match="has not begun"):
        assert_pauses(reading, within=0.01, still=0.01)


def test_dead_work_does_not_resume() -> None:
    """Work that stays where it was is told with where it is."""
    with pytest.raises(AssertionError, match=r"did not go on within 0\.05 s: it is still at 17"):
        assert_resumes(lambda: 17, within=0.05)


def test_a_reading_that_always_equals_itself_is_refused() -> None:
    """A list that grows is the same list: it would look as if it stood still."""
    rows = [1]
    with pytest.raises(ConfigError, match="a number"):
        assert_pauses(lambda: rows, within=1)
    with pytest.raises(ConfigError, match="within"):
        assert_pauses(lambda: len(rows), within=0)
