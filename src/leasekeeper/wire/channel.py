"""Endpoints, TLS and channels: parsing them, checking them, opening channels."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import grpc

from leasekeeper.errors import ConfigError, Misuse, shown

__all__ = ["TLS", "Channel", "Channels", "Endpoint", "begin", "parse_endpoints"]

Channel = grpc.Channel
"""The type of a channel that is lent to us, for the floors above: they do not import grpc."""

DEFAULT_PORT = 2379
DEFAULT_ENDPOINTS = "127.0.0.1:2379"
EXPECTED = "host:port, http://host:port or https://host:port"
ENDPOINTS_MAX = 64
# The first grpc whose C library reads its environment when it is loaded; later than needed does no harm.
READS_WHEN_LOADED = (1, 67)
OPTIONS: tuple[tuple[str, Any], ...] = (
    # A connection of our own: somebody else's channel to the same address must not share its fate with ours.
    ("grpc.use_local_subchannel_pool", 1),
    # A request may be sent once only; whether to repeat it is decided by the plan that knows what it means.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name this is how long one attempt to connect may take, TLS and HTTP/2 greetings included. Too short, and a
    # far or busy server is never reached; longer than a call may take, and a silent one could not be told from a slow reply.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # etcd refuses pings more often than every 5 s.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
)


def begin() -> None:
    """Let grpc's C library read its environment now: since 1.67 it does when it is loaded, before at its first channel."""
    if tuple(map(int, grpc.__version__.split(".")[:2])) < READS_WHEN_LOADED:
        grpc.insecure_channel("127.0.0.1:1").close()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One client address of etcd."""

    host: str
    port: int
    secure: bool | None = None

    @property
    def target(self) -> str:
        """``host:port``, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoints(endpoints: str | Sequence[str]) -> tuple[Endpoint, ...]:
    """Endpoints from one string with commas or from a sequence; ``http://`` and ``https://`` as in ETCDCTL_ENDPOINTS.

    Raises:
        ConfigError: one of them cannot be an endpoint, there is none, or plain and TLS ones are mixed.
    """
    if not isinstance(endpoints, (str, Sequence)):
        raise ConfigError(field="endpoints", value=endpoints, expected="text or a sequence of text")
    parts: Sequence[object] = endpoints
    if isinstance(endpoints, str):
        # With "@" in it the text stays whole: the comma may stand in a password, and half of one must not be shown either.
        parts = [endpoints] if "@" in endpoints else endpoints.split(",")
    _check_none_empty(parts, endpoints)
    found = tuple(dict.fromkeys(_parse(part) for part in parts))
    if not 1 <= len(found) <= ENDPOINTS_MAX:
        raise ConfigError(field="endpoints", value=endpoints, expected=f"1 to {ENDPOINTS_MAX} of them")
    schemes = {e.secure for e in found if e.secure is not None}
    if len(schemes) > 1:
        raise ConfigError(field="endpoints", value=endpoints, expected="all http:// or all https://, not both")
    return found


