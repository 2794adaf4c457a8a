"""gRPC statuses and etcd's words: what each means for a request's effect, and what users are told."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.errors import (
    AuthError,
    ConfigError,
    LeasekeeperError,
    OutOfSpace,
    StoreRewound,
    Unavailable,
)
from leasekeeper.protocol.plan import Cause, Fault, Kind
from leasekeeper.wire.status import TEXTS, fault_of, fault_of_text, public

Code = grpc.StatusCode


class Refusal(grpc.RpcError):
    """What grpc raises: an error that carries a code and a text."""

    def __init__(self, code: Any, details: Any) -> None:
        super().__init__()
        self._code, self._details = code, details

    def code(self) -> Any:
        """The status."""
        return self._code

    def details(self) -> Any:
        """The text."""
        return self._details


# The texts of etcd 3.4 to 3.7 and of grpc, as they come, with their codes.
KNOWN = [
    (Code.NOT_FOUND, "etcdserver: requested lease not found", Kind.RETRY, Cause.LEASE_NOT_FOUND),
    (Code.FAILED_PRECONDITION, "etcdserver: lease already exists", Kind.RETRY, Cause.LEASE_EXISTS),
    (Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Kind.FIX, Cause.NO_SPACE),
    (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Kind.RETRY, Cause.BUSY),
    (Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Kind.RETRY, Cause.COMPACTED),
    (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", Kind.RETRY, Cause.LOGIN_STALE),
    (Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", Kind.RETRY, Cause.LOGIN_STALE),
    (Code.INVALID_ARGUMENT, "auth: revision in header is old", Kind.RETRY, Cause.LOGIN_STALE),
    (Code.INVALID_ARGUMENT, "etcdserver: user name is empty", Kind.FIX, Cause.LOGIN_NEEDED),
    (
        Code.INVALID_ARGUMENT,
        "etcdserver: authentication failed, invalid user ID or password",
        Kind.FIX,
        Cause.LOGIN_REFUSED,
    ),
    (Code.FAILED_PRECONDITION, "etcdserver: authentication is not enabled", Kind.FIX, Cause.AUTH_OFF),
    (Code.PERMISSION_DENIED, "etcdserver: permission denied", Kind.FIX, Cause.DENIED),
    (Code.UNAVAILABLE, "etcdserver: no leader", Kind.RETRY, Cause.NOT_LEADER),
    (Code.FAILED_PRECONDITION, "etcdserver: not leader", Kind.RETRY, Cause.NOT_LEADER),
    (Code.UNKNOWN, "lessor: not a primary lessor", Kind.RETRY, Cause.NOT_LEADER),
    (Code.UNAVAILABLE, "etcdserver: rpc not supported for learner", Kind.RETRY, Cause.NOT_LEADER),
    (Code.UNAVAILABLE, "etcdserver: unhealthy cluster", Kind.RETRY, Cause.NOT_LEADER),
    (Code.INVALID_ARGUMENT, "etcdserver: request is too large", Kind.FIX, Cause.OTHER),
    (Code.INVALID_ARGUMENT, "etcdserver: too many operations in txn request", Kind.FIX, Cause.OTHER),
    (Code.OUT_OF_RANGE, "etcdserver: too large lease TTL", Kind.FIX, Cause.OTHER),
    # These may have had their effect: a request that was proposed can still be applied.
    (Code.UNAVAILABLE, "etcdserver: request timed out", Kind.UNKNOWN, Cause.OTHER),
    (
        Code.UNAVAILABLE,
        "etcdserver: request timed out, possibly due to previous leader failure",
        Kind.UNKNOWN,
        Cause.OTHER,
    ),
    (Code.UNAVAILABLE, "etcdserver: leader changed", Kind.UNKNOWN, Cause.OTHER),
    (Code.UNAVAILABLE, "etcdserver: server stopped", Kind.UNKNOWN, Cause.OTHER),
    (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", Kind.UNKNOWN, Cause.OTHER),
    (Code.UNAVAILABLE, "Socket closed", Kind.UNKNOWN, Cause.OTHER),
    (Code.UNAVAILABLE, "recvmsg:Connection reset by peer", Kind.UNKNOWN, Cause.OTHER),
    (Code.UNAVAILABLE, "keepalive watchdog timeout", Kind.UNKNOWN, Cause.OTHER),
    (Code.UNAVAILABLE, "GOAWAY received", Kind.UNKNOWN, Cause.OTHER),
    (Code.INTERNAL, "Exception deserializing response!", Kind.UNKNOWN, Cause.OTHER),
    (Code.CANCELLED, "Channel closed!", Kind.UNKNOWN, Cause.OTHER),
    # These never left.
    (
        Code.UNAVAILABLE,
        "failed to connect to all addresses; last error: ipv4:127.0.0.1:1: connect: Connection refused (111)",
        Kind.NOT_SENT,
        Cause.OTHER,
    ),
    (
        Code.UNAVAILABLE,
        "DNS resolution failed for nowhere:2379: C-ares status is not ARES_SUCCESS",
        Kind.NOT_SENT,
        Cause.OTHER,
    ),
    (
        Code.UNAVAILABLE,
        "failed to connect to all addresses; last error: Ssl handshake failed: SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED",
        Kind.NOT_SENT,
        Cause.TLS,
    ),
]


@pytest.mark.parametrize(("code", "text", "kind", "cause"), KNOWN, ids=[text[-60:] for _, text, _, _ in KNOWN])
def test_what_etcd_says_is_understood(code: grpc.StatusCode, text: str, kind: Kind, cause: Cause) -> None:
    """C16, C41: each known text is retried, read back, sent elsewhere or told to a person, as its effect demands."""
    fault = fault_of(Refusal(code, text), "Txn", "etcd:2379")
    assert (fault.kind, fault.cause) == (kind, cause)
    assert text in fault.text
    assert (fault.operation, fault.endpoint) == ("Txn", "etcd:2379")


def test_code_eight_is_two_things() -> None:
    """C42: 'too many requests' is waited out, 'database space exceeded' needs a person, anything else is not known."""
    kinds = {
        text: fault_of(Refusal(Code.RESOURCE_EXHAUSTED, text), "Txn", "").kind
        for text in ("etcdserver: too many requests", "etcdserver: mvcc: database space exceeded", "something new")
    }
    assert list(kinds.values()) == [Kind.RETRY, Kind.FIX, Kind.UNKNOWN]


def test_code_fourteen_is_two_things() -> None:
    """G6: a refused connection sent nothing; a broken one leaves the outcome unknown."""
    refused = fault_of(Refusal(Code.UNAVAILABLE, "failed to connect to all addresses"), "Txn", "")
    broken = fault_of(Refusal(Code.UNAVAILABLE, "Socket closed"), "Txn", "")
    assert (refused.kind, broken.kind) == (Kind.NOT_SENT, Kind.UNKNOWN)


def test_every_text_in_the_table_can_be_reached() -> None:
    """No fragment is hidden behind an earlier one that it contains."""
    for fragment, kind, cause in TEXTS:
        fault = fault_of_text(f"prefix: {fragment.upper()} suffix", "Txn", "")
        assert fault is not None
        assert (fault.kind, fault.cause) == (kind, cause), fragment


odd_texts = st.one_of(
    st.text(max_size=60),
    st.none(),
    st.sampled_from([text for _, text, _, _ in KNOWN]).flatmap(
        lambda text: st.tuples(st.text(max_size=5), st.text(max_size=5)).map(lambda ends: f"{ends[0]}{text}{ends[1]}")
    ),
    st.binary(max_size=5),
    st.integers(),
)


@given(st.sampled_from([*Code, None, 5, "UNAVAILABLE"]), odd_texts)
def test_any_status_is_mapped(code: Any, details: Any) -> None:
    """C41: every code with any text is a fault, and every fault an error for users; a status alone never means 'not sent'."""
    fault = fault_of(Refusal(code, details), "LeaseKeepAlive", "etcd:2379")
    error = public(fault, ("etcd:2379",), "me")
    assert isinstance(error, LeasekeeperError)
    assert error.message
    if not any(fragment in str(details).lower() for fragment, _, _ in TEXTS):
        assert fault.kind is not Kind.NOT_SENT


@pytest.mark.parametrize("code", list(Code))
def test_a_code_without_words_is_read_back_unless_it_is_plain(code: grpc.StatusCode) -> None:
    """Only codes that surely mean 'refused' are believed without words; all others count as an unknown outcome."""
    plain = {
        Code.INVALID_ARGUMENT: Kind.FIX,
        Code.PERMISSION_DENIED: Kind.FIX,
        Code.UNIMPLEMENTED: Kind.FIX,
        Code.OUT_OF_RANGE: Kind.FIX,
        Code.UNAUTHENTICATED: Kind.RETRY,
    }
    assert fault_of(Refusal(code, ""), "Txn", "").kind is plain.get(code, Kind.UNKNOWN)


class Bare(grpc.RpcError):
    """An error of an interceptor, which need not be a call."""


class Hostile(grpc.RpcError):
    """One whose methods fail themselves."""

    def code(self) -> grpc.StatusCode:
        """Fails."""
        raise RuntimeError("no code")


@pytest.mark.parametrize("error", [Bare("words"), Bare(), Hostile("words")], ids=repr)
def test_an_error_without_a_status_is_an_unknown_outcome(error: grpc.RpcError) -> None:
    """Whatever raised it: nobody knows whether the request was sent."""
    assert fault_of(error, "Txn", "").kind is Kind.UNKNOWN


# ---------------------------------------------------------------- what users are told


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(Kind.FIX, Cause.NO_SPACE), OutOfSpace),
        (Fault(Kind.FIX, Cause.LOGIN_NEEDED), AuthError),
        (Fault(Kind.FIX, Cause.LOGIN_REFUSED), AuthError),
        (Fault(Kind.RETRY, Cause.LOGIN_STALE), AuthError),
        (Fault(Kind.FIX, Cause.DENIED), AuthError),
        (Fault(Kind.FIX, Cause.REWOUND, seen=9, now=4), StoreRewound),
        (Fault(Kind.FIX, Cause.TLS), ConfigError),
        (Fault(Kind.FIX, Cause.OTHER, "etcdserver: request is too large"), ConfigError),
        (Fault(Kind.RETRY, Cause.BUSY), Unavailable),
        (Fault(Kind.NOT_SENT), Unavailable),
        (Fault(Kind.UNKNOWN), Unavailable),
        (Fault(Kind.RETRY, Cause.NOT_LEADER), Unavailable),
    ],
)
def test_every_cause_has_an_error_that_says_who_must_act(fault: Fault, kind: type[LeasekeeperError]) -> None:
    """A fault that waiting mends is Unavailable; one that a person must mend is told in words that say how."""
    fault.operation = "Txn"
    error = public(fault, ("a:1", "b:2"), "me")
    assert type(error) is kind
    assert "\n" not in str(error)
    if not isinstance(error, StoreRewound):
        assert "a:1, b:2" in str(error)


def test_every_cause_is_covered() -> None:
    """No cause falls through to an error without words."""
    for cause in Cause:
        for kind in Kind:
            error = public(Fault(kind, cause, "words", operation="Txn", seen=9, now=4), ("a:1",), None)
            assert str(error)


def test_a_rewound_store_is_told_with_its_revisions() -> None:
    """The operator learns what was seen, what is there now, and the command that helps."""
    error = public(Fault(Kind.FIX, Cause.REWOUND, seen=900, now=40))
    assert isinstance(error, StoreRewound)
    assert (error.seen, error.now) == (900, 40)
    for part in ("900", "40", "leasekeeper epoch bump"):
        assert part in str(error)


def test_missing_rights_are_told_with_user_and_keys() -> None:
    """C54: the error names the user and the prefix that its role must cover."""
    error = public(Fault(Kind.FIX, Cause.DENIED, operation="Txn"), ("a:1",), "agent", "leasekeeper/prod/")
    assert isinstance(error, AuthError)
    assert (error.user, error.denied) == ("agent", True)
    for part in ("agent", "leasekeeper/prod/", "read and write"):
        assert part in str(error)
