"""One watch stream of a keeper, shared by all its watches.

Guarantee: a watch that was opened from a revision tells of the first deletion (or foreign change) of its key after that
revision, exactly once, across broken streams, silent members and compaction. Where it can no longer tell (the history was
compacted away, the right to read was withdrawn, the keeper closed) it says so, and its owner reads instead.

A stream is given up when it stays silent although progress was asked for; the next one goes to the next endpoint and goes
on from where each watch stands. One thread reads; it is started by the first watch.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import grpc

from leasekeeper.errors import LeasekeeperError
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.authority import NEVER
from leasekeeper.protocol.plan import WATCH_PATH, Cause, Fault, Kind, News
from leasekeeper.wire.interruption import spared
from leasekeeper.wire.status import fault_of, fault_of_text
from leasekeeper.wire.worker import Worker

if TYPE_CHECKING:
    from leasekeeper.wire.engine import Engine
    from leasekeeper.wire.route import Connection

__all__ = ["News", "WatchHub", "WatchedKey"]

log = logging.getLogger("leasekeeper")

# After so long a silence progress is asked for; after as long again the stream counts as dead.
SILENCE_S = 3.0
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0
# A stale login is renewed at most this often on behalf of watches, a denied watch taken for one at most that often.
RELOGIN_EVERY_S = 1.0
RELOGIN_IF_DENIED_EVERY_S = 5.0
# What etcd may give instead of a watch's number when it refuses it.
NO_NUMBER = -1


class WatchedKey:
    """One watch on one key. ``close`` never blocks and may be called twice."""

    __slots__ = ("_hub", "callback", "key", "number", "puts", "start")

    def __init__(
        self, hub: WatchHub, number: int, key: bytes, start: int, puts: bool, callback: Callable[[News], None]
    ) -> None:
        self._hub = hub
        self.number = number
        self.key = key
        self.start = start
        self.puts = puts
        self.callback = callback

    def close(self) -> None:
        """Stop watching."""
        self._hub._drop(self)

    def close_soon(self) -> None:
        """Stop watching at the next `tick`. For the garbage collector, which may be at work under a lock of the hub."""
        if self.number in self._hub._watches:
            self._hub._left.append(self)

    def request(self) -> pb.WatchRequest:
        """What opens this watch on a stream."""
        create = pb.WatchCreateRequest(key=self.key, start_revision=self.start, watch_id=self.number)
        if not self.puts:
            create.filters.append(pb.WatchCreateRequest.NOPUT)
        return pb.WatchRequest(create_request=create)


class _Stream:
    """One open stream: what is sent on it, and the call to read from or cancel."""

    def __init__(self, connection: Connection, metadata: Any, token: str | None) -> None:
        self.connection = connection
        self.token = token
        self.heard = False
        self.outbox: SimpleQueue[pb.WatchRequest | None] = SimpleQueue()
        # Watches asked for and not answered yet. etcd answers in order, and to refuse one it may give no number.
        self._asked: deque[int] = deque()
        method = connection.channel.stream_stream(
            WATCH_PATH,
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.WatchResponse.FromString,
        )
        self.call = method(self._requests(), metadata=metadata)

    def _requests(self) -> Iterator[pb.WatchRequest]:
        while (request := self.outbox.get()) is not None:
            yield request

    def ask(self, watched: WatchedKey) -> None:
        """Ask for a watch. Called under the hub's lock, so that the order is that of the requests."""
        self._asked.append(watched.number)
        self.outbox.put(watched.request())

    def number_of(self, response: pb.WatchResponse) -> int:
        """Which watch a response is about."""
        asked = self._asked.popleft() if response.created and self._asked else NO_NUMBER
        return asked if response.watch_id == NO_NUMBER else response.watch_id

    def end(self) -> None:
        """End it from this side."""
        self.outbox.put(None)
        spared(self.call.cancel)


