"""The parts of a simulated world: time, processes, the network, the cluster and its watches."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.plan import KEEP_ALIVE, RANGE, TXN, Call, Cause, Fault, Kind
from leasekeeper.testing.sim.cluster import REQUEST_TIMEOUT_S, Cluster
from leasekeeper.testing.sim.hub import Hub
from leasekeeper.testing.sim.network import Network, Route
from leasekeeper.testing.sim.process import Process
from leasekeeper.testing.sim.timeline import Timeline

KEY = b"key"
LEASE = 0xA


class Place:
    """A cluster of three, and one process with its ways to it."""

    def __init__(self, *, confirms_dead: bool = False, rate: float = 1.0) -> None:
        self.timeline = Timeline(7)
        self.cluster = Cluster(self.timeline, 3, confirms_dead=confirms_dead, minimum_ttl=1)
        self.store = self.cluster.store
        self.store.told = self.cluster.streams.changed
        self.network = Network(self.timeline, self.cluster)
        self.process = Process(self.timeline, "process", self.timeline.chance("process"), rate)
        self.links = self.network.links(self.process)
        self.route = Route(self.links, 0)
        self.results: list[Any] = []

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass."""
        until_s = self.timeline.now_s + seconds
        while (next_s := self.timeline.next_s()) is not None and next_s <= until_s:
            self.timeline.step()
        self.timeline.now_s = until_s

    def send(self, call: Call) -> None:
        """Send a call; what comes of it is noted."""
        self.network.call(self.route, call, self.results.append)

    def put(self, timeout_s: float = 3.0) -> None:
        """Send a put."""
        self.send(Call(TXN, pb.TxnRequest(success=[m.put(KEY, b"")]), timeout_s))

    def beat(self, timeout_s: float = 3.0) -> None:
        """Send a beat."""
        self.send(Call(KEEP_ALIVE, pb.LeaseKeepAliveRequest(ID=LEASE), timeout_s))

    def grant(self, ttl: int = 5) -> None:
        """There is a lease."""
        self.store.perform(pb.LeaseGrantRequest(ID=LEASE, TTL=ttl))

    def watch(self, start: int) -> list[str]:
        """Watch the key on a hub of its own: what it tells."""
        told: list[str] = []
        hub = Hub(self.process, self.cluster.streams, Route(self.links, 0))
        hub.watch(KEY, start, lambda news: told.append(news.name.lower()), puts=True)

        def tick() -> None:
            hub.tick(self.process.now())
            self.process.after(0.5, tick)

        tick()
        return told


@pytest.fixture
def place() -> Place:
    """A place in which nothing is wrong yet."""
    return Place()


def only(results: list[Any]) -> Any:
    """The one result there is."""
    (result,) = results
    return result


# ---------------------------------------------------------------- time and processes


def test_events_happen_in_order() -> None:
    """By time, and those of one moment as they were planned."""
    timeline, happened = Timeline(0), list[str]()
    for at_s, name in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (-5.0, "now")):
        timeline.at(at_s, lambda name=name: happened.append(name))  # type: ignore[misc]
    while timeline.next_s() is not None:
        timeline.step()
    assert happened == ["now", "a", "b", "c"]
    assert timeline.now_s == 2.0


def test_streams_of_chance_are_their_own() -> None:
    """A stream is decided by the seed and its name, whatever others have drawn."""
    assert Timeline(1).chance("a").random() == Timeline(1).chance("a").random()
    assert Timeline(1).chance("a").random() != Timeline(1).chance("b").random()
    assert Timeline(1).chance("a").random() != Timeline(2).chance("a").random()


def test_a_clock_runs_at_its_rate() -> None:
    """A timer of ten seconds of a clock that is 1 % slow takes 1 % longer."""
    place, fired = Place(rate=0.99), list[float]()
    began_s = place.process.now()
    place.process.after(10.0, lambda: fired.append(place.timeline.now_s))
    place.pass_time(20.0)
    assert only(fired) == pytest.approx(10.0 / 0.99)
    assert place.process.now() - began_s == pytest.approx(19.8)


def test_a_frozen_process_finds_its_timers_due(place: Place) -> None:
    """Its clock goes on; what was due or arrived meanwhile happens when it goes on, not before."""
    fired: list[tuple[str, float]] = []
    began_s = place.process.now()
    place.process.after(2.0, lambda: fired.append(("timer", place.timeline.now_s)))
    place.timeline.at(1.5, lambda: place.process.run(lambda: fired.append(("message", place.timeline.now_s))))
    place.timeline.at(1.0, lambda: place.process.stop(5.0))
    place.pass_time(5.9)
    assert fired == []
    assert place.process.stopped
    place.pass_time(0.2)
    assert sorted(name for name, _ in fired) == ["message", "timer"]
    assert all(6.0 <= at_s < 6.01 for _, at_s in fired)
    assert place.process.now() - began_s == pytest.approx(6.1)


