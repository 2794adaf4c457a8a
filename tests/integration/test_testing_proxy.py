"""The fault proxy, on plain sockets and before a real etcd."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from leasekeeper.errors import ConfigError, Misuse
from leasekeeper.testing import Fault, FaultProxy, Way, ports
from tests.support import until

SHORT_S = 0.3
"""How long a test watches that nothing comes. Too short hides a fault, but fails no test."""


class EchoServer:
    """A server that sends every byte back, and remembers what it has received."""

    def __init__(self) -> None:
        self.received = b""
        self.ended = 0
        self.accepted = 0
        self._connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="echo-accept", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._connections.append(connection)
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    self.received += data
                    connection.sendall(data)
            except OSError:
                pass
            self.ended += 1

    def die(self) -> None:
        """End every connection as a process that is killed does."""
        for connection in self._connections:
            connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop listening."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    """An echo server of this test's own."""
    server = EchoServer()
    yield server
    server.close()


@pytest.fixture
def wire(echo: EchoServer) -> Iterator[FaultProxy]:
    """A fault proxy before the echo server."""
    with FaultProxy(echo.target) as proxy:
        yield proxy


@pytest.fixture
def dial(wire: FaultProxy) -> Iterator[Callable[[], socket.socket]]:
    """Make connections through ``wire``; they are closed at the end."""
    made: list[socket.socket] = []

    def connect() -> socket.socket:
        host, port = wire.endpoint.split(":")
        made.append(socket.create_connection((host, int(port)), timeout=30))
        return made[-1]

    yield connect
    for sock in made:
        sock.close()


def exchange(sock: socket.socket, data: bytes) -> bytes:
    """Send ``data`` and read as many bytes back."""
    sock.sendall(data)
    return read(sock, len(data))


def read(sock: socket.socket, size: int) -> bytes:
    """Read exactly ``size`` bytes."""
    got = b""
    while len(got) < size:
        chunk = sock.recv(size - len(got))
        assert chunk, f"the stream ended after {got!r}"
        got += chunk
    return got


def is_silent(sock: socket.socket) -> bool:
    """True when neither a byte nor an end nor a reset comes for a short while."""
    sock.settimeout(SHORT_S)
    try:
        sock.recv(1)
    except TimeoutError:
        return True
    except OSError:
        return False
    finally:
        sock.settimeout(30)
    return False


