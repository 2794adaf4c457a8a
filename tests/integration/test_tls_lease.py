"""TLS to a real etcd that asks for client certificates: what works, what is wrong in one clear error, and renewed files."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from leasekeeper import TLS, AsyncKeeper, ConfigError, Keeper, Lease, LeasekeeperError, State, Timing, Unavailable
from leasekeeper.testing import EtcdServer, FaultProxy, TLSFiles
from tests.support import until

TIMING = Timing(ttl=2)
SERVER_NAME = "etcd.example.org"


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    cert: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """A CA with its files in one directory."""

    ca: trustme.CA
    directory: Path

    @property
    def file(self) -> Path:
        """The CA's own certificate."""
        path = self.directory / "ca.pem"
        self.ca.cert_pem.write_to_path(str(path))
        return path

    def issue(self, label: str, *names: str, lives: tuple[float, float] | None = None) -> Pair:
        """A certificate for these names; it lives from ``lives[0]`` to ``lives[1]`` seconds from now."""
        now = dt.datetime.now(dt.timezone.utc)
        span = [None, None] if lives is None else [now + dt.timedelta(seconds=s) for s in lives]
        issued = self.ca.issue_cert(*names, not_before=span[0], not_after=span[1])
        pair = Pair(self.directory / f"{label}.pem", self.directory / f"{label}.key")
        pair.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(pair.key))
        return pair


