"""A TCP proxy that breaks the network on command, to stand between a client and etcd.

``with FaultProxy(etcd.endpoint) as proxy: Keeper(proxy.endpoint)``. Faults are values (``Fault``)
and each has a method. They last until ``heal()``; a fault is in force when the call returns. The
proxy is plain TCP, so TLS goes through it unread.

What is real and what is not. A client cannot tell these faults from a network's, with one
exception: a black hole still *accepts* connections, because the kernel does that for us; nothing
is carried and the server is not dialled. While a direction does not pass, nothing goes that way:
no bytes, and no news that the other end has closed or died. Held bytes are delivered on
``heal()``, late and in order, as a network that dropped and retransmitted them would;
``heal(reset=True)`` drops them with their connections. Bytes that were lost are never skipped
over: their connection ends with the fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from leasekeeper.errors import ConfigError, Misuse
from leasekeeper.testing.ports import HOST
from leasekeeper.testing.switch import Classify, Switch
from leasekeeper.testing.trips import Match, Then, Trip

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_TRIPS = 16


class Way(Enum):
    """The directions that a fault strikes."""

    BOTH = "both"
    TO_SERVER = "to_server"
    TO_CLIENT = "to_client"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault as a value, for ``FaultProxy.inject``; ``way`` and ``delay_s`` where they apply."""

    name: Literal["cut", "blackhole", "delay", "lose_replies", "close_cleanly"]
    way: Way = Way.BOTH
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Counts:
    """What has happened at a proxy since it started. Bytes count when they are handed on."""

    connections: int
    refused: int
    open: int
    bytes_to_server: int
    bytes_to_client: int
    lost_to_server: int
    lost_to_client: int