def is_reset(sock: socket.socket) -> bool:
    """True when the connection is reset, at once or after bytes."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        return True
    return False


Dial = Callable[[], socket.socket]


def test_bytes_pass_both_ways_and_are_counted(wire: FaultProxy, dial: Dial) -> None:
    """Without a fault the proxy is only a detour, also for more than its buffers hold."""
    sock = dial()
    data = bytes(range(256)) * 8192
    sender = threading.Thread(target=sock.sendall, args=(data,))
    sender.start()
    assert read(sock, len(data)) == data
    sender.join()
    counts = wire.counts
    assert (counts.connections, counts.open, counts.refused) == (1, 1, 0)
    assert counts.bytes_to_server == counts.bytes_to_client == len(data)
    assert counts.lost_to_server == counts.lost_to_client == 0


def test_end_of_stream_passes_one_way_at_a_time(dial: Dial, echo: EchoServer) -> None:
    """A half-closed connection still brings the answer: nothing is cut short."""
    sock = dial()
    sock.sendall(b"last words")
    sock.shutdown(socket.SHUT_WR)
    assert read(sock, 10) == b"last words"
    assert sock.recv(1) == b""
    until(lambda: echo.ended == 1)


def test_cut_resets_and_refuses_until_healed(wire: FaultProxy, dial: Dial) -> None:
    """cut() resets what is open, refuses what is new, and heal() ends that on the same port."""
    sock = dial()
    assert exchange(sock, b"a") == b"a"
    endpoint = wire.endpoint
    wire.cut()
    assert is_reset(sock)
    with pytest.raises(ConnectionError):
        exchange(dial(), b"b")
    wire.heal()
    assert wire.endpoint == endpoint
    assert exchange(dial(), b"c") == b"c"


def test_blackhole_is_silent_and_delivers_late(wire: FaultProxy, dial: Dial, echo: EchoServer) -> None:
    """A black hole carries nothing on old and new connections; on heal all comes, in order."""
    old = dial()
    assert exchange(old, b"a") == b"a"
    wire.blackhole()
    new = dial()
    old.sendall(b"b1")
    old.sendall(b"b2")
    new.sendall(b"n")
    assert is_silent(old)
    assert is_silent(new)
    assert (echo.received, echo.accepted) == (b"a", 1)
    wire.heal()
    assert read(old, 4) == b"b1b2"
    assert read(new, 1) == b"n"


def test_blackhole_with_reset_on_heal_delivers_nothing(wire: FaultProxy, dial: Dial, echo: EchoServer) -> None:
    """heal(reset=True) drops held bytes together with their connection."""
    sock = dial()
    assert exchange(sock, b"a") == b"a"
    wire.blackhole()
    sock.sendall(b"never")
    wire.heal(reset=True)
    assert is_reset(sock)
    assert exchange(dial(), b"z") == b"z"
    assert echo.received == b"az"


@pytest.mark.parametrize("fault", [Fault("blackhole"), Fault("blackhole", Way.TO_CLIENT), Fault("lose_replies")])
def test_nobody_hears_that_the_server_died(fault: Fault, wire: FaultProxy, dial: Dial, echo: EchoServer) -> None:
    """While replies do not pass, a client that goes on sending learns neither of an end nor of a reset."""
    sock = dial()
    assert exchange(sock, b"a") == b"a"
    wire.inject(fault)
    echo.die()
    until(lambda: echo.ended == 1)
    for _ in range(3):
        sock.sendall(b"anybody?")
        assert is_silent(sock)
    wire.heal()
    with pytest.raises((ConnectionError, AssertionError)):
        read(sock, 1)
    assert exchange(dial(), b"z") == b"z"


def test_a_server_hears_of_a_dead_client_when_healed(wire: FaultProxy, dial: Dial, echo: EchoServer) -> None:
    """A client's end is held back like its bytes, and comes with them."""
    sock, other = dial(), dial()
    assert exchange(sock, b"a") == b"a"
    assert exchange(other, b"b") == b"b"
    wire.blackhole()
    other.close()
    assert is_silent(sock)
    assert echo.ended == 0
    wire.heal()
    until(lambda: echo.ended == 1)


@pytest.mark.parametrize(("way", "arrived"), [(Way.TO_SERVER, b"a"), (Way.TO_CLIENT, b"ab")])
def test_blackhole_one_way(way: Way, arrived: bytes, wire: FaultProxy, dial: Dial, echo: EchoServer) -> None:
    """With one way held the other one passes, and the client sees silence in both cases."""
    sock = dial()
    assert exchange(sock, b"a") == b"a"
    wire.blackhole(way)
    sock.sendall(b"b")
    assert is_silent(sock)
    until(lambda: echo.received == arrived)
    wire.heal()
    assert read(sock, 1) == b"b"


def test_delay_adds_up_and_keeps_order(wire: FaultProxy, dial: Dial) -> None:
    """delay() keeps bytes back and delivers them later, in order and whole."""
    sock = dial()
    wire.delay(SHORT_S)
    sock.sendall(b"a")
    assert is_silent(sock)
    sock.sendall(b"b")
    assert read(sock, 2) == b"ab"


def test_lost_replies_are_never_spliced(wire: FaultProxy, dial: Dial, echo: EchoServer) -> None:
    """lose_replies() lets requests through; a connection that lost a reply ends on heal."""
    hurt, idle = dial(), dial()
    assert exchange(hurt, b"a") == b"a"
    assert exchange(idle, b"i") == b"i"
    wire.lose_replies()
    hurt.sendall(b"lost")
    until(lambda: echo.received == b"ailost")
    until(lambda: wire.counts.lost_to_client == 4)
    assert is_silent(hurt)
    wire.heal()
    assert is_reset(hurt)
    assert exchange(idle, b"j") == b"j"


def test_a_blackhole_holds_what_a_delay_had_kept(wire: FaultProxy, dial: Dial, echo: EchoServer) -> None:
    """Bytes that are still in the proxy when a black hole begins stay there until heal."""
    sock = dial()
    assert exchange(sock, b"a") == b"a"
    wire.delay(2 * SHORT_S, Way.TO_CLIENT)
    sock.sendall(b"b")
    until(lambda: echo.received == b"ab")
    wire.blackhole()
    for _ in range(3):
        assert is_silent(sock)
    wire.heal()
    assert read(sock, 1) == b"b"


