"""The anchor that is a syslog server: what goes over the wire, and what the server need not answer."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from leasekeeper.errors import ConfigError, Unavailable
from leasekeeper.protocol.receipt import FIRST_PREV
from leasekeeper.run_errors import CorruptState
from leasekeeper.runs.anchor import Anchored, SyslogAnchor, parse_line

HEAD = Anchored("order/42", 1, 7, "ab" * 32, 1_796_000_000_123)
# RFC 5424, 6: priority and version, time, host, application, process, message id, no structured data, message.
HEADER = re.compile(rb"<109>1 2026-11-30T00:53:20\.123Z [!-~]+ leasekeeper \d+ anchor - leasekeeper anchor \{")


def remember(anchor: SyslogAnchor) -> None:
    """Tell it the head."""
    anchor.remember(HEAD.run, HEAD.gen, HEAD.seq, HEAD.hash, HEAD.at_ms)


class Listener:
    """A server of streams that keeps the bytes of its one connection, and may do something before it reads."""

    def __init__(
        self, server: socket.socket, before: Callable[[socket.socket], object] = lambda connection: None
    ) -> None:
        self._server = server
        self._before = before
        self.read = b""
        self._thread = threading.Thread(target=self._serve, name="syslog-server", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with self._server, self._server.accept()[0] as connection:
            connection.settimeout(30)
            self._before(connection)
            while data := connection.recv(4096):
                self.read += data

    def all(self) -> bytes:
        """What was sent, when the connection is over."""
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.read


def framed(data: bytes) -> bytes:
    """The message in one frame of RFC 6587, 3.4.1."""
    length, _, message = data.partition(b" ")
    assert int(length) == len(message)
    return message


def test_a_datagram_is_one_message() -> None:
    """A5: By UDP the message goes in one datagram, and what was collected says the head."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(30)
        remember(SyslogAnchor(f"udp://127.0.0.1:{server.getsockname()[1]}"))
        message = server.recv(65_536)
    assert HEADER.match(message)
    assert len(message) <= 2048
    assert parse_line(message) == HEAD


@pytest.mark.parametrize(("seq", "known"), [(3, HEAD.hash), (0, FIRST_PREV)], ids=["set back", "gone"])
def test_what_was_given_up_is_one_message(seq: int, known: str) -> None:
    """A21: An operator's word goes to the log with its reason: where the run goes on, or that nothing of it is left."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(30)
        anchor = SyslogAnchor(f"udp://127.0.0.1:{server.getsockname()[1]}")
        anchor.accept(HEAD.run, HEAD.gen, seq, known, HEAD.at_ms, "the restore of Monday")
        message = server.recv(65_536)
    assert HEADER.match(message)
    assert parse_line(message) == Anchored(
        HEAD.run, HEAD.gen, seq, known, HEAD.at_ms, back=True, why="the restore of Monday"
    )


def test_a_connection_carries_a_counted_frame() -> None:
    """A5: By TCP the message is framed by its length, and the server has read it all when `remember` returns."""
    listener = Listener(server := socket.create_server(("127.0.0.1", 0)))
    remember(SyslogAnchor(f"tcp://127.0.0.1:{server.getsockname()[1]}"))
    message = framed(listener.read)
    assert HEADER.match(message)
    assert parse_line(message) == HEAD


def test_the_local_daemon_gets_a_datagram(tmp_path: Path) -> None:
    """By the unix socket of a daemon that takes datagrams, as most do, the message goes as it is."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "log"))
        server.settimeout(30)
        remember(SyslogAnchor(f"unix://{tmp_path}/log"))
        assert parse_line(server.recv(65_536)) == HEAD


def test_a_local_stream_carries_a_counted_frame(tmp_path: Path) -> None:
    """By the unix socket of a daemon that takes streams the message is framed by its length."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(tmp_path / "log"))
    server.listen()
    listener = Listener(server)
    remember(SyslogAnchor(f"unix://{tmp_path}/log"))
    assert parse_line(framed(listener.all())) == HEAD


def test_a_changed_message_shows() -> None:
    """A5: An edit in the collected log is CorruptState."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(30)
        remember(SyslogAnchor(f"udp://127.0.0.1:{server.getsockname()[1]}"))
        message = server.recv(65_536)
    with pytest.raises(CorruptState):
        parse_line(message.replace(b'"seq":7', b'"seq":8'))


def test_it_cannot_be_asked() -> None:
    """Syslog answers nothing, and so the anchor claims to know nothing; it asks nobody."""
    assert SyslogAnchor("tcp://192.0.2.1:1").last(HEAD.run, 1) is None
    assert not SyslogAnchor("tcp://192.0.2.1:1").generations(HEAD.run)


def closed_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    """A server that refuses, or a socket that is missing, is told for another try, with the address."""
    for address in (f"tcp://127.0.0.1:{closed_port()}", f"unix://{tmp_path}/missing"):
        with pytest.raises(Unavailable, match=re.escape(address)):
            remember(SyslogAnchor(address))


def test_a_server_that_does_not_read_has_an_end() -> None:
    """By TCP a server that never closes the connection has not confirmed that it read: Unavailable, within the bound."""
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(Unavailable):
        remember(SyslogAnchor(f"tcp://127.0.0.1:{server.getsockname()[1]}", timeout_s=0.2))


def test_a_server_that_talks_for_ever_has_an_end() -> None:
    """By TCP a server that only talks has not confirmed that it read: Unavailable."""

    def talk(connection: socket.socket) -> None:
        try:
            for _ in range(10_000):
                connection.sendall(b"x" * 4096)
        except OSError:
            pass

    listener = Listener(server := socket.create_server(("127.0.0.1", 0)), talk)
    with pytest.raises(Unavailable, match="goes on talking"):
        remember(SyslogAnchor(f"tcp://127.0.0.1:{server.getsockname()[1]}", timeout_s=30.0))
    listener._thread.join(30)


def test_a_host_name_that_is_none_is_made_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header stays one that can be parsed whatever this machine is called."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(30)
        anchor = SyslogAnchor(f"udp://127.0.0.1:{server.getsockname()[1]}")
        for name, sent in (("a b\nü", b" a?b?? "), ("", b" - ")):
            monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
            remember(anchor)
            assert sent in server.recv(65_536).partition(b"leasekeeper")[0]


@pytest.mark.parametrize(
    "address",
    [
        *(
            "",
            "localhost",
            "localhost:514",
            "http://localhost",
            "udp://",
            "udp://:514",
            "tcp://host:port",
            "tcp://h:99999",
        ),
        *("unix://", "unix://host/dev/log", "unix:dev/log", "tcp://host/path", "udp://host?x=1", "tcp://me@host"),
    ],
)
def test_an_address_that_is_none_is_named(address: str) -> None:
    """A wrong address is refused when the anchor is made, with what would be right."""
    with pytest.raises(ConfigError, match="udp://HOST"):
        SyslogAnchor(address)


def test_other_wrong_values_are_named() -> None:
    """A facility that does not exist and a head that cannot be one are refused before anything is sent."""
    with pytest.raises(ConfigError, match="facility=24"):
        SyslogAnchor("udp://localhost", facility=24)
    with pytest.raises(ConfigError, match="seq=0"):
        SyslogAnchor("udp://192.0.2.1").remember("order/42", 1, 0, "ab" * 32, 0)