def test_timers_of_a_machine_that_slept_are_late(place: Place) -> None:
    """The boot-time clock has counted the sleep, and a timer waits for the rest of its time all the same."""
    fired: list[float] = []
    place.process.after(2.0, lambda: fired.append(place.timeline.now_s))
    place.timeline.at(1.0, lambda: place.process.stop(5.0, asleep=True))
    place.pass_time(20.0)
    assert only(fired) == pytest.approx(7.0, abs=0.01)


def test_a_dead_process_does_nothing(place: Place) -> None:
    """Neither timers nor messages reach it."""
    fired: list[int] = []
    place.process.after(1.0, lambda: fired.append(1))
    place.process.kill()
    place.process.run(lambda: fired.append(2))
    place.process.soon(lambda: fired.append(3))
    place.pass_time(5.0)
    assert fired == []


# ---------------------------------------------------------------- the network


def test_an_answer_comes_back(place: Place) -> None:
    """Nothing is wrong: one request, one answer, some milliseconds later."""
    place.put()
    place.pass_time(1.0)
    assert only(place.results).header.revision == 2


def test_a_lost_answer_is_unknown_and_the_request_happened(place: Place) -> None:
    """One-way cut: the request arrives, and nobody is told; sometimes it arrives once more."""
    for _ in range(20):
        place.links[0].cut_in_until_s = place.timeline.now_s + 1.0
        place.route.number = 0
        place.put(timeout_s=0.5)
        place.pass_time(1.0)
    assert all(isinstance(result, Fault) and result.kind is Kind.UNKNOWN for result in place.results)
    assert place.store.revision >= 21
    place.pass_time(30.0)
    assert place.store.revision > 21


def test_a_lost_request_is_unknown_too(place: Place) -> None:
    """One-way cut the other way: the same to see, but nothing has happened; the next call goes to another member."""
    place.links[0].cut_out_until_s = 100.0
    place.put(timeout_s=0.5)
    place.pass_time(1.0)
    assert only(place.results).kind is Kind.UNKNOWN
    assert place.store.revision == 1
    assert place.route.number == 1
    place.put()
    place.pass_time(1.0)
    assert place.store.revision == 2


def test_a_refused_connection_leads_to_the_next_member(place: Place) -> None:
    """What was surely not sent is tried on each member within the same call, and told if none takes it."""
    place.links[0].refused_until_s = 100.0
    place.put()
    place.pass_time(1.0)
    assert place.results[0].header.revision == 2
    for link in place.links:
        link.refused_until_s = 100.0
    place.put()
    place.pass_time(1.0)
    assert place.results[1].kind is Kind.NOT_SENT


def test_slow_messages_overtake_each_other(place: Place) -> None:
    """Of two puts the second may arrive first; one that comes after its deadline happens all the same."""
    place.links[0].slow_until_s, place.links[0].slow_s = 1.0, 5.0
    arrived: list[int] = []
    numbers = count()
    place.store.told = lambda event: arrived.append(int(event.kv.value if event.kv is not None else -1))
    for number in (next(numbers) for _ in range(20)):
        place.send(Call(TXN, pb.TxnRequest(success=[m.put(KEY, str(number).encode())]), 1.0))
    place.pass_time(10.0)
    assert sorted(arrived) == list(range(20))
    assert arrived != sorted(arrived)
    assert any(isinstance(result, Fault) for result in place.results)


# ---------------------------------------------------------------- the cluster


def test_a_lease_goes_late_and_a_beat_in_between_waits(place: Place) -> None:
    """Facts 1 to 3: an overdue lease is neither gone nor renewed; the beat is answered with TTL 0 when it is gone."""
    place.cluster.look_s = 50.0
    place.pass_time(1.0)
    place.grant(ttl=5)
    place.pass_time(6.0)
    place.beat(timeout_s=200.0)
    place.pass_time(1.0)
    assert place.results == []
    assert LEASE in place.store.leases
    place.pass_time(100.0)
    assert only(place.results).TTL == 0
    assert LEASE not in place.store.leases


def test_a_new_leader_arms_leases_anew(place: Place) -> None:
    """Fact 3: expiry comes late, never early; while there is no leader nothing ends and nothing is answered."""
    place.grant(ttl=5)
    place.pass_time(4.0)
    place.cluster.change_leader(3.0)
    place.pass_time(3.5)
    assert LEASE in place.store.leases
    place.pass_time(4.0)
    assert LEASE in place.store.leases
    place.pass_time(2.0)
    assert LEASE not in place.store.leases


