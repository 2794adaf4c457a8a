"""Which connection to use, and when to move on to another one: a walk over the endpoints.

A connection that fails is retired, not closed: calls may still be under way on it, and an answer that is only late still counts.
One that answers before its successor has answered anything was only slow, and is used again. It is closed when nothing is under
way on it any more.

A far etcd answers every call late. Where there is no other endpoint, a connection is not given up as long as it takes no longer
than it lately took: a new one would be as slow, and has to be greeted first.

How often connections are opened is bounded, however many calls fail at once. One that has worked is replaced as soon as it
fails. One that never did is not opened anew before a pause is over that grows up to a second; grpc goes on trying meanwhile.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from leasekeeper.protocol.plan import Cause, Fault, Kind
from leasekeeper.wire.interruption import spared
from leasekeeper.wire.worker import begin

if TYPE_CHECKING:
    import grpc

    from leasekeeper.wire.channel import Channels
    from leasekeeper.wire.standing import Standing

__all__ = ["Connection", "Route", "keeper_closed"]

PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 1.0
# So many replaced connections at the most. A heartbeat may take nearly a TTL and one that is late is repeated on the next
# connection after a tenth: fewer than ten would cut off the slowest answers.
RETIRED_MAX = 12
# How much longer than the last time an answer may take before the connection counts as broken, where answers are slow.
PATIENCE = 1.25

# How long to wait for connections to be closed; it takes a few milliseconds.
CLOSE_S = 1.0


def keeper_closed(kind: Kind = Kind.NOT_SENT, operation: str = "") -> Fault:
    """What becomes of calls when the keeper is closed."""
    return Fault(kind, Cause.CLOSED, "the keeper is closed", operation=operation)


class UnderWay(Protocol):
    """A call that was sent and is not answered yet."""

    sent_s: float


class Connection:
    """One channel and the calls prepared on it."""

    __slots__ = (
        "channel",
        "endpoint",
        "index",
        "lent",
        "methods",
        "opened_s",
        "standing",
        "trip_s",
        "under_way",
        "worked",
    )

    def __init__(self, channel: grpc.Channel, index: int, endpoint: str, now_s: float, *, lent: bool) -> None:
        self.channel = channel
        self.lent = lent
        self.index = index
        self.endpoint = endpoint
        self.methods: dict[str, grpc.UnaryUnaryMultiCallable[Any, Any]] = {}
        self.opened_s = now_s
        # The attempts that have not ended yet.
        self.under_way: set[UnderWay] = set()
        # Whether a call on it was ever answered.
        self.worked = False
        # How long the last answer on it took.
        self.trip_s = 0.0
        # A call that only keeps grpc's thread, see `wire.standing`.
        self.standing: Standing | None = None


class Route:
    """A walk over the endpoints for one purpose. Nothing here waits; usable from any thread."""

    def __init__(self, channels: Channels, now: Callable[[], float]) -> None:
        self._channels = channels
        self._now = now
        self._lock = threading.RLock()
        self._current: Connection | None = None
        self._retired: list[Connection] = []
        self._index = 0
        self._pause_s = PAUSE_FIRST_S
        self.closed = False

    @property
    def size(self) -> int:
        """How many endpoints there are to try."""
        return 1 if self._channels.lent is not None else len(self._channels.endpoints)

    def connection(self) -> Connection:
        """The connection in use; opened on first use. After `close` there is none: Fault."""
        current = self._current
        if current is not None:
            return current
        with self._lock:
            if self.closed:
                raise keeper_closed()
            if self._current is None:
                self._current = self._taken_back() or self._open()
            return self._current

    def _open(self) -> Connection:
        name = self._channels.names[self._index % self.size]
        channel, lent = spared(partial(self._channels.open, self._index)), self._channels.lent is not None
        return Connection(channel, self._index, name, self._now(), lent=lent)

    def _taken_back(self) -> Connection | None:
        """One to the same endpoint that was left a moment ago, so that a round through dead endpoints opens none anew."""
        for connection in self._retired:
            if connection.index == self._index and self._young(connection):
                self._retired.remove(connection)
                return connection
        return None

    def _young(self, connection: Connection) -> bool:
        return not connection.worked and self._now() - connection.opened_s < self._pause_s

    def advance(self, failed: Connection) -> None:
        """Move on from a connection that failed, to the next endpoint.

        Nothing happens when somebody else has moved on already, and when there is no other endpoint and it is too early for a
        new connection to the same one.
        """
        with self._lock:
            if self._current is not failed or self._channels.lent is not None:
                return
            if self.size == 1 and self._young(failed):
                return
            self._pause_s = PAUSE_FIRST_S if failed.worked else min(PAUSE_MAX_S, 2 * self._pause_s)
            self._index = (self._index + 1) % self.size
            self._current = None
            self._retired.append(failed)
        self.tidy()

    def heard(self, connection: Connection, sent_s: float) -> None:
        """A call that was sent at ``sent_s`` was answered on ``connection``."""
        connection.worked = True
        connection.trip_s = self._now() - sent_s
        if self._current is not connection:
            self._come_back(connection)

    def _come_back(self, connection: Connection) -> None:
        """Use a connection again that was left because it was late, unless its successor has been heard on already."""
        with self._lock:
            current = self._current
            if connection not in self._retired or (current is not None and current.worked):
                return
            self._retired.remove(connection)
            if current is not None:
                self._retired.append(current)
            self._current, self._index = connection, connection.index
        self.tidy()

    def only_slow(self, connection: Connection) -> bool:
        """Whether what is under way on ``connection`` may well be answered yet, and there is no other endpoint to try."""
        sent_s = min((call.sent_s for call in list(connection.under_way)), default=-math.inf)
        return self.size == 1 and self._now() - sent_s < PATIENCE * connection.trip_s

    def tidy(self) -> None:
        """Close retired connections on which nothing is under way any more; called after each change, and now and then."""
        if not self._retired:
            return
        with self._lock:
            over = self._retired[:-RETIRED_MAX]
            over += [c for c in self._retired[-RETIRED_MAX:] if not (c.under_way or self._young(c))]
            self._retired = [c for c in self._retired if c not in over]
        if over:
            _hang_up(over)

    def close(self) -> None:
        """Close every connection that was opened here, and cut off what is under way on it."""
        with self._lock:
            self.closed = True
            opened = [c for c in (*self._retired, self._current) if c is not None]
            self._retired, self._current = [], None
        if self._channels.lent is None:
            _close_aside(opened)
        else:
            _end_standing(opened)

    def quiet(self, until: float) -> None:
        """A fork is about to come: end what stays open on its own, and wait for that till ``time.monotonic()`` shows ``until``.

        It is opened again when it is wanted.
        """
        with self._lock:
            opened = [c for c in (*self._retired, self._current) if c is not None]
        for standing in _end_standing(opened):
            standing.await_end(until)


def _hang_up(connections: list[Connection]) -> None:
    """Close connections on a thread of its own: closing waits for grpc's threads, and this may be one of them."""
    try:
        begin(partial(_close, connections), "leasekeeper-hangup")
    except RuntimeError:
        pass  # no thread can be started any more: the process is about to end, and the connections with it


def _close_aside(connections: list[Connection]) -> None:
    """Close connections on a thread of its own, and wait for it.

    Closing that Ctrl-C has cut short makes whoever closes the channel again wait for ever, and grpc does that by itself when
    the channel is garbage.
    """
    if not connections:
        return
    try:
        closing = begin(partial(_close, connections), "leasekeeper-hangup")
    except RuntimeError:
        _close(connections)
    else:
        closing.join(CLOSE_S)


def _close(connections: list[Connection]) -> None:
    for connection in connections:
        spared(connection.channel.close)


def _end_standing(connections: list[Connection]) -> list[Standing]:
    """End the calls that only keep grpc's threads: which ones."""
    ended = [c.standing for c in connections if c.standing is not None]
    for connection in connections:
        connection.standing = None
    for standing in ended:
        standing.end()
    return ended
