"""gRPC statuses and etcd's error texts, mapped in one place to what they mean for a request's effect.

Texts decide before codes, because etcd uses one code for very different things: code 8 is both "too many requests" (try
again) and "database space exceeded" (a person must act); code 14 is both a refused connection (nothing was sent) and a
broken one (nobody knows). Whatever is not known here counts as an unknown outcome: that is read back, never guessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from leasekeeper.errors import (
    AuthError,
    ConfigError,
    LeasekeeperError,
    Misuse,
    OutcomeUnknown,
    OutOfSpace,
    StopWork,
    StoreRewound,
    Unavailable,
)
from leasekeeper.protocol.plan import Cause, Fault, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["fault_of", "fault_of_text", "public"]

NO_CONNECTION = "failed to connect"
# What grpc says when the server's first word after the handshake is that it does not take the client's certificate.
REFUSED_CERTIFICATE = "unwrap failed"
# What grpc says when the other side hangs up instead of speaking, as one does that is spoken to in the wrong protocol.
HUNG_UP = "socket closed"

# Fragments of lower-cased messages. The first that occurs decides.
TEXTS: tuple[tuple[str, Kind, Cause], ...] = (
    ("requested lease not found", Kind.RETRY, Cause.LEASE_NOT_FOUND),
    ("lease already exists", Kind.RETRY, Cause.LEASE_EXISTS),
    ("database space exceeded", Kind.FIX, Cause.NO_SPACE),
    ("too many requests", Kind.RETRY, Cause.BUSY),
    ("has been compacted", Kind.RETRY, Cause.COMPACTED),
    ("invalid auth token", Kind.RETRY, Cause.LOGIN_STALE),
    ("revision of auth store is old", Kind.RETRY, Cause.LOGIN_STALE),
    ("revision in header is old", Kind.RETRY, Cause.LOGIN_STALE),
    ("user name is empty", Kind.FIX, Cause.LOGIN_NEEDED),
    ("invalid user id or password", Kind.FIX, Cause.LOGIN_REFUSED),
    ("authentication is not enabled", Kind.FIX, Cause.AUTH_OFF),
    ("permission denied", Kind.FIX, Cause.DENIED),
    ("no leader", Kind.RETRY, Cause.NOT_LEADER),
    ("not leader", Kind.RETRY, Cause.NOT_LEADER),
    ("not a primary lessor", Kind.RETRY, Cause.NOT_LEADER),
    ("not supported for learner", Kind.RETRY, Cause.NOT_LEADER),
    ("unhealthy cluster", Kind.RETRY, Cause.NOT_LEADER),
    ("not capable", Kind.RETRY, Cause.OTHER),
    ("request is too large", Kind.FIX, Cause.OTHER),
    ("too many operations", Kind.FIX, Cause.OTHER),
    ("too large lease ttl", Kind.FIX, Cause.OTHER),
    ("certificate_verify_failed", Kind.NOT_SENT, Cause.TLS),
    ("wrong_version_number", Kind.NOT_SENT, Cause.TLS),
    ("hostname verification", Kind.NOT_SENT, Cause.TLS),
    ("is not in peer certificate", Kind.NOT_SENT, Cause.TLS),
    ("handshake failed", Kind.NOT_SENT, Cause.TLS),
    ("handshaker shutdown", Kind.NOT_SENT, Cause.OTHER),
    ("alert bad certificate", Kind.NOT_SENT, Cause.TLS),
    ("certificate required", Kind.NOT_SENT, Cause.TLS),
    (NO_CONNECTION, Kind.NOT_SENT, Cause.OTHER),
    ("connection refused", Kind.NOT_SENT, Cause.OTHER),
    ("name resolution", Kind.NOT_SENT, Cause.OTHER),
    ("dns resolution", Kind.NOT_SENT, Cause.OTHER),
    ("domain name not found", Kind.NOT_SENT, Cause.OTHER),
)

CODES: dict[grpc.StatusCode, tuple[Kind, Cause]] = {
    grpc.StatusCode.INVALID_ARGUMENT: (Kind.FIX, Cause.OTHER),
    grpc.StatusCode.PERMISSION_DENIED: (Kind.FIX, Cause.DENIED),
    grpc.StatusCode.UNAUTHENTICATED: (Kind.RETRY, Cause.LOGIN_STALE),
    grpc.StatusCode.UNIMPLEMENTED: (Kind.FIX, Cause.OTHER),
    grpc.StatusCode.OUT_OF_RANGE: (Kind.FIX, Cause.OTHER),
}


UNKNOWN = (Kind.UNKNOWN, Cause.OTHER)


def fault_of_text(text: str, operation: str, endpoint: str) -> Fault | None:
    """The fault that etcd's own words tell of, or None when they are not known."""
    lower = text.lower()
    if NO_CONNECTION in lower and REFUSED_CERTIFICATE in lower:
        return Fault(Kind.NOT_SENT, Cause.TLS, text, operation=operation, endpoint=endpoint)
    for fragment, kind, cause in TEXTS:
        if fragment in lower:
            return Fault(kind, cause, text, operation=operation, endpoint=endpoint)
    return None