class FaultProxy:
    """Stand before ``target`` ("host:port", an IPv4 address) on a port of 127.0.0.1.

    A context manager; nothing listens before it is entered or ``start()`` is called. One daemon
    thread; at most 1024 connections and 256 KiB of bytes kept per direction of each, beyond which
    the sender is made to wait. Safe to use from several threads. A forked child does not have it.

    ``classify`` gives each new connection a lane by its source address, and the methods' ``lane``
    then strikes that lane only; None strikes them all.
    """

    def __init__(self, target: str, *, name: str = "", port: int = 0, classify: Classify | None = None) -> None:
        host, _, number = target.rpartition(":")
        if not host or not number.isdigit():
            raise ConfigError(field="target", value=target, expected='"host:port"')
        self.target = target
        self._address = (HOST if host == "localhost" else host, int(number))
        self._name = name or target
        self._port = port
        self._classify = classify
        self._switch: Switch | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Listen. Misuse when it does already."""
        if self._switch is not None:
            raise Misuse(f"the proxy before {self.target} was started already")
        self._switch = Switch(self._address, port=self._port, name=self._name, classify=self._classify)
        self._port = self._switch.port

    def close(self) -> None:
        """Reset every connection and free the port. Calling it again does nothing."""
        if self._switch is not None:
            self._switch.close()
            self._switch = None

    @property
    def endpoint(self) -> str:
        """Where clients reach it, as "127.0.0.1:port"."""
        if not self._port:
            raise Misuse("this proxy was never started: use it in a with statement")
        return f"{HOST}:{self._port}"

    @property
    def counts(self) -> Counts:
        """What has happened so far."""
        switch = self._running()
        totals = switch.totals
        # Asked of the loop's thread: what a client has read is then counted for sure.
        return switch.call(
            lambda: Counts(
                connections=totals.connections,
                refused=totals.refused,
                open=len(switch.links),
                bytes_to_server=totals.to_server,
                bytes_to_client=totals.to_client,
                lost_to_server=totals.lost_to_server,
                lost_to_client=totals.lost_to_client,
            )
        )

    # -- faults

    def inject(self, fault: Fault, *, lane: str | None = None) -> None:
        """Put a fault in force. It adds to those in force already."""
        switch = self._running()
        to_server = fault.way is not Way.TO_CLIENT
        to_client = fault.way is not Way.TO_SERVER

        def strike() -> None:
            lanes = switch.choose(lane)
            if fault.name == "cut":
                switch.cut(lanes)
            elif fault.name == "blackhole":
                switch.hold(lanes, to_server=to_server, to_client=to_client)
            elif fault.name == "delay":
                switch.delay(lanes, fault.delay_s, to_server=to_server, to_client=to_client)
            elif fault.name == "lose_replies":
                switch.lose_replies(lanes)
            else:
                switch.end_cleanly(lanes)

        switch.call(strike)

    def cut(self, *, lane: str | None = None) -> None:
        """Reset all connections and refuse new ones, as when a host is down and says so."""
        self.inject(Fault("cut"), lane=lane)

    def blackhole(self, way: Way = Way.BOTH, *, lane: str | None = None) -> None:
        """Carry nothing and say nothing: a silent partition. Held bytes come late, on ``heal()``.

        With one ``way`` the other direction passes: ``TO_CLIENT`` lets requests through and holds
        their replies.
        """
        self.inject(Fault("blackhole", way), lane=lane)

    def delay(self, seconds: float, way: Way = Way.BOTH, *, lane: str | None = None) -> None:
        """Keep everything sent from now on for ``seconds``, in each direction of ``way``."""
        if seconds < 0:
            raise ConfigError(field="seconds", value=seconds, expected="a number not below 0")
        self.inject(Fault("delay", way, seconds), lane=lane)

    def lose_replies(self, *, lane: str | None = None) -> None:
        """Let requests through and throw away all that the server sends.

        A connection that has lost something is reset on ``heal()``: it never carries on with a
        hole.
        """
        self.inject(Fault("lose_replies", Way.TO_CLIENT), lane=lane)

    def close_cleanly(self, *, lane: str | None = None) -> None:
        """End existing connections with an end of stream; new ones are served at once."""
        self.inject(Fault("close_cleanly"), lane=lane)

    def heal(self, *, reset: bool = False, lane: str | None = None) -> None:
        """End every fault and disarm what has not struck yet.

        Held bytes are delivered, in order, unless ``reset``: then all connections are reset and the
        bytes held on them never arrive. Connections that have lost something are reset either way.
        """
        switch = self._running()
        switch.call(lambda: switch.heal(switch.choose(lane), reset_all=reset))

    # -- faults that wait for a message

    def lose_next_reply(self, match: Match = None, *, then: Then = "reset") -> Trip:
        """Let the next request reach the server and its reply never come back.

        The request is the next gRPC message that contains the bytes ``match`` (a key, a value), or
        for which ``match(message)`` is true; None takes any, also a heartbeat. When the server's
        answer to that very call reaches the proxy, which proves that the server has acted, it is
        thrown away, and ``then`` happens: ``reset`` resets this connection, and new ones work;
        ``cut`` and ``blackhole`` do what those methods do, until ``heal()``; ``kill`` ends this very
        process by SIGKILL, for a proxy in the process that is to die. Wait for it with ``Trip.wait``.

        Messages are read from HTTP/2 in plain text; one longer than a frame (16 KiB) is matched frame by frame. On any
        other connection, TLS above all, nothing can be read: there a trip with a ``match`` never strikes, and one
        without takes the next bytes for the request and the next that come back for its reply, so that whether the
        server has acted is not certain.
        """
        return self.arm(Trip("reply", match, then))

    def lose_next_request(self, match: Match = None, *, then: Then = "reset") -> Trip:
        """Stop the next request before the server has all of it.

        ``match`` and ``then`` as in ``lose_next_reply``.
        """
        return self.arm(Trip("request", match, then))

    def arm(self, trip: Trip) -> Trip:
        """Wait for the message of a trip, which may be armed at other proxies as well: it strikes once."""
        switch = self._running()
        if len(switch.armed) >= MAX_TRIPS:
            raise Misuse(f"{MAX_TRIPS} trips are armed at this proxy already; heal() disarms them")
        switch.call(lambda: switch.armed.append(trip))
        return trip

    def _running(self) -> Switch:
        if self._switch is None:
            raise Misuse(f"the proxy before {self.target} does not run")
        return self._switch
