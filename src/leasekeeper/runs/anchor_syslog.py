"""An anchor that is a syslog server: each head becomes one message to it (RFC 5424).

Syslog only takes: it confirms nothing and answers nothing. So this anchor never stops a run; what it is for is the audit, with
what the server has collected: `leasekeeper.runs.anchored.parse_line` finds the heads in it.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from urllib.parse import urlsplit

from leasekeeper.errors import ConfigError, Unavailable
from leasekeeper.runs.anchored import Anchored, write_line
from leasekeeper.runs.within import Within

__all__ = ["SyslogAnchor"]

TIMEOUT_S = 5.0
PORT = 514
# "log audit" of RFC 5424, table 1; and "notice" of table 2: normal but significant.
FACILITY = 13
FACILITY_MAX = 23
NOTICE = 5
HOST_MAX = 255
WORDS_MAX = 16
EXPECTED = "udp://HOST[:PORT], tcp://HOST[:PORT] or unix:///PATH"
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class SyslogAnchor:
    """Sends heads to a syslog server; see `leasekeeper.runs.anchor.Anchor` for what an anchor is.

    What `remember` guarantees when it returns depends on the way: by UDP, that the message was sent, which is all that can be
    known; by a unix socket, that the daemon of this machine has it in its queue; by TCP, that the server has read all of it
    and then closed the connection. That it reached a disk is the server's business. Encryption is a local relay's.
    """

    # Nobody can ask it.
    answers = False

    def __init__(self, address: str, *, timeout_s: float = TIMEOUT_S, facility: int = FACILITY) -> None:
        """No I/O. ``address`` is ``udp://HOST[:PORT]``, ``tcp://HOST[:PORT]`` or ``unix:///PATH``; ``facility`` as in RFC 5424.

        ``timeout_s`` bounds each `remember`. ConfigError when a value is wrong.
        """
        if not 0 <= facility <= FACILITY_MAX:
            raise ConfigError(field="facility", value=facility, expected=f"0 to {FACILITY_MAX}")
        self._send = _way(address)
        self._address = address
        self._priority = 8 * facility + NOTICE
        self._within = Within(timeout_s, f"syslog {address}")

    def __repr__(self) -> str:
        return f"SyslogAnchor({self._address!r})"

    def remember(self, run: str, gen: int, seq: int, hash: str, at_ms: int) -> None:  # noqa: A002 - the record's own word
        """Send one message. ConfigError when a value is wrong, Unavailable when it could not be sent: send it again."""
        self._tell(Anchored(run, gen, seq, hash, at_ms))

    def accept(self, run: str, gen: int, seq: int, hash: str, at_ms: int, why: str = "") -> None:  # noqa: A002 - as above
        """Send one message that says so; errors as for `remember`."""
        self._tell(Anchored(run, gen, seq, hash, at_ms, back=True, why=why))

    def _tell(self, anchored: Anchored) -> None:
        line = write_line(anchored)
        header = f"<{self._priority}>1 {_timestamp(anchored.at_ms)} {_host()} leasekeeper {os.getpid()} anchor -"
        message = header.encode() + b" leasekeeper anchor " + line

        def send() -> None:
            try:
                self._send(message, self._within.timeout_s)
            except OSError as error:
                told = f"syslog {self._address}: {error.strerror or str(error)}"
                raise Unavailable(told, operation="remember", detail=str(error)) from error

        self._within("remember", send)

    def last(self, run: str, gen: int) -> Anchored | None:
        """None, always: syslog cannot be asked. Read what the server has collected, with `anchored_in`."""
        return None

    def generations(self, run: str) -> tuple[int, ...]:
        """None, always, as `last`."""
        return ()


def _timestamp(at_ms: int) -> str:
    """A time as RFC 3339 writes it."""
    moment = EPOCH + timedelta(milliseconds=at_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def _host() -> str:
    """This machine's name in printable ASCII, as the header wants it."""
    return re.sub(r"[^!-~]", "?", socket.gethostname())[:HOST_MAX] or "-"


def _way(address: str) -> Callable[[bytes, float], None]:
    """What sends a message to ``address`` within some seconds."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port or PORT
    except (ValueError, AttributeError):
        raise ConfigError(field="address", value=address, expected=EXPECTED) from None
    plain = not (parts.query or parts.fragment or parts.username)
    if plain and parts.scheme in ("udp", "tcp") and host and parts.path in ("", "/"):
        send = _send_udp if parts.scheme == "udp" else _send_tcp
        return lambda message, timeout_s: send(host, port, message, timeout_s)
    if plain and parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
        return lambda message, timeout_s: _send_unix(parts.path, message, timeout_s)
    raise ConfigError(field="address", value=address, expected=EXPECTED)


def _send_udp(host: str, port: int, message: bytes, timeout_s: float) -> None:
    """One datagram to the first address of the host (RFC 5426)."""
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as sender:
        sender.settimeout(timeout_s)
        sender.sendto(message, place)


def _send_tcp(host: str, port: int, message: bytes, timeout_s: float) -> None:
    """One connection for one message; the server closes it when it has read to the end."""
    with socket.create_connection((host, port), timeout_s) as sender:
        _send_framed(sender, message)
        sender.shutdown(socket.SHUT_WR)
        # A connection that was reset raises here; what a server says before it closes means nothing in syslog.
        for _ in range(WORDS_MAX):
            if not sender.recv(4096):
                return
    raise OSError(errno.EPROTO, "the server goes on talking instead of closing the connection")


def _send_unix(path: str, message: bytes, timeout_s: float) -> None:
    """One datagram to the daemon's socket, or one framed message where that is a stream."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sender:
        sender.settimeout(timeout_s)
        try:
            sender.connect(path)
        except OSError as error:
            if error.errno != errno.EPROTOTYPE:
                raise
        else:
            sender.sendall(message)
            return
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as sender:
        sender.settimeout(timeout_s)
        sender.connect(path)
        _send_framed(sender, message)


def _send_framed(sender: socket.socket, message: bytes) -> None:
    """Octet counting (RFC 6587, 3.4.1): the length goes first, so that nothing inside of a message can end it."""
    sender.sendall(b"%d %s" % (len(message), message))