def _check_none_empty(parts: Sequence[object], given: object) -> None:
    """Name a comma too many for what it is: `_parse` would show only the nothing beside it."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(parts) > 1 and not all(text.strip() for text in texts) and not any("@" in text for text in texts):
        raise ConfigError(
            f"an empty endpoint in {shown(given)}: expected {EXPECTED} before and after each comma",
            field="endpoints",
            value=given,
            expected=EXPECTED,
        )


def _parse(text: object) -> Endpoint:
    expected = EXPECTED
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(field="endpoint", value=text, expected=expected)
    if "@" in text:
        # What stands before it is likely a password.
        raise ConfigError(
            field="endpoint", value=f"…@{text.rpartition('@')[2]}", expected=f"{expected}, without a user"
        )
    rest, secure = text.strip(), None
    for scheme, is_secure in (("http://", False), ("https://", True)):
        if rest.lower().startswith(scheme):
            rest, secure = rest[len(scheme) :].rstrip("/"), is_secure
    host, port = _host_and_port(rest)
    good_port = port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535
    if not good_port or not _is_host(host):
        raise ConfigError(field="endpoint", value=text, expected=expected)
    return Endpoint(host, int(port), secure)


def _is_host(host: str) -> bool:
    """Whether it can be a name or an address; an IPv6 address, which alone has colons, may name its zone behind a "%"."""
    if ":" in host:
        from ipaddress import IPv6Address

        try:
            IPv6Address(host)
        except ValueError:
            return False
    return host != "" and host.isprintable() and not any(c in host for c in "/?# []")


def _host_and_port(rest: str) -> tuple[str, str]:
    if rest.startswith("["):
        host, closed, tail = rest[1:].partition("]")
        port = tail[1:] if tail.startswith(":") else ("" if tail else str(DEFAULT_PORT))
        return (host, port) if closed and ":" in host else ("", "")
    if rest.count(":") > 1:
        return "", ""
    host, colon, port = rest.partition(":")
    return host, port if colon else str(DEFAULT_PORT)


@dataclass(frozen=True)
class TLS:
    """How to speak TLS with etcd: files in PEM format.

    Args:
        ca: certificates that the server's must be signed by; None: those that the system trusts.
        cert: the client's certificate, if the server asks for one.
        key: its private key, unencrypted.
        server_name: the name to expect in the server's certificate, if it is not the endpoint's host.

    Raises:
        ConfigError: a file cannot be read, is not what it should be, or certificate and key do not belong together.
    """

    ca: str | PathLike[str] | None = None
    cert: str | PathLike[str] | None = None
    key: str | PathLike[str] | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        for field in ("ca", "cert", "key"):
            _read_pem(field, getattr(self, field))
        if (self.cert is None) != (self.key is None):
            lone, other = ("cert", "key") if self.key is None else ("key", "cert")
            raise ConfigError(field=lone, value=fspath(getattr(self, lone)), expected=f"{other} with it")
        _check_server_name(self.server_name)
        self._check_openssl()

    def _check_openssl(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca is not None:
            try:
                context.load_verify_locations(fspath(self.ca))
            except ssl.SSLError as error:
                raise ConfigError(field="ca", value=fspath(self.ca), expected="certificates in PEM format") from error
        if self.cert is not None and self.key is not None:
            try:
                context.load_cert_chain(fspath(self.cert), fspath(self.key), password="")
            except (ssl.SSLError, ValueError) as error:
                raise ConfigError(
                    field="cert",
                    value=fspath(self.cert),
                    expected=f"a certificate in PEM format and, in {fspath(self.key)}, its unencrypted private key",
                ) from error

    def credentials(self) -> grpc.ChannelCredentials:
        """What grpc needs; the files are read now, so that renewed certificates are used by the next connection."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read_pem("ca", self.ca),
            private_key=_read_pem("key", self.key),
            certificate_chain=_read_pem("cert", self.cert),
        )


def _check_server_name(name: object) -> None:
    if name is not None and not (isinstance(name, str) and name):
        raise ConfigError(field="server_name", value=name, expected="a host name")


def _read_pem(field: str, path: str | PathLike[str] | None) -> bytes | None:
    if path is None:
        return None
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(field=field, value=str(path), expected=f"a readable file ({error})") from None
    if b"-----BEGIN" not in content:
        raise ConfigError(field=field, value=str(path), expected="a file in PEM format")
    return content


def _check_nothing_beside(endpoints: Sequence[Endpoint], tls: TLS | None) -> None:
    """A channel that is lent leads where it leads, as it does: what says otherwise would be silently ignored.

    The default endpoint says nothing: it cannot be told from one that was left out.
    """
    if tls is not None:
        raise ConfigError(field="tls", value=tls, expected="none beside channel, whose connection is made already")
    if tuple(endpoints) != parse_endpoints(DEFAULT_ENDPOINTS):
        targets = ",".join(endpoint.target for endpoint in endpoints)
        raise ConfigError(field="endpoints", value=targets, expected="none beside channel, which leads to its own")


class Channels:
    """Makes channels to the endpoints, or lends the one that the user gave."""

    def __init__(
        self, endpoints: Sequence[Endpoint], *, tls: TLS | None = None, lent: grpc.Channel | None = None
    ) -> None:
        if lent is not None and not isinstance(lent, grpc.Channel):
            raise Misuse(f"channel={type(lent).__name__}: expected a grpc.Channel (not grpc.aio)")
        if lent is not None:
            _check_nothing_beside(endpoints, tls)
        if any(e.secure is False for e in endpoints) and tls is not None:
            raise ConfigError(
                field="endpoints", value=",".join(e.target for e in endpoints), expected="https:// when tls is given"
            )
        self.endpoints = tuple(endpoints)
        self.lent = lent
        self.tls = tls or (TLS() if any(e.secure for e in endpoints) else None)

    @property
    def names(self) -> tuple[str, ...]:
        """The endpoints as text."""
        return ("a lent channel",) if self.lent is not None else tuple(e.target for e in self.endpoints)

    def open(self, index: int) -> grpc.Channel:
        """A new channel to one endpoint; it connects on first use."""
        if self.lent is not None:
            return self.lent
        endpoint = self.endpoints[index % len(self.endpoints)]
        if self.tls is None:
            return grpc.insecure_channel(endpoint.target, OPTIONS)
        options = OPTIONS
        if self.tls.server_name:
            options = (*OPTIONS, ("grpc.ssl_target_name_override", self.tls.server_name))
        return grpc.secure_channel(endpoint.target, self.tls.credentials(), options)
