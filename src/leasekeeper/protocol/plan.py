"""Plans: conversations with etcd as generators, and the five operations they may yield.

A plan says *what* to ask and what to make of the answer; an interpreter (blocking, asyncio, the simulator) says *how*. The
interpreter sends an operation's result into the plan and throws what went wrong into it: a `Fault` when a call failed, and
whatever else interrupts a wait (Ctrl-C, a cancelled task). So a plan's clean-up is an ordinary ``except`` or ``finally``,
written once for all interpreters.

Operations:

=========  ==================================================================================================
`Call`     one RPC; the result is the reply message
`Sleep`    let time pass, with jitter so that clients that failed together do not come back together
`Watch`    start watching keys from a revision; the result is a `Watching`, closed by the plan itself
`Wait`     until one of some signals is set or a moment has come
`Detach`   hand a plan to the background, which retries it within a bound; never fails, never blocks
=========  ==================================================================================================

Time is seconds of the interpreter's clock, the same that the plan's ``now`` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message

from leasekeeper.protocol import etcd_pb2 as pb

__all__ = [
    "Call",
    "Cause",
    "Detach",
    "Fault",
    "Kind",
    "Method",
    "News",
    "Operation",
    "Plan",
    "Signal",
    "Sleep",
    "Wait",
    "Watch",
    "Watching",
    "ask",
    "persist",
    "rest",
    "rewound",
]

T = TypeVar("T")

# One attempt of one call. Long enough for a slow commit, short enough to try the next endpoint before a lease suffers.
CALL_TIMEOUT_S = 3.0
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 1.0
# What a pause leaves for the last attempt before a deadline.
LAST_TRY_S = 0.05
PAUSE_MIN_S = 0.01


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC of etcd: its path, the type of its reply, and whether repeating it changes nothing.

    ``linearizable`` says that its header's revision may not be lower than one seen before it was sent.
    """

    path: str
    reply: type[Message]
    repeatable: bool = False
    linearizable: bool = False

    @property
    def operation(self) -> str:
        """The last part of the path, for messages to people."""
        return self.path.rpartition("/")[2]


