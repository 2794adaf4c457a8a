"""Which connection to use, and when to move on to another one: a walk over the endpoints.

A connection that fails is retired, not closed: calls may still be under way on it, and an answer that is only late still counts.
It is closed when nothing is under way on it any more.

How often connections are opened is bounded, however many calls fail at once. One that has worked is replaced as soon as it
fails. One that never did is not opened anew before a pause is over that grows up to a second; grpc goes on trying meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from leasekeeper.protocol.plan import Cause, Fault, Kind
from leasekeeper.wire.worker import begin

if TYPE_CHECKING:
    import grpc

    from leasekeeper.wire.channel import Channels
    from leasekeeper.wire.standing import Standing

__all__ = ["Connection", "Route", "keeper_closed"]

PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 1.0
# So many replaced connections at the most. A heartbeat may take half a TTL and one that is late is repeated on the next
# connection after a tenth: fewer than five would cut off every slow answer.
RETIRED_MAX = 6


def keeper_closed(kind: Kind = Kind.NOT_SENT, operation: str = "") -> Fault:
    """What becomes of calls when the keeper is closed."""
    return Fault(kind, Cause.CLOSED, "the keeper is closed", operation=operation)


class Connection:
    """One channel and the calls prepared on it."""

    __slots__ = ("channel", "endpoint", "index", "lent", "methods", "opened_s", "standing", "under_way", "worked")

    def __init__(self, channel: grpc.Channel, index: int, endpoint: str, now_s: float, *, lent: bool) -> None:
        self.channel = channel
        self.lent = lent
        self.index = index
        self.endpoint = endpoint
        self.methods: dict[str, grpc.UnaryUnaryMultiCallable[Any, Any]] = {}
        self.opened_s = now_s
        # The attempts that have not ended yet.
        self.under_way: set[object] = set()
        # Whether a call on it was ever answered.
        self.worked = False
        # A call that only keeps grpc's thread, see `wire.standing`.
        self.standing: Standing | None = None


class Route:
    """A walk over the endpoints for one purpose. Nothing here waits; usable from any thread."""

    def __init__(self, channels: Channels, now: Callable[[], float]) -> None:
        self._channels = channels
        self._now = now
        self._lock = threading.Lock()
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
        channel, lent = self._channels.open(self._index), self._channels.lent is not None
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
            _close(opened)
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


def _close(connections: list[Connection]) -> None:
    for connection in connections:
        connection.channel.close()


def _end_standing(connections: list[Connection]) -> list[Standing]:
    """End the calls that only keep grpc's threads: which ones."""
    ended = [c.standing for c in connections if c.standing is not None]
    for connection in connections:
        connection.standing = None
    for standing in ended:
        standing.end()
    return ended