@dataclass(frozen=True)
class Secure:
    """A server that speaks TLS, and what belongs to it."""

    server: EtcdServer
    authority: Authority
    client: Pair

    def tls(self, **other: object) -> TLS:
        """What a client needs, or something else instead of part of it."""
        files: dict[str, object] = {"ca": self.authority.file, "cert": self.client.cert, "key": self.client.key}
        return TLS(**{**files, **other})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """An etcd that speaks TLS and asks its clients for a certificate."""
    authority = Authority(trustme.CA(), tmp_path_factory.mktemp("tls"))
    server = authority.issue("server", "127.0.0.1", SERVER_NAME)
    client = authority.issue("client", "client.example.org")
    files = TLSFiles(authority.file, server.cert, server.key, client.cert, client.key)
    with EtcdServer(tls=files, fsync=False) as etcd:
        yield Secure(etcd, authority, client)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA that nobody trusts."""
    return Authority(trustme.CA(), tmp_path_factory.mktemp("stranger"))


def refused(endpoints: str, tls: TLS | None = None) -> LeasekeeperError:
    """The error of an acquire that cannot reach etcd, which must come within its timeout and in one line."""
    began = time.monotonic()
    with Keeper(endpoints, tls=tls, timing=TIMING) as keeper, pytest.raises(LeasekeeperError) as caught:
        keeper.acquire("n", timeout=2)
    assert time.monotonic() - began < 15
    assert "\n" not in str(caught.value)
    return caught.value


# ---------------------------------------------------------------- what works


@pytest.mark.parametrize("scheme", ["", "https://"])
def test_a_client_certificate(secure: Secure, namespace: str, scheme: str) -> None:
    """With CA, certificate and key everything works, beats, watches and read-backs included."""
    endpoint = scheme + secure.server.endpoint
    with Keeper(endpoint, tls=secure.tls(), timing=TIMING, namespace=namespace) as keeper:
        with keeper.lease("n") as lease:
            assert keeper.verify("n", lease.token)
            time.sleep(TIMING.ttl)
            assert lease.state is State.HELD
        other = keeper.acquire("n")
        (claim,) = keeper.claims("n")
        assert claim.token == other.token


def test_a_client_certificate_for_tasks(secure: Secure, namespace: str) -> None:
    """The same under asyncio."""

    async def work() -> None:
        endpoint = secure.server.endpoint
        keeper = AsyncKeeper(endpoint, tls=secure.tls(), timing=TIMING, namespace=namespace)
        async with keeper, keeper.lease("n") as lease:
            assert await keeper.verify("n", lease.token)

    asyncio.run(work())


def test_another_name_in_the_certificate(secure: Secure, namespace: str) -> None:
    """`server_name` is the name that is looked for in the server's certificate when the endpoint's host is not in it."""
    endpoint = secure.server.endpoint.replace("127.0.0.1", "localhost")
    error = refused(endpoint, secure.tls())
    assert isinstance(error, ConfigError)
    assert error.field == "tls"
    tls = secure.tls(server_name=SERVER_NAME)
    with Keeper(endpoint, tls=tls, timing=TIMING, namespace=namespace) as keeper, keeper.lease("n"):
        pass


def test_one_endpoint_of_two(secure: Secure, etcd: EtcdServer, namespace: str) -> None:
    """An endpoint with which no TLS connection comes about is passed over while another one works."""
    endpoints = f"{etcd.endpoint},{secure.server.endpoint}"
    keeper = Keeper(endpoints, tls=secure.tls(), timing=TIMING, namespace=namespace)
    with keeper, keeper.lease("n", timeout=30) as lease:
        time.sleep(TIMING.ttl)
        assert lease.state is State.HELD


# ---------------------------------------------------------------- what is wrong


def test_no_client_certificate(secure: Secure) -> None:
    """A client without a certificate where one is asked for is told that TLS is the trouble, and about certificates."""
    error = refused(secure.server.endpoint, TLS(ca=secure.authority.file))
    assert isinstance(error, ConfigError)
    assert "client certificate" in error.expected
    assert secure.server.endpoint in str(error)


def test_a_certificate_of_another_ca(secure: Secure, stranger: Authority) -> None:
    """A client certificate that the server does not trust is a ConfigError about TLS."""
    pair = stranger.issue("client", "client.example.org")
    error = refused(secure.server.endpoint, secure.tls(cert=pair.cert, key=pair.key))
    assert isinstance(error, ConfigError)
    assert error.field == "tls"


def test_a_certificate_that_is_over(secure: Secure) -> None:
    """An expired client certificate is a ConfigError about TLS."""
    pair = secure.authority.issue("over", "client.example.org", lives=(-7200, -3600))
    error = refused(secure.server.endpoint, secure.tls(cert=pair.cert, key=pair.key))
    assert isinstance(error, ConfigError)
    assert error.field == "tls"


def test_the_wrong_ca(secure: Secure, stranger: Authority) -> None:
    """A server that the given CA did not sign is a ConfigError about TLS."""
    error = refused(secure.server.endpoint, secure.tls(ca=stranger.file))
    assert isinstance(error, ConfigError)
    assert error.field == "tls"


def test_the_wrong_name(secure: Secure) -> None:
    """A certificate without the expected name is a ConfigError about TLS."""
    error = refused(secure.server.endpoint, secure.tls(server_name="nobody.example.org"))
    assert isinstance(error, ConfigError)
    assert error.field == "tls"


def test_https_without_files(secure: Secure) -> None:
    """`https://` alone trusts the system's CAs, of which none signed this server: a ConfigError about TLS."""
    error = refused(f"https://{secure.server.endpoint}")
    assert isinstance(error, ConfigError)
    assert error.field == "tls"


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_plain_to_tls(secure: Secure, scheme: str) -> None:
    """A plain client at a TLS server is Unavailable within its timeout, with a hint at TLS."""
    error = refused(scheme + secure.server.endpoint)
    assert isinstance(error, Unavailable)
    assert "one side speaks TLS" in str(error)


def test_tls_to_plain(secure: Secure, etcd: EtcdServer) -> None:
    """A TLS client at a plain server is told within its timeout, with a hint at TLS."""
    error = refused(etcd.endpoint, secure.tls())
    assert "TLS" in str(error)


def test_http_with_files(secure: Secure) -> None:
    """`http://` together with certificates contradicts itself: refused before anything is sent."""
    with pytest.raises(ConfigError, match="https://") as caught:
        Keeper(f"http://{secure.server.endpoint}", tls=secure.tls())
    assert caught.value.field == "endpoints"


