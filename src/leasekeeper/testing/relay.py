"""One proxied connection: a stream of bytes each way, and what faults do to them.

Nothing here waits: the loop in ``switch`` says when a socket can be read or written. The rule that
makes faults believable: while a direction does not pass, nothing at all goes that way, neither
bytes nor the news that the other end has closed or died.
"""

from __future__ import annotations

import errno
import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from leasekeeper.testing.trips import Tap

CHUNK_BYTES = 64 * 1024
BUFFER_BYTES = 256 * 1024
LINGER_S = 1.0

Side = Literal["client", "server"]


class Mode(Enum):
    """What happens to the bytes of one direction."""

    PASS = "pass"
    HOLD = "hold"
    LOSE = "lose"


@dataclass(slots=True)
class Flow:
    """The state of one direction of a lane; ``delay_s`` is added to each chunk."""

    mode: Mode = Mode.PASS
    delay_s: float = 0.0


@dataclass(slots=True)
class Lane:
    """Connections that faults treat alike: all of a proxy, or those that one source has dialled."""

    to_server: Flow = field(default_factory=Flow)
    to_client: Flow = field(default_factory=Flow)
    refuses: bool = False


@dataclass(slots=True)
class Totals:
    """Running counts, written by the proxy's thread only."""

    connections: int = 0
    refused: int = 0
    to_server: int = 0
    to_client: int = 0
    lost_to_server: int = 0
    lost_to_client: int = 0


