"""The heart's own part: every key that comes to be owned is watched, and what the watch tells reaches the gate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from leasekeeper.protocol.authority import Authority, State
from leasekeeper.protocol.session import Session
from leasekeeper.runtime.announce import Announcer
from leasekeeper.runtime.heart import Heart
from leasekeeper.runtime.signals import Flag
from leasekeeper.timing import Timing
from leasekeeper.wire.watch import News

REVISION = 40


@dataclass
class Watch:
    """One watch, as the heart asked for it."""

    key: bytes
    start: int
    told: Callable[[News], None]
    closed: bool = False

    def close(self) -> None:
        """End it."""
        self.closed = True


@dataclass
class Hub:
    """Keeps what is watched."""

    watches: list[Watch] = field(default_factory=list)

    def watch(self, key: bytes, start: int, told: Callable[[News], None], *, puts: bool) -> Watch:
        """Watch a key."""
        assert puts  # a key that is written over is not ours any more
        self.watches.append(Watch(key, start, told))
        return self.watches[-1]


class Owner:
    """A heart with one owned claim, driven by hand: its thread is never started."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.hub = Hub()
        unused: Any = None
        hub: Any = self.hub
        self.heart = Heart(unused, hub, Announcer(), lambda: self.now_s, lambda _: None)
        session = Session(5, Timing(ttl=300), 100.0, ended=Flag(), changed=Flag())
        self.heart._beats.add(session, 100.0)
        slot = session.occupy("name", 0, b"key")
        slot.create_revision = REVISION
        self.lease = Authority(slot, token=REVISION, create_revision=REVISION, timing=session.timing, now_s=100.0)
        slot.authority = self.lease
        self.heart.adopt(slot)

    def turn(self) -> None:
        """What the thread does between two beats."""
        self.heart._watch_newcomers()
        self.heart._listen(0.0)


@pytest.fixture
def owner() -> Owner:
    """A claim that has just come to be owned."""
    return Owner()


def test_a_key_is_watched_from_its_creation_on(owner: Owner) -> None:
    """C38: each owned key gets one watch, from the revision after its put: nothing that happens to it goes unseen."""
    owner.turn()
    owner.turn()
    assert [(watch.key, watch.start) for watch in owner.hub.watches] == [(b"key", REVISION + 1)]


def test_news_of_a_deletion_shuts_the_gate(owner: Owner) -> None:
    """C07 C38: when the watch tells that the key is gone the gate shuts at once, long before a beat or a read-back is due."""
    owner.turn()
    assert owner.lease.passes(0.0, owner.now_s)
    owner.hub.watches[0].told(News.DELETED)
    owner.turn()
    assert not owner.lease.passes(0.0, owner.now_s)
    assert owner.lease.state(owner.now_s) is State.SUSPENDED


def test_a_claim_given_back_at_once_costs_no_watch(owner: Owner) -> None:
    """A claim that is over before the heart came to it is not watched, and one that ends later is watched no more."""
    owner.lease.slot.leaving = True
    owner.turn()
    assert owner.hub.watches == []


@pytest.mark.parametrize("news", [News.BLIND, News.CHANGED])
def test_a_watch_that_ended_is_opened_again(owner: Owner, news: News, monkeypatch: pytest.MonkeyPatch) -> None:
    """C31 C38: where a watch cannot tell any more the key is read, and watched anew from the revision of that reading on."""
    asked: list[tuple[bytes, ...]] = []
    monkeypatch.setattr(owner.heart, "_read_back", lambda _, keys: asked.append(keys))
    owner.turn()
    owner.hub.watches[0].told(news)
    owner.turn()
    assert asked == [(b"key",)]
    assert owner.lease.slot.watching is None
    session = owner.lease.session
    owner.heart._watch_again(session, REVISION + 5)
    assert len(owner.hub.watches) == 1, "at once would be a storm where every watch is refused"
    owner.now_s += session.timing.beat_s
    owner.heart._watch_again(session, REVISION + 5)
    assert [(watch.key, watch.start) for watch in owner.hub.watches[1:]] == [(b"key", REVISION + 6)]
