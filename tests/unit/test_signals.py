"""Flags: set once, heard once by each, from whichever thread."""

from __future__ import annotations

import threading
from typing import Any

from leasekeeper.runtime.signals import Flag, WatchFlag
from leasekeeper.wire.watch import News


def test_a_flag_calls_each_subscriber_once() -> None:
    """When it is set, and never again."""
    flag, heard = Flag(), []
    flag.subscribe(lambda: heard.append("a"))
    flag.subscribe(lambda: heard.append("b"))
    assert not flag.is_set()
    flag.set()
    flag.set()
    assert flag.is_set()
    assert sorted(heard) == ["a", "b"]


def test_who_subscribes_too_late_is_called_at_once() -> None:
    """A wake-up cannot be missed by subscribing after it."""
    flag, heard = Flag(), []
    flag.set()
    flag.subscribe(lambda: heard.append("late"))
    assert heard == ["late"]


def test_who_has_unsubscribed_is_not_called() -> None:
    """And forgetting somebody unknown does nothing."""
    flag, heard = Flag(), []

    def callback() -> None:
        heard.append("called")

    flag.unsubscribe(callback)
    flag.subscribe(callback)
    flag.unsubscribe(callback)
    flag.set()
    assert heard == []


def test_no_subscriber_is_missed_by_a_flag_set_meanwhile() -> None:
    """Subscribing and setting in two threads at once: everybody is called exactly once."""
    for _ in range(200):
        flag, heard, barrier = Flag(), list[int](), threading.Barrier(2)

        def subscribe(flag: Flag = flag, heard: list[int] = heard, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            for number in range(5):
                flag.subscribe(lambda number=number: heard.append(number))  # type: ignore[misc]

        thread = threading.Thread(target=subscribe)
        thread.start()
        barrier.wait()
        flag.set()
        thread.join()
        assert sorted(heard) == [0, 1, 2, 3, 4]


class Hub:
    """Remembers what is watched, and lets a test tell the news."""

    def __init__(self, *, closed: bool = False) -> None:
        self.watched: list[Watched] = []
        self.closed = closed

    def watch(self, key: bytes, start: int, callback: Any) -> Watched:
        """Begin a watch; a hub that is closed says at once that it is blind."""
        watched = Watched(key, start, callback)
        self.watched.append(watched)
        if self.closed:
            callback(News.BLIND)
        return watched


class Watched:
    """One watch of the hub."""

    def __init__(self, key: bytes, start: int, callback: Any) -> None:
        self.key, self.start, self.callback, self.open = key, start, callback, True

    def close(self) -> None:
        """Stop watching."""
        self.open = False

    def close_soon(self) -> None:
        """Stop watching, for the garbage collector."""
        self.close()


def test_a_watch_flag_is_set_by_news_of_any_key() -> None:
    """A deletion, a change, or that there will be no more news: each wakes the waiter."""
    for news in News:
        hub: Any = Hub()
        flag = WatchFlag(hub, (b"own", b"ahead"), 7)
        assert [(watched.key, watched.start) for watched in hub.watched] == [(b"own", 7), (b"ahead", 7)]
        assert not flag.is_set()
        hub.watched[1].callback(news)
        assert flag.is_set()
        flag.close()
        flag.close()
        assert not any(watched.open for watched in hub.watched)


def test_a_watch_flag_on_a_closed_hub_is_set_at_once() -> None:
    """Nobody waits for news that will never come."""
    hub: Any = Hub(closed=True)
    assert WatchFlag(hub, (b"own",), 7).is_set()