class WatchHub:
    """All watches of one keeper."""

    def __init__(self, engine: Engine, now: Callable[[], float]) -> None:
        self._engine = engine
        self._now = now
        self._lock = threading.RLock()
        self._wanted = threading.Condition(self._lock)
        self._watches: dict[int, WatchedKey] = {}
        self._left: deque[WatchedKey] = deque()
        self._number = 0
        self._stream: _Stream | None = None
        self._worker = Worker(self._run, "leasekeeper-watch")
        self._closed = False
        self._quiet = False
        # Whether the thread is inside of grpc.
        self._inside = False
        self._heard_s = 0.0
        self._asked_s: float | None = None
        self._relogin_s = NEVER

    def __len__(self) -> int:
        return len(self._watches)

    def watch(self, key: bytes, start: int, callback: Callable[[News], None], *, puts: bool = False) -> WatchedKey:
        """Call ``callback`` once, from the watch thread, with the first news of ``key`` at ``start`` or later.

        Args:
            key: the key.
            start: the first revision that counts.
            callback: must return at once and raise nothing.
            puts: whether a write to the key is news as well.
        """
        with self._lock:
            self._number += 1
            watched = WatchedKey(self, self._number, key, start, puts, callback)
            if not self._closed:
                self._worker.start()
                self._watches[watched.number] = watched
                if self._stream is not None:
                    self._stream.ask(watched)
                self._wanted.notify_all()
                return watched
        callback(News.BLIND)
        return watched

    def close(self) -> None:
        """End the stream and its thread; every watch is told that it is blind."""
        with self._lock:
            self._closed = True
            stream, watches = self._stream, list(self._watches.values())
            self._watches.clear()
            self._wanted.notify_all()
        if stream is not None:
            stream.end()
        for watched in watches:
            watched.callback(News.BLIND)

    def quiet(self, left_s: float) -> bool:
        """Close the stream and open none until `go_on`; whether the thread has left grpc within ``left_s`` seconds.

        The watches stay, and go on from where they stand.
        """
        with self._lock:
            self._quiet = True
            stream = self._stream
        if stream is not None:
            stream.end()
        with self._lock:
            return self._wanted.wait_for(lambda: not self._inside, max(0.0, left_s))

    def go_on(self) -> None:
        """The end of `quiet`."""
        with self._lock:
            self._quiet = False
            self._wanted.notify_all()

    def tick(self, now_s: float) -> None:
        """Look whether the stream is alive; called now and then by the heart. Never blocks."""
        while self._left:
            self._drop(self._left.popleft())
        with self._lock:
            stream = self._stream
            if stream is None or not self._watches:
                return
            if self._asked_s is not None and now_s - self._asked_s > SILENCE_S:
                self._asked_s = None
                self._stream = None
            elif self._asked_s is None and now_s - self._heard_s > SILENCE_S:
                self._asked_s = now_s
                self._send(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))
                return
            else:
                return
        stream.end()

    # ------------------------------------------------------------ sending

    def _send(self, request: pb.WatchRequest) -> None:
        if self._stream is not None:
            self._stream.outbox.put(request)

    def _drop(self, watched: WatchedKey) -> None:
        with self._lock:
            if self._watches.pop(watched.number, None) is not None:
                cancel = pb.WatchCancelRequest(watch_id=watched.number)
                self._send(pb.WatchRequest(cancel_request=cancel))

    # ------------------------------------------------------------ reading

    def _run(self) -> None:
        pause_s = RETRY_FIRST_S
        while self._await_wanted():
            began_s = self._now()
            self._one_stream()
            lasted = self._quiet or self._now() - began_s > RETRY_MAX_S
            pause_s = RETRY_FIRST_S if lasted else min(RETRY_MAX_S, 2 * pause_s)
            self._rest(pause_s)

    def _rest(self, pause_s: float) -> None:
        """Let some time pass, whatever new watches come meanwhile."""
        until_s = self._now() + pause_s
        with self._lock:
            self._inside = False
            self._wanted.notify_all()
            while not self._closed and (left_s := until_s - self._now()) > 0:
                self._wanted.wait(left_s)

    def _await_wanted(self) -> bool:
        """Until there is something to watch; False when the hub is closed."""
        with self._lock:
            while (self._quiet or not self._watches) and not self._closed:
                self._wanted.wait()
            self._inside = not self._closed
            return not self._closed

    def _one_stream(self) -> None:
        """Open a stream and read it to its end."""
        stream: _Stream | None = None
        try:
            stream = self._open()
            if stream is None:
                return
            for response in stream.call:
                stream.connection.worked = True
                stream.heard = True
                self._heard(response, stream)
        except grpc.RpcError as error:
            if stream is not None and not stream.heard:
                self._engine.login.helps(fault_of(error, "Watch", ""), stream.token)
        except (ValueError, Fault, LeasekeeperError):
            pass  # the channel was closed under the stream, or there is none to be had just now; there is a next round
        except Exception:
            log.exception("a watch stream failed; another one is opened")
        finally:
            self._end(stream)

    def _open(self) -> _Stream | None:
        """A stream on which every watch has been asked for; logs in first when that is due."""
        if self._engine.login.wanted and not self._log_in():
            return None
        connection = self._engine.watches.connection()
        stream = _Stream(connection, self._engine.metadata(), self._engine.login.token)
        with self._lock:
            if self._closed or self._quiet:
                stream.end()
                return None
            self._stream, self._heard_s, self._asked_s = stream, self._now(), None
            for watched in self._watches.values():
                stream.ask(watched)
        return stream

    def _log_in(self) -> bool:
        try:
            self._engine.log_in(self._engine.watches)
        except Fault as fault:
            if fault.kind is Kind.FIX:
                self._all_blind()
            return False
        return True

    def _all_blind(self) -> None:
        """Nothing can be watched until a person mends something: whoever reads instead is told what."""
        with self._lock:
            watches = list(self._watches.values())
            self._watches.clear()
        for watched in watches:
            watched.callback(News.BLIND)

    def _end(self, stream: _Stream | None) -> None:
        if stream is None:
            return
        stream.end()
        with self._lock:
            if self._stream is stream:
                self._stream = None
        if not (self._closed or self._quiet):
            self._engine.watches.advance(stream.connection)

    def _heard(self, response: pb.WatchResponse, stream: _Stream) -> None:
        news: News | None = None
        with self._lock:
            self._heard_s, self._asked_s = self._now(), None
            watched = self._watches.get(stream.number_of(response))
            if watched is None:
                return
            news = self._canceled(watched, response, stream) if response.canceled else _news_of(watched, response)
            if news is None:
                return
            del self._watches[watched.number]
            if not response.canceled:
                cancel = pb.WatchCancelRequest(watch_id=watched.number)
                self._send(pb.WatchRequest(cancel_request=cancel))
        watched.callback(news)

    def _canceled(self, watched: WatchedKey, response: pb.WatchResponse, stream: _Stream) -> News | None:
        """Etcd ended one watch. For a stale login, which some releases call "permission denied": a new stream."""
        fault = fault_of_text(response.cancel_reason, "Watch", stream.connection.endpoint)
        if response.compact_revision or fault is None:
            return News.BLIND
        every_s = RELOGIN_EVERY_S
        if fault.cause is Cause.DENIED:
            every_s, fault.cause = RELOGIN_IF_DENIED_EVERY_S, Cause.LOGIN_STALE
        login, now_s = self._engine.login, self._now()
        if login.token == stream.token and now_s - self._relogin_s < every_s:
            return News.BLIND
        if not login.helps(fault, stream.token):
            return News.BLIND
        self._relogin_s = now_s
        stream.end()
        return None


def _news_of(watched: WatchedKey, response: pb.WatchResponse) -> News | None:
    for event in response.events:
        if event.kv.mod_revision < watched.start:
            continue
        if event.type == pb.Event.DELETE:
            return News.DELETED
        if watched.puts:
            return News.CHANGED
    return None
