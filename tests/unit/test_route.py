"""Which connection is used: left when it fails or is late, taken again when it was only slow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from leasekeeper.wire.channel import Channels, parse_endpoints
from leasekeeper.wire.route import PAUSE_FIRST_S, PAUSE_MAX_S, RETIRED_MAX, Connection, Route

ONE, TWO = "127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2"


@dataclass(eq=False)
class Sent:
    """A call that is under way."""

    sent_s: float


class Walk:
    """A route over endpoints that nobody connects to, on a clock that the test moves."""

    def __init__(self, endpoints: str) -> None:
        self.now_s = 1000.0
        self.route = Route(Channels(parse_endpoints(endpoints)), lambda: self.now_s)

    def send(self, connection: Connection) -> Sent:
        """A call goes out on ``connection``."""
        call = Sent(self.now_s)
        connection.under_way.add(call)
        return call

    def answer(self, connection: Connection, call: Sent) -> None:
        """And is answered."""
        connection.under_way.discard(call)
        self.route.heard(connection, call.sent_s)

    def leave(self, connection: Connection) -> Connection:
        """A call on ``connection`` is late: what is used then."""
        self.now_s += PAUSE_MAX_S
        self.route.advance(connection)
        return self.route.connection()


@pytest.fixture
def one() -> Iterator[Walk]:
    """A single endpoint."""
    walk = Walk(ONE)
    yield walk
    walk.route.close()


@pytest.fixture
def two() -> Iterator[Walk]:
    """Two endpoints."""
    walk = Walk(TWO)
    yield walk
    walk.route.close()


def worked(walk: Walk, trip_s: float = 0.001) -> Connection:
    """The connection in use, after an answer that took so long."""
    connection = walk.route.connection()
    call = walk.send(connection)
    walk.now_s += trip_s
    walk.answer(connection, call)
    return connection


@pytest.mark.parametrize("endpoints", [ONE, TWO])
def test_a_connection_that_is_late_is_left(endpoints: str) -> None:
    """C12 C19: in a black hole one late beat is enough: a new connection is used, to the next endpoint if there is one."""
    walk = Walk(endpoints)
    first = worked(walk)
    walk.send(first)
    walk.now_s += 1.0
    assert not walk.route.only_slow(first)
    second = walk.leave(first)
    assert second is not first
    assert (second.endpoint == first.endpoint) == (endpoints == ONE)
    walk.route.close()


@pytest.mark.parametrize("endpoints", [ONE, TWO])
def test_a_late_answer_brings_its_connection_back(endpoints: str) -> None:
    """C26: a connection that answers while its successor has yet to be greeted was only slow: it is used again."""
    walk = Walk(endpoints)
    first = worked(walk)
    call = walk.send(first)
    second = walk.leave(first)
    walk.send(second)
    walk.answer(first, call)
    assert walk.route.connection() is first
    assert walk.leave(first).index == second.index
    walk.route.close()


def test_a_late_answer_does_not_take_over_from_a_connection_that_works(two: Walk) -> None:
    """C19: an endpoint that answered in time is not left for one that answers late."""
    first = worked(two)
    call = two.send(first)
    second = two.leave(first)
    two.answer(second, two.send(second))
    two.answer(first, call)
    assert two.route.connection() is second


def test_an_answer_on_a_closed_route_opens_nothing(one: Walk) -> None:
    """What comes after the end changes nothing."""
    first = worked(one)
    call = one.send(first)
    one.leave(first)
    one.route.close()
    one.answer(first, call)
    assert one.route._current is None


def test_far_is_not_broken(one: Walk) -> None:
    """C26: with one endpoint, a connection that takes as long as it lately took is not given up; one that takes longer is."""
    first = worked(one, trip_s=2.0)
    one.send(first)
    one.now_s += 1.0
    one.send(first)
    one.now_s += 1.2
    assert one.route.only_slow(first)
    one.now_s += 0.4
    assert not one.route.only_slow(first)


def test_what_was_heard_of_before_counts_no_more_when_nothing_is_under_way(one: Walk) -> None:
    """A call that failed on a far connection gives it up: nothing is to be waited for there."""
    assert not one.route.only_slow(worked(one, trip_s=2.0))


def test_far_is_left_for_another_endpoint(two: Walk) -> None:
    """C19: where there is another endpoint a late beat goes there, however slow the first has always been."""
    first = worked(two, trip_s=2.0)
    two.send(first)
    two.now_s += 0.1
    assert not two.route.only_slow(first)


def test_slow_connections_are_not_cut_off_and_their_number_is_bounded(one: Walk) -> None:
    """C41: what was left stays open while something is under way on it, but not more than so many of them."""
    connections = []
    for _ in range(RETIRED_MAX + 5):
        connections.append(one.route.connection())
        one.send(connections[-1])
        one.leave(connections[-1])
    assert one.route._retired == connections[-RETIRED_MAX:]


def test_a_connection_that_never_worked_is_not_replaced_at_once(one: Walk) -> None:
    """C41: a dead endpoint is not dialled anew for each call that fails."""
    first = one.route.connection()
    one.now_s += PAUSE_FIRST_S / 2
    one.route.advance(first)
    assert one.route.connection() is first
