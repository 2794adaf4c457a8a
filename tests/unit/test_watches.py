"""Watches on owned keys: opened again where they can tell nothing any more, and after a restore from a backup."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from leasekeeper.protocol.authority import Authority
from leasekeeper.runtime.watches import KeyWatches
from leasekeeper.timing import Timing
from leasekeeper.wire.watch import News
from tests.model.claims import make_session, own

TIMING = Timing(ttl=10.0)
REVISION = 100


@dataclass
class Watch:
    """One watch that was asked for."""

    start: int
    closed: bool = False

    def close(self) -> None:
        """End it."""
        self.closed = True


@dataclass
class Hub:
    """Keeps what is watched."""

    watches: list[Watch] = field(default_factory=list)

    def watch(self, _key: bytes, start: int, _told: Callable[[News], None], *, puts: bool) -> Watch:
        """Watch a key."""
        assert puts
        self.watches.append(Watch(start))
        return self.watches[-1]


class Watched:
    """One owned key, and the watches on it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.hub = Hub()
        hub: Any = self.hub
        self.keys = KeyWatches(hub, lambda: self.now_s, self._told)
        self.authority: Authority = own(make_session(TIMING), revision=REVISION)
        self.keys.adopt(self.authority.slot)
        self.keys.watch_newcomers()

    def _told(self, ref: weakref.ref[Any], revision: int, news: News) -> None:
        raise AssertionError("nothing happens to the key")

    def read_at(self, *revisions: int) -> list[tuple[int, bool]]:
        """Read the key at these revisions, one after the other: where watches began, and which are closed."""
        for revision in revisions:
            self.keys.read(self.authority.session, revision)
        return [(watch.start, watch.closed) for watch in self.hub.watches]


def test_a_watch_that_tells_is_left_alone() -> None:
    """A read-back at the same or a later revision opens no second watch."""
    assert Watched().read_at(120, 120, 150) == [(REVISION + 1, False)]


def test_a_store_that_went_back_is_watched_from_where_it_is_now() -> None:
    """A30: a watch from a revision that a restored store has yet to reach stays silent, so it is replaced, once."""
    assert Watched().read_at(150, 110, 111, 112) == [(REVISION + 1, True), (111, False)]


def test_a_blind_watch_is_replaced_a_beat_later() -> None:
    """Where every watch is refused, opening one at each reading would be a storm."""
    watched = Watched()
    watched.authority.slot.watching = None
    watched.keys.blinded(watched.authority.session)
    assert len(watched.read_at(120)) == 1
    watched.now_s = TIMING.beat_s
    assert watched.read_at(130)[1:] == [(131, False)]


def test_news_of_an_earlier_claim_concern_nobody() -> None:
    """A slot's key is used again: what its watch tells of the claim before says nothing of the one that is there now."""
    watched = Watched()
    slot = watched.authority.slot
    assert watched.keys.heard(weakref.ref(slot), REVISION - 1, News.DELETED) is None
    assert slot.watching is not None
    assert watched.keys.heard(weakref.ref(slot), REVISION, News.DELETED) is watched.authority
    assert slot.watching is None
