"""Where users' callbacks run: in order, on a thread of their own, whatever they raise."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Callable

import pytest

from leasekeeper.runtime import announce as module
from leasekeeper.runtime.announce import Announcer
from tests.support import until


def test_no_thread_before_the_first_news() -> None:
    """A keeper without subscribers has no thread for them."""
    before = threading.active_count()
    Announcer().close()
    assert threading.active_count() == before


def test_news_come_in_order_on_one_named_thread() -> None:
    """Each callback is called once, one after the other, with its arguments, and never on the teller's thread."""
    announcer, heard, threads = Announcer(), [], set()

    def callback(number: int, word: str) -> None:
        heard.append((number, word))
        threads.add(threading.current_thread().name)

    for number in range(100):
        announcer.tell(callback, number, "news")
    announcer.close(timeout_s=10.0)
    assert heard == [(number, "news") for number in range(100)]
    assert threads == {"leasekeeper-announce"}


@pytest.mark.parametrize("error", [ValueError("a bug"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_a_callback_that_raises_harms_no_other(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """C16: whatever a callback raises is logged, and the next one is called."""
    announcer, heard = Announcer(), threading.Event()

    def broken() -> None:
        raise error

    with caplog.at_level(logging.ERROR, logger="leasekeeper"):
        announcer.tell(broken)
        announcer.tell(heard.set)
        assert heard.wait(10.0)
        announcer.close(timeout_s=10.0)
    assert [record.name for record in caplog.records] == ["leasekeeper"]
    assert caplog.records[0].exc_info is not None


def test_the_last_callback_is_not_kept() -> None:
    """C18: what a callback refers to, its lease above all, is garbage once it was called, not only when the next one is."""
    announcer = Announcer()

    def listener() -> Callable[[], None]:
        return lambda: None

    told = listener()
    ref = weakref.ref(told)
    announcer.tell(told)
    del told
    until(lambda: (gc.collect(), ref())[1] is None)
    announcer.close(timeout_s=10.0)


def test_a_subscriber_that_is_slow_costs_news_not_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything has a bound: what does not fit is counted as lost."""
    monkeypatch.setattr(module, "BACKLOG_MAX", 3)
    announcer, began, go = Announcer(), threading.Event(), threading.Event()

    def slow() -> None:
        began.set()
        go.wait(10.0)

    announcer.tell(slow)
    assert began.wait(10.0)
    for _ in range(5):
        announcer.tell(lambda: None)
    assert announcer.lost == 2
    go.set()
    announcer.close(timeout_s=10.0)


def test_a_callback_can_close_the_announcer_it_runs_on() -> None:
    """A subscriber that closes the keeper does not wait for itself."""
    announcer, closed = Announcer(), threading.Event()

    def closes() -> None:
        announcer.close(timeout_s=60.0)
        closed.set()

    announcer.tell(closes)
    assert closed.wait(10.0)


def test_after_the_end_news_are_counted_as_lost() -> None:
    """Nobody waits for them."""
    announcer = Announcer()
    announcer.close()
    announcer.tell(lambda: None)
    assert announcer.lost == 1