@pytest.mark.parametrize(
    ("field", "files"),
    [
        ("cert", {"cert": "client.pem", "key": "server.key"}),
        ("cert", {"cert": "client.key", "key": "client.pem"}),
        ("cert", {"cert": "client.pem"}),
        ("key", {"key": "client.key"}),
        ("ca", {"ca": "no such file.pem"}),
        ("ca", {"ca": "."}),
        ("ca", {"ca": "client.key"}),
        ("cert", {"cert": "text", "key": "client.key"}),
    ],
)
def test_files_that_cannot_be_right(secure: Secure, field: str, files: dict[str, str]) -> None:
    """A key of another certificate, swapped, missing, unreadable or empty files: a ConfigError that names the file."""
    directory = secure.authority.directory
    (directory / "text").write_text("no PEM at all")
    paths = {name: directory / file for name, file in files.items()}
    with pytest.raises(ConfigError) as caught:
        TLS(**paths)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert str(paths[field]) in str(caught.value)


@pytest.mark.parametrize("value", ["", 7, b"name"])
def test_a_server_name_that_is_none(value: object) -> None:
    """A server name that is no text is a ConfigError."""
    with pytest.raises(ConfigError, match="server_name"):
        TLS(server_name=value)  # type: ignore[arg-type]


# ---------------------------------------------------------------- files that are renewed


def replace(pair: Pair, by: Pair, *, key: bool = True) -> None:
    """Put another certificate in place of one, as a renewal does: with its key, or without it for now."""
    shutil.copy(by.cert, pair.cert)
    if key:
        shutil.copy(by.key, pair.key)


def test_renewed_files_are_used_by_the_next_connection(secure: Secure, namespace: str) -> None:
    """A certificate that ends while it is in use does no harm when its files were renewed: the next connection reads them."""
    short = secure.authority.issue("short", "client.example.org", lives=(-60, 3))
    with FaultProxy(secure.server.endpoint) as proxy:
        tls = secure.tls(cert=short.cert, key=short.key)
        with Keeper(proxy.endpoint, tls=tls, timing=Timing(ttl=6), namespace=namespace) as keeper:
            lease = keeper.acquire("n")
            replace(short, secure.client)
            time.sleep(3.5)  # now the first one is over
            proxy.close_cleanly()
            assert keeper.verify("n", lease.token)
            assert lease.wait(timeout=30) == lease.token
            keeper.acquire("m", timeout=30).release()


def test_files_caught_in_the_middle_of_their_renewal(
    secure: Secure, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A new certificate whose key is not there yet, and files that are gone, are waited out: beats, watch and calls come back."""
    live = secure.authority.issue("live", "client.example.org")
    new = secure.authority.issue("new", "client.example.org")
    with FaultProxy(secure.server.endpoint) as proxy:
        tls = secure.tls(cert=live.cert, key=live.key)
        timing = Timing(ttl=20, beat_every=0.4, pause_after=10)
        with Keeper(proxy.endpoint, tls=tls, timing=timing, namespace=namespace) as keeper:
            lease = keeper.acquire("n")
            until(lambda: lease._authority.slot.watching)
            for spoil in ("mismatch", "gone"):
                if spoil == "mismatch":
                    replace(live, new, key=False)
                else:
                    live.cert.unlink()
                proxy.cut()
                time.sleep(1)
                proxy.heal()
                time.sleep(1)
                replace(live, new)
                assert lease.wait(timeout=30) == lease.token
                keeper.acquire("m", timeout=30).release()
                seen = lease._session.proof_s
                until(lambda seen=seen: lease._session.proof_s > seen)  # type: ignore[misc]
            with Keeper(secure.server.endpoint, tls=secure.tls(), timing=TIMING, namespace=namespace) as other:
                # A waiter is woken by its watch: the thread of the watches lives.
                waiting = other.acquire("w")
                got: list[Lease] = []
                waiter = threading.Thread(target=lambda: got.append(keeper.acquire("w", timeout=60)))
                waiter.start()
                until(lambda: len(keeper.claims("w")) == 2)
                waiting.release()
                waiter.join(20)  # without a watch it would look after 30 s
                assert got
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
