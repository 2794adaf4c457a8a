"""Clean-up in the background: tried until it succeeds, within a bound, and one bad job harms no other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from leasekeeper.protocol.plan import Cause, Fault, Kind
from leasekeeper.runtime import background as module
from leasekeeper.runtime.background import TRY_FOR_S, Background
from tests.support import until


class Clock:
    """Time that runs as fast as a test wants."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        """A step of time for every look, so that pauses are soon over."""
        self.now_s += 0.05
        return self.now_s


class Interpreter:
    """Runs "plans" that are just functions."""

    def run(self, plan: Any) -> Any:
        """Call it."""
        return plan()


def make(*, failed: list[str] | None = None, clock: Clock | None = None) -> Background:
    """A background on fast time."""
    heard = failed if failed is not None else []
    background = Background((clock or Clock()).now, heard.append)
    background.interpreter = Interpreter()  # type: ignore[assignment]
    return background


def detach(background: Background, job: Callable[[], object]) -> None:
    """Hand over a function as if it were a plan."""
    plan: Any = lambda: job  # noqa: E731 - a factory, as plans are handed over
    background.detach(plan)


def test_no_thread_before_the_first_job() -> None:
    """A keeper that never has to clean up has no thread for it."""
    before = threading.active_count()
    background = make()
    assert threading.active_count() == before
    background.close()


def test_a_job_is_tried_until_it_succeeds() -> None:
    """C14: failures that pass are waited out."""
    failed: list[str] = []
    background, tries = make(failed=failed), 0

    def job() -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise Fault(Kind.UNKNOWN)

    detach(background, job)
    until(lambda: tries == 4)
    background.close()
    assert tries == 4
    assert failed == []


def test_a_job_that_cannot_succeed_is_told_and_dropped() -> None:
    """A refusal that only a person can mend is not repeated."""
    failed: list[str] = []
    background, tries = make(failed=failed), 0

    def job() -> None:
        nonlocal tries
        tries += 1
        raise Fault(Kind.FIX, Cause.DENIED, "permission denied", operation="Txn")

    detach(background, job)
    until(lambda: failed)
    background.close()
    assert tries == 1
    assert failed == ["Txn: permission denied"]


def test_a_job_is_given_up_after_its_time() -> None:
    """Everything has a bound: what fails for a minute is told, and its lease runs out by itself."""
    failed: list[str] = []
    clock = Clock()
    background, tries = make(failed=failed, clock=clock), 0

    def job() -> None:
        nonlocal tries
        tries += 1
        clock.now_s += 25.0
        raise Fault(Kind.UNKNOWN, text="no answer", operation="Txn")

    detach(background, job)
    until(lambda: failed)
    background.close()
    assert 2 <= tries <= TRY_FOR_S / 25.0 + 1
    assert failed == ["Txn: no answer"]


def test_a_broken_job_harms_no_other() -> None:
    """An error that nobody expected is told, and the next job is done."""
    failed: list[str] = []
    background, done = make(failed=failed), threading.Event()

    def broken() -> None:
        raise ZeroDivisionError("a bug")

    detach(background, broken)
    detach(background, done.set)
    assert done.wait(10.0)
    background.close()
    assert failed == ["ZeroDivisionError('a bug')"]


def test_a_job_that_waits_does_not_hold_up_others() -> None:
    """While one job pauses before its next try, others are done."""
    background, done, go = make(), threading.Event(), threading.Event()

    def waits() -> None:
        if not go.is_set():
            raise Fault(Kind.NOT_SENT)

    detach(background, waits)
    detach(background, done.set)
    assert done.wait(10.0)
    go.set()
    background.close()


def test_what_is_left_at_the_end_gets_one_last_try() -> None:
    """close() does not throw away what was handed over just before."""
    background, done, blocked, go = make(), [], threading.Event(), threading.Event()

    def blocks() -> None:
        blocked.set()
        go.wait(10.0)

    detach(background, blocks)
    assert blocked.wait(10.0)
    detach(background, lambda: done.append("last"))
    closing = threading.Thread(target=lambda: background.close(timeout_s=1000.0))
    closing.start()
    go.set()
    closing.join(10.0)
    assert done == ["last"]


def test_after_the_end_nothing_is_taken() -> None:
    """A job that comes too late is dropped; its lease is revoked or runs out."""
    background, done = make(), []
    detach(background, lambda: done.append("first"))
    until(lambda: done)
    background.close()
    detach(background, lambda: done.append("late"))
    assert done == ["first"]


def test_there_is_a_bound_on_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """When etcd is away for long the oldest clean-ups are given up, and the others stay in order."""
    monkeypatch.setattr(module, "JOBS_MAX", 5)
    failed: list[str] = []
    background, blocked, go = make(failed=failed), threading.Event(), threading.Event()
    done: list[int] = []

    def blocks() -> None:
        blocked.set()
        go.wait(10.0)

    detach(background, blocks)
    assert blocked.wait(10.0)
    for number in range(8):
        detach(background, lambda number=number: done.append(number))  # type: ignore[misc]
    go.set()
    until(lambda: len(done) == 5)
    background.close()
    assert sorted(done) == [3, 4, 5, 6, 7]
    assert failed == ["too many clean-ups at once"] * 3
