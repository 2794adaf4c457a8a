"""The engine: one RPC with everything around it, as a small plan that both interpreters drive.

What is around it: login and one repeated login, the next endpoint when nothing was sent, a deadline over all attempts,
etcd's require-leader rule, the high-water mark of revisions, and the mapping of every error to a `Fault`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.message import Message

from leasekeeper.errors import ConfigError, LeasekeeperError, StopWork
from leasekeeper.protocol.plan import AUTHENTICATE, CALL_TIMEOUT_S, Call, Cause, Fault, Kind, Method, rewound
from leasekeeper.wire.auth import Joining
from leasekeeper.wire.channel import Channels
from leasekeeper.wire.interruption import let_go, spared
from leasekeeper.wire.route import Connection, Route, keeper_closed
from leasekeeper.wire.status import fault_of, public

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasekeeper.wire.auth import Login

__all__ = ["Attempt", "Engine", "Exchange", "Step", "block", "drive"]

METADATA_KEY = re.compile(r"[a-z0-9_.-]+")
# etcd then refuses what it could only answer from a minority, instead of letting it hang.
REQUIRE_LEADER = ("hasleader", "true")
# What another endpoint would say as well.
HERE_TO_STAY = (Cause.LEASE_NOT_FOUND, Cause.LEASE_EXISTS, Cause.COMPACTED, Cause.BUSY, Cause.LOGIN_STALE)


class Attempt:
    """One RPC on one connection. Performed by `block` or `start`, at once: that is when it was sent."""

    __slots__ = ("connection", "metadata", "method", "request", "sent_s", "timeout_s")

    def __init__(
        self,
        connection: Connection,
        method: Method,
        request: Message,
        timeout_s: float,
        metadata: Metadata,
        sent_s: float,
    ) -> None:
        self.connection = connection
        self.method = method
        self.request = request
        self.timeout_s = timeout_s
        self.metadata = metadata
        self.sent_s = sent_s

    def _callable(self) -> grpc.UnaryUnaryMultiCallable[Any, Any]:
        prepared = self.connection.methods.get(self.method.path)
        if prepared is None:
            prepared = self.connection.channel.unary_unary(
                self.method.path,
                request_serializer=type(self.request).SerializeToString,
                response_deserializer=self.method.reply.FromString,
            )
            self.connection.methods[self.method.path] = prepared
        return prepared

    def block(self) -> Message:
        """Perform it in this thread; the reply, or a Fault."""
        self.connection.under_way.add(self)
        try:
            reply: Message = self._callable()(self.request, timeout=self.timeout_s, metadata=self.metadata)
        except grpc.RpcError as error:
            raise self._fault(error) from None
        except ValueError as error:
            raise self._closed(error) from None
        except BaseException as error:
            let_go(error)
            raise
        finally:
            self.connection.under_way.discard(self)
        return reply

    def start(self, done: Callable[[Outcome], None]) -> Callable[[], object]:
        """Perform it in the background; returns what cancels it.

        ``done`` is called once, on a thread of grpc's, with what gives the reply or a Fault: called where it is wanted,
        so that grpc's thread is not kept.
        """
        self.connection.under_way.add(self)
        try:
            future = self._callable().future(self.request, timeout=self.timeout_s, metadata=self.metadata)
        except BaseException as error:
            self.connection.under_way.discard(self)
            if not isinstance(error, (ValueError, grpc.RpcError)):
                let_go(error)
                raise
            fault = self._fault(error) if isinstance(error, grpc.RpcError) else self._closed(error)
            done(lambda: fault)
            return lambda: None
        spared(partial(future.add_done_callback, partial(self._ended, done)))
        return partial(spared, future.cancel)

    def _ended(self, done: Callable[[Outcome], None], future: Any) -> None:
        self.connection.under_way.discard(self)
        done(partial(self._result, future))

    def _result(self, future: Any) -> Message | Fault:
        try:
            reply: Message = future.result()
        except grpc.RpcError as error:
            return self._fault(error)
        except (StopWork, Exception) as error:  # noqa: BLE001 - grpc raises errors of its own kinds for a cancelled future
            return self._other(Kind.UNKNOWN, error)
        return reply

    def _fault(self, error: grpc.RpcError) -> Fault:
        return fault_of(error, self.method.operation, self.connection.endpoint)

    def _closed(self, error: Exception) -> Fault:
        """Raised by grpc when the channel was closed: here, for another one, or for good by whoever lent it."""
        fault = self._other(Kind.NOT_SENT, error)
        if self.connection.lent:
            fault.cause, fault.text = Cause.CLOSED, "the grpc.Channel that was lent to the keeper is closed"
        return fault

    def _other(self, kind: Kind, error: BaseException) -> Fault:
        return Fault(kind, text=str(error), operation=self.method.operation, endpoint=self.connection.endpoint)


# What became of a step: the reply (None of a login), or what went wrong.
Outcome = Callable[[], "Message | Fault | None"]
Step = Attempt | Joining
Exchange = Generator[Step, Any, Any]
T = TypeVar("T")
Metadata = tuple[tuple[str, str | bytes], ...]


def block(attempts: Generator[Step, Any, T]) -> T:
    """Perform attempts one after the other in this thread; the result, or the Fault that they ended with."""
    try:
        attempt = next(attempts)
        while True:
            try:
                reply = attempt.block()
            except BaseException as error:  # noqa: BLE001 - an interruption, too, must reach the plan
                attempt = attempts.throw(error)
            else:
                attempt = attempts.send(reply)
    except StopIteration as done:
        result: T = done.value
        return result


def drive(attempts: Generator[Any, Any, object], done: Callable[[object], object]) -> None:
    """Perform attempts without waiting, each step on the thread that the answer came on.

    ``done`` gets the end of it: the result, or what was raised.
    """

    def step(outcome: Callable[[], object] | None) -> None:
        try:
            result = outcome() if outcome is not None else None
            attempt = attempts.throw(result) if isinstance(result, Fault) else attempts.send(result)
            attempt.start(step)
        except StopIteration as answer:
            done(answer.value)
        except (StopWork, Exception) as error:  # noqa: BLE001 - told to whoever waits for the end
            done(error)

    step(None)


class _HighWater:
    """The highest revision that a linearizable reply has shown, in one era of the store.

    A request is measured by the mark that was valid when it was sent, and raises that one only: an answer of an era that is over
    says nothing about the revisions after it, however late it comes.
    """

    __slots__ = ("revision",)

    def __init__(self) -> None:
        self.revision = 0


class Engine:
    """All calls of one keeper.

    ``calls``, ``beats``, ``watches`` and ``cleanups`` are separate walks over the endpoints, each with connections of its own,
    so that a beat never queues behind somebody's large request, and so that what users wait for can be cut off when the keeper
    is closed while its leases are revoked still.
    """

    def __init__(
        self, channels: Channels, login: Login, metadata: Sequence[tuple[str, str | bytes]], now: Callable[[], float]
    ) -> None:
        self._channels = channels
        self._now = now
        self._metadata = (REQUIRE_LEADER, *_checked(metadata))
        self.login = login
        # The prefix of all keys that are asked for, to name it to people; set by the core.
        self.scope = "leasekeeper/<namespace>/"
        self.calls = Route(channels, now)
        self.beats = Route(channels, now)
        self.watches = Route(channels, now)
        self.cleanups = Route(channels, now)
        self._high_water = _HighWater()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The endpoints as text."""
        return self._channels.names

    def public(self, fault: Fault) -> LeasekeeperError:
        """The error that users see for a fault of this engine."""
        return public(fault, self.endpoints, self.login.user, self.scope)

    def metadata(self) -> Metadata:
        """What is sent along with every call."""
        token = self.login.token
        return self._metadata if token is None else (*self._metadata, ("token", token))

    def accept_rewind(self) -> None:
        """Believe lower revisions from now on: the epoch was raised."""
        self._high_water = _HighWater()

    def tidy(self) -> None:
        """Close what was replaced and is not needed any more; called by the heart."""
        for route in (self.calls, self.beats, self.watches, self.cleanups):
            route.tidy()

    def close(self) -> None:
        """Close all connections that are not lent."""
        for route in (self.calls, self.beats, self.watches, self.cleanups):
            route.close()

    # ------------------------------------------------------------ one call

    def exchange(self, call: Call, route: Route | None = None) -> Exchange:
        """Attempts until one is answered, within the call's deadline.

        Only what surely had no effect is repeated here: the endpoint could not be reached, or the login had expired.
        """
        over = route or self.calls
        mark = self._high_water
        seen = mark.revision
        if self.login.user is None and over.size == 1:
            # Nothing could be repeated: the common case, without the machinery for it.
            reply = yield from self._once(call, over)
        else:
            reply = yield from self._with_login(call, over, self._now() + call.timeout_s)
        if call.method.linearizable:
            revision: int = reply.header.revision
            if revision > mark.revision:
                mark.revision = revision
            elif call.strict and mark is self._high_water and rewound(reply, seen):
                raise _went_back(call, revision, seen)
        return reply

    def _once(self, call: Call, route: Route) -> Exchange:
        connection = route.connection()
        sent_s = self._now()
        try:
            reply = yield Attempt(connection, call.method, call.request, call.timeout_s, self._metadata, sent_s)
        except Fault as fault:
            _move_on(route, connection, fault)
            raise _verdict([fault], connection.worked) from None
        route.heard(connection, sent_s)
        return reply

    def _with_login(self, call: Call, route: Route, until: float) -> Exchange:
        if self.login.wanted:
            yield from self._log_in(route, until)
        used = self.login.token
        try:
            return (yield from self._somewhere(call.method, call.request, route, until))
        except Fault as fault:
            if not self.login.helps(fault, used):
                raise
        if self.login.wanted:
            yield from self._log_in(route, until)
        return (yield from self._somewhere(call.method, call.request, route, until))

    def log_in(self, route: Route, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Log in now, in this thread."""
        block(self._log_in(route, self._now() + timeout_s))

    def _log_in(self, route: Route, until: float) -> Generator[Step, Any, None]:
        """See that there is a login, by one request for all who find it due at once.

        It runs by itself, so that nobody's cancellation takes it away from the others.
        """
        while True:
            ending, begun = self.login.join()
            if ending is None:
                return
            if begun:
                drive(self._logging_in(route, until), self.login.end)
            try:
                yield Joining(ending, max(0.05, until - self._now()))
            except Fault as fault:
                if begun or fault.lasting or self._now() >= until:
                    raise

    def _logging_in(self, route: Route, until: float) -> Generator[Step, Any, None]:
        try:
            reply = yield from self._somewhere(AUTHENTICATE, self.login.request(), route, until)
        except Fault as fault:
            if not self.login.failed(fault):
                raise
        else:
            self.login.accepted(reply)

    def _somewhere(self, method: Method, request: Message, route: Route, until: float) -> Exchange:
        """Each endpoint once at the most, as long as nothing was sent."""
        faults: list[Fault] = []
        worked = False
        while True:
            connection = route.connection()
            sent_s = self._now()
            try:
                reply = yield Attempt(connection, method, request, max(0.05, until - sent_s), self.metadata(), sent_s)
            except Fault as fault:
                _move_on(route, connection, fault)
                faults.append(fault)
                worked |= connection.worked
                safe = fault.kind is Kind.NOT_SENT or fault.cause is Cause.NOT_LEADER
                if not safe or len(faults) >= route.size or self._now() >= until:
                    raise _verdict(faults, worked) from None
            else:
                route.heard(connection, sent_s)
                return reply


def _move_on(route: Route, connection: Connection, fault: Fault) -> None:
    """After a fault go to another endpoint if it may do better there; a Fault that lasts if the route was closed meanwhile."""
    if route.closed:
        raise keeper_closed(fault.kind, fault.operation) from None
    if fault.cause not in HERE_TO_STAY and not fault.lasting:
        route.advance(connection)


def _went_back(call: Call, revision: int, seen: int) -> Fault:
    """What to say of a reply from a store that was restored from a backup."""
    return Fault(
        Kind.FIX,
        Cause.REWOUND,
        f"revision {revision} after {seen}",
        operation=call.method.operation,
        seen=seen,
        now=revision,
    )


def _verdict(faults: list[Fault], worked: bool) -> Fault:
    """The last fault; when TLS failed everywhere, waiting will not help.

    Unless one of the connections had ``worked``: its certificates are over, and the next one reads the files again.
    """
    last = faults[-1]
    if not worked and all(f.cause is Cause.TLS for f in faults):
        last.kind = Kind.FIX
    return last


def _checked(metadata: Sequence[tuple[str, str | bytes]]) -> Metadata:
    """The metadata, if grpc can send it; the values are not shown, because they may be secrets."""
    try:
        pairs = tuple((key, value) for key, value in metadata)
    except (TypeError, ValueError):
        raise ConfigError("metadata: expected pairs of a key and a value", field="metadata") from None
    for key, value in pairs:
        if not _is_key(key):
            raise ConfigError(
                field="metadata key", value=key, expected="letters, digits, '-', '_' and '.', and no 'grpc-'"
            )
        good = isinstance(value, bytes) if key.lower().endswith("-bin") else _is_plain(value)
        if not good:
            raise ConfigError(
                f"metadata {key!r}: expected bytes for a key that ends in '-bin', else printable ASCII",
                field="metadata",
            )
    return tuple((key.lower(), value) for key, value in pairs)


def _is_key(key: object) -> bool:
    return isinstance(key, str) and bool(METADATA_KEY.fullmatch(key.lower())) and not key.lower().startswith("grpc-")


def _is_plain(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and (value.isprintable() or not value)
