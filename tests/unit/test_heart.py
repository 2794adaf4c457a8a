"""The heart's own part: every key that comes to be owned is watched, and what the watch tells reaches the gate."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import pytest

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.authority import Authority, State
from leasekeeper.protocol.plan import Call
from leasekeeper.protocol.session import Session
from leasekeeper.runtime.announce import Announcer
from leasekeeper.runtime.heart import Heart
from leasekeeper.runtime.signals import Flag
from leasekeeper.timing import Timing
from leasekeeper.wire.watch import News

LEASE = 5
REVISION = 40
READ_AT = 45


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

    def tick(self, _: float) -> None:
        """Look after the stream."""


class Engine:
    """Answers reads at once: the claim's key is there, at ``READ_AT``."""

    beats = None

    def __init__(self) -> None:
        self.read: list[bytes] = []

    def exchange(self, call: Call, _: object) -> Generator[Any, Any, pb.TxnResponse]:
        """One call: it takes no step to answer it."""
        yield from ()
        reply = pb.TxnResponse(header=pb.ResponseHeader(revision=READ_AT), succeeded=True)
        assert isinstance(call.request, pb.TxnRequest)
        for op in call.request.success:
            self.read.append(op.request_range.key)
            own = pb.KeyValue(key=b"key", create_revision=REVISION, mod_revision=REVISION, lease=LEASE)
            reply.responses.add(response_range=pb.RangeResponse(kvs=[own] if op.request_range.key == b"key" else []))
        return reply

    def tidy(self) -> None:
        """Nothing is open."""


class Owner:
    """A heart with one owned claim, driven by hand: its thread is never started."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.hub, self.engine = Hub(), Engine()
        hub: Any = self.hub
        engine: Any = self.engine
        self.heart = Heart(engine, hub, Announcer(), lambda: self.now_s, lambda _: None)
        session = Session(LEASE, Timing(ttl=300), 100.0, ended=Flag(), changed=Flag())
        self.heart._beats.add(session, 100.0)
        slot = session.occupy("name", 0, b"key")
        slot.create_revision = REVISION
        self.lease = Authority(slot, token=REVISION, create_revision=REVISION, timing=session.timing, now_s=100.0)
        slot.authority = self.lease
        self.heart.adopt(slot)

    def turn(self) -> None:
        """One round of the thread, without waiting."""
        self.heart._post(lambda: ())
        self.heart._round()


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
def test_a_watch_that_ended_is_opened_again(owner: Owner, news: News) -> None:
    """C31 C38: where a watch cannot tell any more the key is read, and watched anew from the revision of a reading on."""
    owner.turn()
    owner.hub.watches[0].told(news)
    owner.turn()
    assert b"key" in owner.engine.read
    assert len(owner.hub.watches) == 1, "at once would be a storm where every watch is refused"
    timing = owner.lease.timing
    for _ in range(8):
        owner.now_s += timing.ttl / 8
        owner.lease.session.proof_s = owner.now_s  # as beats would
        owner.lease.session.read_s = owner.now_s
        owner.turn()
    assert [(watch.key, watch.start) for watch in owner.hub.watches[1:]] == [(b"key", READ_AT + 1)]


def test_a_release_shuts_the_gate_before_anything_is_sent(owner: Owner) -> None:
    """C30: giving back shuts the gate and wakes who waits at it, in the thread of whoever asks; doing it twice is nothing."""
    owner.turn()
    changed = owner.lease.session.changed
    tending = owner.heart.release(owner.lease)
    assert tending is not None
    assert owner.lease.state(owner.now_s) is State.RELEASED
    assert not owner.lease.passes(0.0, owner.now_s)
    assert changed.is_set()
    assert owner.hub.watches[0].closed
    assert owner.engine.read == []
    assert owner.heart.release(owner.lease) is None
