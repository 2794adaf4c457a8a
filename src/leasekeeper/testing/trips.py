"""Faults that strike at one exact message: "this request goes through and its reply never comes".

A ``Trip`` is armed on a proxy and fires once. On a connection in plain text it sees gRPC messages,
so it can wait for the one that carries given bytes, a key for instance, and tell its reply from
all others. On any other connection (TLS) it sees only that bytes go by: the next ones count.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from leasekeeper.testing.frames import DATA, HEADERS, RST_STREAM, Frame, FrameReader

Then = Literal["reset", "cut", "blackhole", "kill"]
Match = bytes | Callable[[bytes], bool] | None


class Trip:
    """An armed fault: ``fired`` tells whether it has struck, ``wait`` waits for that."""

    def __init__(self, loses: Literal["request", "reply"], match: Match, then: Then) -> None:
        self.loses = loses
        self.then = then
        self._match = match
        self._event = threading.Event()

    @property
    def fired(self) -> bool:
        """True once the message was lost."""
        return self._event.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has struck; False when ``timeout_s`` seconds went by first."""
        return self._event.wait(timeout_s)

    def fire(self) -> None:
        """Record that it struck (called by the proxy)."""
        self._event.set()

    def wants(self, message: bytes | None) -> bool:
        """True when this message is the one; None stands for bytes that cannot be read.

        One that was armed at several proxies has struck when it did so at any of them.
        """
        if self.fired:
            return False
        if message is None:
            return self._match is None
        if callable(self._match):
            return self._match(message)
        return self._match is None or self._match in message


class Tap:
    """What a proxy reads of one connection, to know when a trip is due on it."""

    def __init__(self) -> None:
        self._requests = FrameReader(expects_preface=True)
        self._replies = FrameReader(expects_preface=False)
        self.awaited: Trip | None = None
        self._stream = 0

    def on_client_bytes(self, data: bytes, armed: list[Trip]) -> tuple[int, Trip | None]:
        """Return how many of ``data`` may pass, and the trip that fires now."""
        frames = self._requests.feed(data)
        if self._requests.is_opaque:
            return self._on_message(None, Frame(DATA, 0, b"", 0), armed, len(data))
        for frame in frames:
            if frame.kind == DATA and frame.payload:
                passing, trip = self._on_message(frame.payload, frame, armed, len(data))
                if trip is not None:
                    return passing, trip
        return len(data), None

    def on_server_bytes(self, data: bytes) -> tuple[int, Trip | None]:
        """Return how many of ``data`` may pass, and the trip that fires now."""
        frames = [] if self._requests.is_opaque else self._replies.feed(data)
        if self.awaited is None:
            return len(data), None
        if self._requests.is_opaque:
            return 0, self._take_awaited()
        for frame in frames:
            if frame.stream == self._stream and frame.kind in (DATA, HEADERS, RST_STREAM):
                return frame.start, self._take_awaited()
        return len(data), None

    def _on_message(self, message: bytes | None, frame: Frame, armed: list[Trip], size: int) -> tuple[int, Trip | None]:
        for trip in armed:
            if not trip.wants(message):
                continue
            if trip.loses == "request":
                armed.remove(trip)
                return frame.start, trip
            if self.awaited is None:
                armed.remove(trip)
                self.awaited, self._stream = trip, frame.stream
                break
        return size, None

    def _take_awaited(self) -> Trip | None:
        trip, self.awaited = self.awaited, None
        return trip