class Stream:
    """One direction of a connection. An empty chunk stands for the end of the stream."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.pending: deque[tuple[float, bytes]] = deque()
        self.size = 0
        self.is_read_out = False
        self.is_delivered = False

    @property
    def wants_bytes(self) -> bool:
        """True while its source is to be read."""
        if self.is_read_out or self.flow.mode is Mode.HOLD:
            return False
        return self.flow.mode is Mode.LOSE or self.size < BUFFER_BYTES

    def due_at(self) -> float | None:
        """When the next chunk may go out; None when there is none, or it is held."""
        return self.pending[0][0] if self.pending and self.flow.mode is Mode.PASS else None

    def put(self, data: bytes, now: float) -> None:
        """Queue a chunk; it is due after the delay."""
        self.pending.append((now + self.flow.delay_s, data))
        self.size += len(data)

    def end(self, now: float) -> None:
        """Take no more bytes; the end follows what is pending."""
        if not self.is_read_out:
            self.is_read_out = True
            self.put(b"", now)

    def discard(self) -> tuple[int, bool]:
        """Forget what is pending; return how many bytes, and whether there was anything."""
        lost, any_pending = self.size, bool(self.pending)
        self.pending.clear()
        self.size = 0
        return lost, any_pending

    def send_due(self, sink: socket.socket, now: float) -> int:
        """Send what is due without blocking; return how many bytes went out."""
        sent_total = 0
        while (due := self.due_at()) is not None and due <= now:
            stamp, data = self.pending[0]
            if not data:
                self.pending.popleft()
                self.is_delivered = True
                sink.shutdown(socket.SHUT_WR)
                break
            try:
                sent = sink.send(data)
            except BlockingIOError:
                break
            sent_total += sent
            self.size -= sent
            if sent < len(data):
                self.pending[0] = (stamp, data[sent:])
                break
            self.pending.popleft()
        return sent_total


class Link:
    """A client's connection and the one to the server that belongs to it."""

    def __init__(
        self,
        client: socket.socket,
        lane: Lane,
        totals: Totals,
        release: Callable[[socket.socket], None],
    ) -> None:
        self.client: socket.socket | None = client
        self.server: socket.socket | None = None
        self.lane = lane
        self.totals = totals
        self._release = release
        self.to_server = Stream(lane.to_server)
        self.to_client = Stream(lane.to_client)
        self.tap = Tap()
        self.is_connected = False
        # Something that was on its way is gone: the connection must never carry on as if whole.
        self.is_doomed = False
        self.closes_at: float | None = None
        self._hung_up: set[Side] = set()

    # -- what the loop asks

    def events(self, side: Side, now: float) -> int:
        """The selector events that this side waits for now; 0 for none."""
        sock = self.client if side == "client" else self.server
        if sock is None:
            return 0
        if side == "server" and not self.is_connected:
            return selectors.EVENT_WRITE
        source, sink = (self.to_server, self.to_client) if side == "client" else (self.to_client, self.to_server)
        due = sink.due_at()
        reads = source.wants_bytes or (self.closes_at is not None and side not in self._hung_up)
        writes = due is not None and due <= now
        return (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if writes else 0)

    def next_due_s(self, now: float) -> float | None:
        """Seconds until time alone changes what this link waits for; None for never."""
        times = [self.to_client.due_at(), self.closes_at]
        if self.is_connected:
            times.append(self.to_server.due_at())
        ahead = [time - now for time in times if time is not None and time > now]
        return min(ahead, default=None)

    @property
    def is_over(self) -> bool:
        """True when nothing is left to carry either way."""
        if self.client is None and self.server is None:
            return True
        if not (self.to_server.is_delivered and self.to_client.is_delivered):
            return False
        return self.closes_at is None or len(self._hung_up) == 2

    # -- what happens to it

    def connect(self, target: tuple[str, int]) -> None:
        """Begin to dial the server, once; not while nothing may pass to it."""
        if self.server is not None or self.is_doomed or self.lane.to_server.mode is Mode.HOLD:
            return
        self.server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.server.setblocking(False)
        self.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = self.server.connect_ex(target)
        if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            self.break_off("server")

    def finish_connect(self) -> None:
        """The dial is over, one way or the other."""
        assert self.server is not None
        if self.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.break_off("server")
        else:
            self.is_connected = True

    def flush(self, side: Side, now: float) -> None:
        """Send towards ``side`` what is due."""
        sock, stream = (self.client, self.to_client) if side == "client" else (self.server, self.to_server)
        if sock is None or (side == "server" and not self.is_connected):
            return
        try:
            sent = stream.send_due(sock, now)
        except OSError:
            self.break_off(side)
            return
        if side == "client":
            self.totals.to_client += sent
        else:
            self.totals.to_server += sent

    def carry(self, side: Side, data: bytes, now: float) -> None:
        """Take bytes that ``side`` has sent; b"" is the end of its stream."""
        stream = self.to_server if side == "client" else self.to_client
        if not data:
            self._hung_up.add(side)
        if stream.is_read_out:
            return
        if stream.flow.mode is Mode.LOSE:
            self.count_lost(side, len(data))
            stream.is_read_out = not data
        elif data:
            stream.put(data, now)
        else:
            stream.end(now)

    def count_lost(self, side: Side, size: int) -> None:
        """Bytes that ``side`` has sent are gone, so the connection is doomed."""
        self.is_doomed = True
        if side == "client":
            self.totals.lost_to_server += size
        else:
            self.totals.lost_to_client += size

    def lose_pending_replies(self) -> None:
        """What the server has sent and the client has not got yet is gone as well."""
        lost, any_pending = self.to_client.discard()
        if any_pending:
            self.count_lost("server", lost)

    def break_off(self, side: Side) -> None:
        """``side`` is gone; the other side hears of it if its direction passes."""
        towards_other = self.to_server if side == "client" else self.to_client
        self._reset_socket(side)
        if towards_other.flow.mode is Mode.PASS:
            self.reset()
        else:
            self.is_doomed = True

    def reset(self) -> None:
        """End both connections with a reset."""
        self._reset_socket("client")
        self._reset_socket("server")

    def close(self) -> None:
        """Let go of both connections after their streams have ended."""
        for sock in (self.client, self.server):
            if sock is not None:
                self._release(sock)
                sock.close()
        self.client = self.server = None

    def end_cleanly(self, now: float) -> None:
        """Send what is pending, then the end of stream, to both sides."""
        if self.closes_at is None:
            self.to_server.end(now)
            self.to_client.end(now)
            self.closes_at = now + LINGER_S

    def _reset_socket(self, side: Side) -> None:
        sock = self.client if side == "client" else self.server
        if sock is not None:
            self._release(sock)
            reset(sock)
        if side == "client":
            self.client = None
        else:
            self.server = None


def reset(sock: socket.socket) -> None:
    """Close a connection so that its peer sees a reset, not an end of stream."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass  # it is gone already
    sock.close()