def test_an_old_release_confirms_what_is_gone() -> None:
    """Fact 1: a confirmed beat proves nothing about a lease that was revoked a moment ago, and does so only for a moment."""
    for confirms, expected in ((True, [5, 0]), (False, [0, 0])):
        place = Place(confirms_dead=confirms)
        place.grant(ttl=5)
        place.cluster.revoke(LEASE)
        for _ in range(2):
            place.beat()
            place.pass_time(6.0)
        assert [result.TTL for result in place.results] == expected


def test_a_member_that_stands_still_answers_afterwards(place: Place) -> None:
    """Fact 2: a request on it hangs; it happens when the member goes on, long after its sender gave up."""
    place.cluster.stop_member(0, 8.0)
    place.put(timeout_s=1.0)
    place.pass_time(2.0)
    assert only(place.results).kind is Kind.UNKNOWN
    assert place.store.revision == 1
    place.pass_time(8.0)
    assert place.store.revision == 2


def test_without_a_leader_requests_wait_or_are_refused(place: Place) -> None:
    """Some are answered when there is one again, some are refused at once, and those that waited too long are unknown."""
    place.cluster.change_leader(REQUEST_TIMEOUT_S + 3.0)
    for _ in range(30):
        place.put(timeout_s=30.0)
    place.pass_time(40.0)
    kinds = {(result.kind, result.cause) if isinstance(result, Fault) else "answered" for result in place.results}
    assert len(place.results) == 30
    assert (Kind.UNKNOWN, Cause.OTHER) in kinds
    assert kinds <= {"answered", (Kind.UNKNOWN, Cause.OTHER), (Kind.RETRY, Cause.NOT_LEADER)}


def test_what_was_on_its_way_dies_with_a_restart(place: Place) -> None:
    """A request that was sent before etcd went down does not arrive after it has come back."""
    place.links[0].slow_until_s, place.links[0].slow_s = 0.1, 4.0
    for _ in range(10):
        place.put(timeout_s=0.05)
    place.pass_time(0.1)
    arrived = place.store.revision
    place.cluster.go_down(0.1)
    place.pass_time(10.0)
    assert place.store.revision == arrived < 11


# ---------------------------------------------------------------- watches


def test_a_watch_tells_the_first_news_once(place: Place) -> None:
    """A put or a deletion, from the start revision on, also when it has been already."""
    place.store.put(KEY)
    told, later = place.watch(3), place.watch(2)
    place.pass_time(1.0)
    assert (told, later) == ([], ["changed"])
    place.store.delete(KEY)
    place.store.put(KEY)
    place.pass_time(1.0)
    assert told == ["deleted"]


@pytest.mark.parametrize(
    "cut",
    [
        lambda place: setattr(place.links[0], "cut_in_until_s", 4.0),
        lambda place: place.cluster.part(0, 4.0),
        lambda place: place.cluster.stop_member(0, 4.0),
        lambda place: place.cluster.go_down(1.0),
    ],
)
def test_a_watch_survives_what_its_stream_does_not(place: Place, cut: Callable[[Place], None]) -> None:
    """Whatever befalls the stream, the news comes in the end: by this one later, or by the next, on another member."""
    told = place.watch(1)
    place.pass_time(1.0)
    cut(place)
    place.timeline.after(1.5, lambda: place.store.put(KEY))
    place.pass_time(2.0)
    place.pass_time(20.0)
    assert told == ["changed"]


def test_a_watch_into_forgotten_history_is_blind(place: Place) -> None:
    """Fact: from before the compaction there is nothing to tell, and that is told."""
    place.store.put(KEY)
    place.store.put(KEY)
    place.store.perform(pb.CompactionRequest(revision=3))
    told = place.watch(2)
    place.pass_time(1.0)
    assert told == ["blind"]


def test_a_watch_from_before_a_restore_is_silent(place: Place) -> None:
    """Fact 10: until the revision has come by again it says nothing of what happens meanwhile."""
    backup = place.store.snapshot()
    for _ in range(5):
        place.store.put(KEY)
    told = place.watch(place.store.revision + 1)
    place.pass_time(1.0)
    place.cluster.go_down(0.5)
    place.store.restore(backup)
    place.pass_time(5.0)
    place.store.put(KEY)
    place.store.delete(KEY)
    place.pass_time(20.0)
    assert told == []
    for _ in range(5):
        place.store.put(KEY)
    place.pass_time(1.0)
    assert told == ["changed"]


def test_a_read_is_answered_at_the_present_revision(place: Place) -> None:
    """Reads go the same ways."""
    place.store.put(KEY, b"value")
    place.send(Call(RANGE, pb.RangeRequest(key=KEY), 1.0))
    place.pass_time(1.0)
    assert only(place.results).kvs[0].value == b"value"