def fault_of(error: grpc.RpcError, operation: str, endpoint: str) -> Fault:
    """The fault behind an error of grpc. Never fails, whatever the error carries."""
    code, text = _told(error)
    known = fault_of_text(text, operation, endpoint)
    if known is not None:
        return known
    kind, cause = CODES.get(code, UNKNOWN) if code is not None else UNKNOWN
    shown = ": ".join(part for part in (code.name if code is not None else "", text) if part)
    return Fault(kind, cause, shown, operation=operation, endpoint=endpoint)


def _told(error: grpc.RpcError) -> tuple[grpc.StatusCode | None, str]:
    """Code and text of an error: what grpc raises is a Call as well, what an interceptor raises may be anything."""
    call: Any = error
    try:
        code, text = call.code(), call.details()
    except (StopWork, Exception):  # noqa: BLE001 - there is none, or it is not what it seems
        code, text = None, str(error)
    return code if isinstance(code, grpc.StatusCode) else None, str(text or "")


def public(
    fault: Fault, endpoints: Sequence[str] = (), user: str | None = None, scope: str = "leasekeeper/<namespace>/"
) -> LeasekeeperError:
    """The error that users see for a fault. ``scope`` is the prefix of the keys that a user needs rights for."""
    made = _fix_it(fault, endpoints, user, scope)
    if made is not None:
        return made
    where = ", ".join(endpoints) or fault.endpoint
    if fault.kind is Kind.UNKNOWN and fault.operation in ("Put", "DeleteRange"):
        return OutcomeUnknown(
            f"{fault.operation} was sent to etcd at {where} and its effect could not be read back: {fault.text}",
            operation=fault.operation,
            detail=fault.text,
        )
    return Unavailable(
        f"etcd at {where} did not answer {fault.operation or 'a request'}: {fault.text or fault.cause.value}"
        + _hint(fault.text.lower()),
        endpoints=tuple(endpoints),
        operation=fault.operation,
        detail=fault.text,
    )


def _hint(text: str) -> str:
    if NO_CONNECTION in text and HUNG_UP in text:
        return " (it hangs up at once, as when one side speaks TLS and the other does not)"
    return ""


def _fix_it(fault: Fault, endpoints: Sequence[str], user: str | None, scope: str) -> LeasekeeperError | None:
    """What only a person can mend, in words that say what to do."""
    where = ", ".join(endpoints) or fault.endpoint
    match fault.cause:
        case Cause.CLOSED:
            return Misuse(fault.text)
        case Cause.NO_SPACE:
            return OutOfSpace(
                f"etcd at {where} is out of space and takes no writes: compact and defragment it, and where that makes no room"
                " give it a larger quota; then disarm the NOSPACE alarm",
                endpoints=tuple(endpoints),
                operation=fault.operation,
                detail=fault.text,
            )
        case Cause.LOGIN_NEEDED | Cause.LOGIN_REFUSED | Cause.LOGIN_STALE | Cause.DENIED:
            return _refused(fault, where, user, scope)
        case Cause.REWOUND:
            return StoreRewound(
                f"etcd's revision went back from {fault.seen} to {fault.now}, as after a restore from a backup: run"
                " `leasekeeper epoch bump` before anything is acquired",
                seen=fault.seen,
                now=fault.now,
            )
        case Cause.TLS:
            return ConfigError(
                f"no TLS connection to etcd at {where}: {fault.text}",
                field="tls",
                value=where,
                expected="a CA that signed the server's certificate, a name in it that matches the endpoint, and a"
                " client certificate if the server asks for one",
            )
    if fault.kind is not Kind.FIX:
        return None
    return ConfigError(
        f"etcd at {where} refuses {fault.operation}: {fault.text}",
        field=fault.operation,
        value=fault.text,
        expected="a request that this etcd accepts; leasekeeper needs etcd 3.4 or later",
    )


def _refused(fault: Fault, where: str, user: str | None, scope: str) -> AuthError:
    who = f"user {user!r}" if user else "a client without a user"
    denied = fault.cause is Cause.DENIED
    texts = {
        Cause.LOGIN_NEEDED: f"etcd at {where} asks for a login and none is configured: give user and password",
        Cause.LOGIN_REFUSED: f"etcd at {where} refuses {who}: wrong user or password",
        Cause.LOGIN_STALE: f"etcd at {where} refuses the login of {who}, also after a second one",
        Cause.DENIED: f"etcd at {where} denies {fault.operation} to {who}: give its role the right to read and write"
        f" all keys with the prefix {scope}",
    }
    return AuthError(texts[fault.cause], user=user, denied=denied, operation=fault.operation)