def test_replies_that_a_delay_had_kept_are_lost_too(wire: FaultProxy, dial: Dial, echo: EchoServer) -> None:
    """lose_replies() takes the replies that the proxy has and the client has not."""
    sock = dial()
    assert exchange(sock, b"a") == b"a"
    wire.delay(2 * SHORT_S, Way.TO_CLIENT)
    sock.sendall(b"b")
    until(lambda: echo.received == b"ab")
    wire.lose_replies()
    until(lambda: wire.counts.lost_to_client == 1)
    wire.heal()
    assert is_reset(sock)


def test_close_cleanly_ends_old_connections_only(wire: FaultProxy, dial: Dial, echo: EchoServer) -> None:
    """close_cleanly() is an end of stream for both ends, without a reset; new ones work."""
    sock = dial()
    assert exchange(sock, b"a") == b"a"
    wire.close_cleanly()
    assert sock.recv(1) == b""
    until(lambda: echo.ended == 1)
    assert exchange(dial(), b"b") == b"b"
    until(lambda: wire.counts.open == 1)


def test_next_reply_is_lost_on_a_connection_that_cannot_be_read(wire: FaultProxy, dial: Dial, echo: EchoServer) -> None:
    """Without HTTP/2 the next bytes count as the request, and the answer to them is lost."""
    sock = dial()
    assert exchange(sock, b"a") == b"a"
    trip = wire.lose_next_reply()
    assert not trip.fired
    sock.sendall(b"b")
    assert is_reset(sock)
    assert trip.wait(30)
    assert echo.received == b"ab"
    assert exchange(dial(), b"c") == b"c"


def test_next_request_never_reaches_the_server(wire: FaultProxy, dial: Dial, echo: EchoServer) -> None:
    """lose_next_request(then="cut") strikes before the request, and lasts until heal."""
    sock = dial()
    assert exchange(sock, b"a") == b"a"
    trip = wire.lose_next_request(then="cut")
    sock.sendall(b"b")
    assert is_reset(sock)
    assert trip.wait(30)
    with pytest.raises(ConnectionError):
        exchange(dial(), b"c")
    assert echo.received == b"a"
    wire.heal()
    assert exchange(dial(), b"d") == b"d"


def test_dead_server_resets_the_client(dial: Dial, echo: EchoServer) -> None:
    """When nobody listens behind the proxy a client is reset, not kept waiting."""
    echo.close()
    with pytest.raises(ConnectionError):
        exchange(dial(), b"a")


def test_faults_as_values(wire: FaultProxy, dial: Dial) -> None:
    """Every fault can be injected as a value and healed alone."""
    for fault in (Fault("cut"), Fault("blackhole", Way.TO_CLIENT), Fault("lose_replies")):
        wire.inject(fault)
        wire.heal(reset=True)
        assert exchange(dial(), fault.name.encode()) == fault.name.encode()


def test_use_before_start_and_after_close_is_refused(echo: EchoServer) -> None:
    """A proxy that does not run says so, and a bad target or delay is named."""
    proxy = FaultProxy(echo.target)
    with pytest.raises(Misuse):
        proxy.cut()
    with pytest.raises(Misuse):
        _ = proxy.endpoint
    with proxy:
        with pytest.raises(ConfigError):
            proxy.delay(-1)
        proxy.close()
        proxy.close()
    with pytest.raises(Misuse):
        proxy.heal()
    with pytest.raises(ConfigError):
        FaultProxy("localhost")


def test_nobody_draws_the_port_of_a_proxy_that_refuses() -> None:
    """A proxy that refuses does not listen; its port is not given to anybody else meanwhile, and heal() listens there again."""
    with FaultProxy("127.0.0.1:1") as proxy:
        port = int(proxy.endpoint.rpartition(":")[2])
        proxy.cut()
        assert ports.is_free(port)  # a server that was told this very port could have it
        assert not ports.is_untouched(port)
        proxy.heal()
        assert not ports.is_free(port)
