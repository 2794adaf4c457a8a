"""The thread of a fault proxy: one loop that accepts, carries bytes, and obeys commands.

Everything that happens to connections happens in this thread. Other threads hand it a function and
wait until it has run, so a fault is in force when the call that asked for it returns.
"""

from __future__ import annotations

import copy
import logging
import os
import selectors
import signal
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, TypeVar

from leasekeeper.errors import StopWork, Unavailable
from leasekeeper.testing import ports
from leasekeeper.testing.relay import CHUNK_BYTES, Lane, Link, Mode, Side, Totals, reset
from leasekeeper.testing.trips import Trip

T = TypeVar("T")
_logger = logging.getLogger("leasekeeper.testing")
MAX_LINKS = 1024
COMMAND_TIMEOUT_S = 30.0
JOIN_TIMEOUT_S = 10.0

Classify = Callable[[tuple[str, int]], str]


class Switch:
    """Accept on a port of 127.0.0.1 and join each connection to ``target``.

    ``classify`` names the lane of a new connection by its source address; without it there is one
    lane.
    """

    def __init__(self, target: tuple[str, int], *, port: int, name: str, classify: Classify | None) -> None:
        self.target = target
        self.totals = Totals()
        self.lanes: dict[str, Lane] = {"": Lane()}
        self.links: set[Link] = set()
        self.armed: list[Trip] = []
        self._classify = classify
        self._is_open = True
        self._watched: dict[socket.socket, int] = {}
        self._commands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._listener = ports.listener(port)
        for sock in (self._listener, self._wake_reader, self._wake_writer):
            sock.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._listens = True
        self._thread = threading.Thread(target=self._run, name=f"leasekeeper-proxy-{name}", daemon=True)
        _open_switches.add(self)
        self._thread.start()

    # -- from other threads

    def call(self, command: Callable[[], T]) -> T:
        """Run ``command`` in the loop's thread and return its result."""
        done: Future[T] = Future()
        self._commands.append((command, done))
        try:
            self._wake_writer.send(b"\0")
        except BlockingIOError:
            pass  # it has been woken often enough
        except OSError as error:
            raise Unavailable("this proxy is closed", operation="proxy") from error
        return done.result(COMMAND_TIMEOUT_S)

    def close(self) -> None:
        """End the thread, reset every connection and free the port."""
        if self._is_open:
            self.call(self._stop)
            self._thread.join(JOIN_TIMEOUT_S)
            _open_switches.discard(self)

    # -- in the loop's thread

    def lane(self, name: str) -> Lane:
        """The lane of that name; on first use a copy of the nameless one, whatever befalls it."""
        if name not in self.lanes:
            self.lanes[name] = copy.deepcopy(self.lanes[""])
        return self.lanes[name]

    def choose(self, name: str | None) -> list[Lane]:
        """The lane of that name; for None all there are, and with them those to come."""
        return list(self.lanes.values()) if name is None else [self.lane(name)]

    def cut(self, lanes: Collection[Lane]) -> None:
        """Reset the connections of these lanes and refuse new ones."""
        for lane in lanes:
            lane.refuses = True
        for link in [link for link in self.links if link.lane.refuses]:
            self._drop(link)
        if self._classify is None:
            self._listen(False)

    def hold(self, lanes: Collection[Lane], *, to_server: bool, to_client: bool) -> None:
        """Let nothing pass in these directions; it is kept."""
        for lane in lanes:
            if to_server:
                lane.to_server.mode = Mode.HOLD
            if to_client:
                lane.to_client.mode = Mode.HOLD

    def delay(self, lanes: Collection[Lane], delay_s: float, *, to_server: bool, to_client: bool) -> None:
        """Keep every chunk that is read from now on for ``delay_s`` seconds."""
        for lane in lanes:
            if to_server:
                lane.to_server.delay_s = delay_s
            if to_client:
                lane.to_client.delay_s = delay_s

    def lose_replies(self, lanes: Collection[Lane]) -> None:
        """Throw away what the server sends, and what of it has not gone out yet."""
        for lane in lanes:
            lane.to_client.mode = Mode.LOSE
        for link in self.links:
            if link.lane.to_client.mode is Mode.LOSE:
                link.lose_pending_replies()

    def end_cleanly(self, lanes: Collection[Lane]) -> None:
        """End every connection of these lanes as a server that shuts down politely."""
        now = time.monotonic()
        for link in self.links:
            if any(link.lane is lane for lane in lanes):
                link.end_cleanly(now)
                link.flush("client", now)
                link.flush("server", now)

    def heal(self, lanes: Collection[Lane], *, reset_all: bool) -> None:
        """End every fault; connections that have lost something are reset, others too if asked."""
        self.armed.clear()
        for lane in lanes:
            lane.refuses = False
            lane.to_server.mode = lane.to_client.mode = Mode.PASS
            lane.to_server.delay_s = lane.to_client.delay_s = 0.0
        for link in list(self.links):
            if any(link.lane is lane for lane in lanes) and (reset_all or link.is_doomed):
                self._drop(link)
        self._listen(True)

    # -- the loop

    def _run(self) -> None:
        try:
            self._loop()
        finally:
            self._is_open = False
            for link in list(self.links):
                self._drop(link)
            self._selector.close()
            self._close_sockets()
            while self._commands:
                self._commands.popleft()[1].set_exception(Unavailable("this proxy is closed"))

    def _loop(self) -> None:
        while self._is_open:
            for key, events in self._selector.select(self._pause_s()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._wake_reader:
                    self._obey()
                else:
                    link, side = key.data
                    self._serve(link, side, events)
            self._settle()

    def _pause_s(self) -> float | None:
        now = time.monotonic()
        pauses = [due for link in self.links if (due := link.next_due_s(now)) is not None]
        return min(pauses, default=None)

    def _obey(self) -> None:
        try:
            self._wake_reader.recv(CHUNK_BYTES)
        except BlockingIOError:
            pass
        while self._commands:
            command, done = self._commands.popleft()
            try:
                done.set_result(command())
            except (StopWork, Exception) as error:  # noqa: BLE001 -- it belongs to the thread that asked
                done.set_exception(error)

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError:
            return  # it went away while it was queued
        lane = self._lane_of(address)
        if lane is None or lane.refuses or len(self.links) >= MAX_LINKS:
            self.totals.refused += 1
            reset(sock)
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.totals.connections += 1
        self.links.add(Link(sock, lane, self.totals, self._unwatch))

    def _lane_of(self, address: tuple[str, int]) -> Lane | None:
        try:
            return self.lane(self._classify(address) if self._classify else "")
        except (StopWork, Exception):
            # The loop must live; who cannot be classified is refused.
            _logger.exception("a proxy's classify(%r) failed", address)
            return None

    def _serve(self, link: Link, side: Side, events: int) -> None:
        if link not in self.links:
            return  # dropped by an earlier event of this round
        now = time.monotonic()
        if side == "server" and not link.is_connected:
            link.finish_connect()
        elif events & selectors.EVENT_WRITE:
            link.flush(side, now)
        if events & selectors.EVENT_READ:
            self._read(link, side, now)

    def _read(self, link: Link, side: Side, now: float) -> None:
        sock = link.client if side == "client" else link.server
        # A command of this same round may have changed what may be read.
        if sock is None or not link.events(side, now) & selectors.EVENT_READ:
            return
        try:
            data = sock.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            link.break_off(side)
            return
        passing, trip = self._tap(link, side, data)
        if passing or not data:
            link.carry(side, data[:passing], now)
        if trip is not None:
            link.count_lost(side, len(data) - passing)
            self._strike(link, trip)
        else:
            link.flush("server" if side == "client" else "client", now)

    def _tap(self, link: Link, side: Side, data: bytes) -> tuple[int, Trip | None]:
        if not data:
            return 0, None
        if side == "client":
            return link.tap.on_client_bytes(data, self.armed)
        return link.tap.on_server_bytes(data)

    def _strike(self, link: Link, trip: Trip) -> None:
        trip.fire()  # first, so that whoever sees the effect finds it fired
        if trip.then == "reset":
            self._drop(link)
        elif trip.then == "cut":
            self.cut(self.choose(None))
        elif trip.then == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            self.hold(self.choose(None), to_server=True, to_client=True)

    def _settle(self) -> None:
        """Bring what the selector watches in line with what every link waits for."""
        now = time.monotonic()
        for link in list(self.links):
            link.connect(self.target)
            if link.is_over or (link.closes_at is not None and now >= link.closes_at):
                self._forget(link)
                continue
            self._watch(link, "client", now)
            self._watch(link, "server", now)

    # -- sockets and links

    def _listen(self, wanted: bool) -> None:
        """Accept connections, or have the kernel refuse them; the port stays ours."""
        if wanted == self._listens:
            return
        if wanted:
            self._listener.listen(ports.BACKLOG)
            self._selector.register(self._listener, selectors.EVENT_READ)
        else:
            try:
                # On Linux a shut listener refuses and stays bound. Where that fails, connections
                # are accepted and reset.
                self._listener.shutdown(socket.SHUT_RDWR)
            except OSError:
                return
            self._selector.unregister(self._listener)
        self._listens = wanted

    def _watch(self, link: Link, side: Side, now: float) -> None:
        sock = link.client if side == "client" else link.server
        if sock is None:
            return
        wanted = link.events(side, now)
        watched = self._watched.get(sock, 0)
        if wanted == watched:
            return
        if not wanted:
            self._unwatch(sock)
        elif watched:
            self._selector.modify(sock, wanted, (link, side))
        else:
            self._selector.register(sock, wanted, (link, side))
        if wanted:
            self._watched[sock] = wanted

    def _unwatch(self, sock: socket.socket) -> None:
        if self._watched.pop(sock, 0):
            self._selector.unregister(sock)

    def _drop(self, link: Link) -> None:
        link.reset()
        self._forget(link)

    def _forget(self, link: Link) -> None:
        link.close()
        self.links.discard(link)
        # A trip whose connection ended before the reply came waits for the next one.
        if link.tap.awaited is not None:
            self.armed.append(link.tap.awaited)
            link.tap.awaited = None

    def _stop(self) -> None:
        self._is_open = False

    def _close_sockets(self) -> None:
        for sock in (self._listener, self._wake_reader, self._wake_writer):
            sock.close()

    def abandon(self) -> None:
        """In a forked child: close its copies, so that the parent's resets are real."""
        self._is_open = False
        for link in list(self.links):
            for sock in (link.client, link.server):
                if sock is not None:
                    sock.close()
        self._close_sockets()


def _abandon_all() -> None:
    for switch in list(_open_switches):
        switch.abandon()


_open_switches: weakref.WeakSet[Switch] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