RANGE = Method("/etcdserverpb.KV/Range", pb.RangeResponse, repeatable=True, linearizable=True)
TXN = Method("/etcdserverpb.KV/Txn", pb.TxnResponse, linearizable=True)
GRANT = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantResponse)
REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeResponse, repeatable=True)
# A stream at the server; one message and its one answer are a unary exchange on the wire, which gives every beat a stream
# and a deadline of its own (a stream that hangs on one member cannot take the next beat down with it).
KEEP_ALIVE = Method("/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveResponse, repeatable=True)
TIME_TO_LIVE = Method("/etcdserverpb.Lease/LeaseTimeToLive", pb.LeaseTimeToLiveResponse, repeatable=True)
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", pb.AuthenticateResponse, repeatable=True)
STATUS = Method("/etcdserverpb.Maintenance/Status", pb.StatusResponse, repeatable=True)
ALARM = Method("/etcdserverpb.Maintenance/Alarm", pb.AlarmResponse, repeatable=True)
MEMBER_LIST = Method("/etcdserverpb.Cluster/MemberList", pb.MemberListResponse, repeatable=True)
WATCH_PATH = "/etcdserverpb.Watch/Watch"


class Kind(Enum):
    """What a failed call means for its effect."""

    RETRY = "etcd refused it for now; it had no effect"
    NOT_SENT = "it never reached etcd; it had no effect"
    UNKNOWN = "it was sent and no answer came; it may have happened, or happen yet"
    FIX = "it had no effect and never will until a person mends something"


class Cause(Enum):
    """Why a call failed, as far as anybody decides on it."""

    OTHER = "other"
    LEASE_NOT_FOUND = "lease not found"
    LEASE_EXISTS = "lease already exists"
    NO_SPACE = "database space exceeded"
    BUSY = "too many requests"
    COMPACTED = "revision compacted"
    NOT_LEADER = "no leader, or a member that cannot answer"
    LOGIN_STALE = "login expired or outdated"
    LOGIN_NEEDED = "no credentials given"
    LOGIN_REFUSED = "wrong user or password"
    AUTH_OFF = "authentication is not enabled"
    DENIED = "permission denied"
    REWOUND = "revision went back"
    MALFORMED = "malformed reply"
    TLS = "TLS handshake failed"
    CLOSED = "closed"


# What etcd says of the request, not of its own state: it would say the same again.
ANSWERS = frozenset((Cause.LEASE_NOT_FOUND, Cause.LEASE_EXISTS, Cause.COMPACTED))


class Fault(Exception):
    """A call failed. Never leaves the library: `status` of the wire floor makes a public error of it."""

    def __init__(
        self,
        kind: Kind,
        cause: Cause = Cause.OTHER,
        text: str = "",
        *,
        operation: str = "",
        endpoint: str = "",
        seen: int = 0,
        now: int = 0,
    ) -> None:
        super().__init__(kind, cause, text)
        self.kind = kind
        self.cause = cause
        self.text = text
        self.operation = operation
        self.endpoint = endpoint
        self.seen = seen
        self.now = now

    @property
    def lasting(self) -> bool:
        """Whether it would be the same again: a person has to mend something, or what was used is closed."""
        return self.kind is Kind.FIX or self.cause is Cause.CLOSED


class Signal(Protocol):
    """Something that becomes set once and stays set."""

    def is_set(self) -> bool:
        """Whether it is set."""
        ...

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when it is set, from any thread; at once when it is set already."""
        ...

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Forget ``callback``; nothing happens if it is not known."""
        ...


class News(Enum):
    """What a watch has to tell of its key."""

    DELETED = "the key was deleted"
    CHANGED = "the key was written by somebody else"
    BLIND = "the watch can no longer tell; read instead"


class Watching(Signal, Protocol):
    """A running watch: set when one of its keys was deleted or changed, or when it can no longer tell."""

    def close(self) -> None:
        """Stop watching; never blocks, may be called twice."""
        ...


class Call(NamedTuple):
    """One RPC attempt with its own deadline.

    A named tuple, like the other records made on every acquire: a frozen dataclass takes three times as long.

    ``strict``: refuse a reply from a store whose revision went back (Cause.REWOUND). Set by whatever hands out a token or
    vouches for one; what cleans up or only shows must also work on a restored store.
    """

    method: Method
    request: Message
    timeout_s: float = CALL_TIMEOUT_S
    strict: bool = False


def rewound(reply: Any, seen: int) -> bool:
    """Whether a reply shows that the store went back since ``seen``, a revision that was known before the call was sent.

    A put makes a revision of its own, so one that comes to ``seen`` shows it as well: it has made that revision a second time.
    """
    revision: int = reply.header.revision
    if revision != seen:
        return revision < seen
    return isinstance(reply, pb.TxnResponse) and any(each.HasField("response_put") for each in reply.responses)


@dataclass(frozen=True, slots=True)
class Sleep:
    """Let about ``seconds`` pass: half of it for certain, the rest by chance."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Watch:
    """Watch each of ``keys`` from ``start_revision`` on."""

    keys: tuple[bytes, ...]
    start_revision: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Until one of ``signals`` is set, or until the clock shows ``until`` (None: no end). Result: whether one is set."""

    signals: tuple[Signal, ...]
    until: float | None


@dataclass(frozen=True, slots=True)
class Detach:
    """Hand ``plan`` to the background. It is a factory, because each retry needs a fresh generator."""

    plan: Callable[[], Plan[object]]


Operation = Call | Sleep | Watch | Wait | Detach
Plan = Generator[Operation, Any, T]


def rest(pause_s: float, left_s: float) -> Sleep:
    """A pause, cut to leave time for a last attempt before a deadline that is ``left_s`` away."""
    return Sleep(max(PAUSE_MIN_S, min(pause_s, left_s - LAST_TRY_S)))


def ask(method: Method, request: Message, timeout_s: float = CALL_TIMEOUT_S) -> Plan[Any]:
    """One attempt of one call."""
    return (yield Call(method, request, timeout_s))


def persist(
    method: Method,
    request: Message,
    *,
    now: Callable[[], float],
    until: float,
    on_unknown: Callable[[], None] | None = None,
    strict: bool = False,
    once: bool = False,
) -> Plan[Any]:
    """Repeat the same call until it is answered, refused for good, or ``until`` has come.

    For requests that may be repeated as they are: reads, and transactions whose compares make a second execution show
    itself. A transaction that only reads is answered also by an etcd that is full, of whatever release. ``on_unknown`` is
    told each time an attempt may have had its effect unseen. Of others, only what surely had no effect is repeated
    (``once``).

    Raises:
        Fault: the last one, when time is up, or at once when waiting cannot help.
    """
    pause_s = BACKOFF_FIRST_S
    while True:
        left_s = until - now()
        try:
            return (yield Call(method, request, max(LAST_TRY_S, min(CALL_TIMEOUT_S, left_s)), strict))
        except Fault as fault:
            if fault.kind is Kind.UNKNOWN and on_unknown is not None:
                on_unknown()
            left_s = until - now()
            if fault.cause is Cause.NO_SPACE and isinstance(request, pb.TxnRequest) and _only_reads(request):
                return (yield from _one_by_one(request, now=now, until=until, strict=strict))
            if fault.lasting or fault.cause in ANSWERS or left_s <= LAST_TRY_S:
                raise
            if once and fault.kind is Kind.UNKNOWN:
                raise
        except BaseException:
            if on_unknown is not None:
                on_unknown()
            raise
        yield rest(pause_s, left_s)
        pause_s = min(BACKOFF_MAX_S, 2 * pause_s)


def _only_reads(request: pb.TxnRequest) -> bool:
    return not request.compare and all(op.WhichOneof("request") == "request_range" for op in request.success)


def _one_by_one(
    request: pb.TxnRequest, *, now: Callable[[], float], until: float, strict: bool
) -> Plan[pb.TxnResponse]:
    """The reads of a transaction at one revision, that of the first: releases of etcd 3.5 that are full refuse it as a whole."""
    reply = pb.TxnResponse(succeeded=True)
    for op in request.success:
        asked = pb.RangeRequest()
        asked.CopyFrom(op.request_range)
        asked.revision = asked.revision or reply.header.revision
        found = yield from persist(RANGE, asked, now=now, until=until, strict=strict)
        reply.responses.append(pb.ResponseOp(response_range=found))
        if len(reply.responses) == 1:
            reply.header.CopyFrom(found.header)
    return reply
