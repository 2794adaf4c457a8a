"""Starting threads: what is asked for runs or says why not, and Ctrl-C stays Ctrl-C."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from leasekeeper.wire.worker import Worker, begin

STARTS: list[Callable[[], object]] = [
    lambda: Worker(lambda: None, "leasekeeper-test").start(),
    lambda: begin(lambda: None, "leasekeeper-test"),
]


def test_joining_a_thread_that_has_hardly_begun_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker was given just before its end is done when it is joined, also if its thread had not run a line yet."""
    ended = threading.Event()
    worker = Worker(ended.set, "leasekeeper-test")
    begins = worker._run

    def slowly() -> None:
        time.sleep(0.2)
        begins()

    monkeypatch.setattr(worker, "_run", slowly)
    worker.start()
    worker.join(30.0)
    assert ended.is_set()


@pytest.mark.parametrize("start", STARTS)
def test_ctrl_c_during_a_start_comes_out_as_itself(
    monkeypatch: pytest.MonkeyPatch, start: Callable[[], object]
) -> None:
    """C10: Python's own wait for a new thread can turn Ctrl-C into a RuntimeError about a lock; that is turned back."""

    def struck(_: threading.Thread) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()

    monkeypatch.setattr(threading.Thread, "start", struck)
    with pytest.raises(KeyboardInterrupt):
        start()


@pytest.mark.parametrize("start", STARTS)
def test_a_thread_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch, start: Callable[[], object]) -> None:
    """It is a RuntimeError, also for whoever asks while dealing with another error."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    try:
        raise ValueError("another")
    except ValueError:
        with pytest.raises(RuntimeError, match="new thread"):
            start()


def test_a_worker_whose_start_failed_can_be_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to wait for."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    worker = Worker(lambda: None, "leasekeeper-test")
    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError):
        worker.start()
    worker.join(30.0)
