"""Grants against a real etcd and a real service with a fence: what gets through when the library is bypassed."""

from __future__ import annotations

import base64
import http.client
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import (
    AsyncKeeper,
    AuthError,
    ConfigError,
    Keeper,
    Lease,
    LeaseLost,
    LeaseSuspended,
    Misuse,
    StaleToken,
    State,
)
from leasekeeper.fencing import TOKEN_MAX
from leasekeeper.guards.grant import Grant, Issuer, Verifier, canonical, requires_grant
from leasekeeper.guards.signing import HmacKey
from leasekeeper.guards.sqlite import Fence
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.loops import on_loop
from tests.raw import RawEtcd
from tests.support import until

KEY = HmacKey("k1", b"a secret that nobody else knows.")
NAME = "certs"


class Service:
    """A resource on a socket of its own: it stores a host if the grant in the header is good, and knows of no etcd."""

    def __init__(self, database: Path, verifier: Verifier) -> None:
        self.database = database
        self.verifier = verifier
        with closing(sqlite3.connect(database)) as connection, connection:
            Fence.create(connection)
            connection.execute("CREATE TABLE rotated (host TEXT, token INTEGER)")
        service = self

        class Request(BaseHTTPRequestHandler):
            """One POST of a JSON object of arguments, with the grant in X-Grant."""

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, said = service.answer(self.headers.get("X-Grant"), json.loads(body))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(said.encode())

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Request)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), name="service", daemon=True)
        self.thread.start()

    def answer(self, text: str | None, arguments: dict[str, Any]) -> tuple[int, str]:
        """An HTTP status and what is said with it."""
        try:
            if text is None:
                raise AuthError("no grant")
            grant = self.verifier.accept(text, name=NAME, effect="rotate", arguments=arguments)
            with closing(sqlite3.connect(self.database)) as connection, connection:
                token = Fence(connection).admit(NAME, grant)
                connection.execute("INSERT INTO rotated VALUES (?, ?)", (arguments["host"], token))
        except (AuthError, ConfigError) as error:
            return 403, type(error).__name__
        except StaleToken as error:
            return 409, f"StaleToken {error.token} {error.highest} {error.holder}"
        except LeaseSuspended:
            return 410, "LeaseSuspended"
        return 200, "rotated"

    def post(self, text: str | None, host: str) -> tuple[int, str]:
        """A client with no library but the one for HTTP."""
        client = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=30)
        with closing(client):
            headers = {} if text is None else {"X-Grant": text}
            client.request("POST", "/rotate", json.dumps({"host": host}), headers)
            with client.getresponse() as response:
                return response.status, response.read().decode()

    @property
    def rotated(self) -> list[tuple[str, int]]:
        """What was stored."""
        with closing(sqlite3.connect(self.database)) as connection:
            return list(connection.execute("SELECT host, token FROM rotated ORDER BY rowid"))

    @property
    def highest(self) -> int:
        """The highest token that the fence has seen; 0 before the first."""
        with closing(sqlite3.connect(self.database)) as connection:
            return getattr(Fence(connection).highest(NAME), "token", 0)

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.thread.join(30)
        self.server.server_close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service that believes one key."""
    one = Service(tmp_path / "rotated.sqlite", Verifier(KEY))
    yield one
    one.close()


def grant_for(lease: Lease, host: str, key: HmacKey = KEY) -> Grant:
    """A grant to rotate one host."""
    return Issuer(key).grant(lease, "rotate", {"host": host})


def with_token(text: str, token: int) -> str:
    """The text with another token in it, under the signature that it had."""
    version, key_id, payload, signature = text.split(".")
    members = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    changed = canonical({**members, "token": str(token)})
    return f"{version}.{key_id}.{encoded(changed)}.{signature}"


def encoded(data: bytes) -> str:
    """Base64url as the texts have it."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_a_client_with_an_old_token_is_refused(etcd: EtcdServer, namespace: str, service: Service) -> None:
    """ROW A11, A26: a raw client with an old owner's grant, rightly signed and still in time, is refused after a newer owner."""
    with Keeper(etcd.endpoint, namespace=namespace, holder="the next one") as keeper:
        with keeper.lease(NAME, ttl=40, timeout=10) as lease:
            old, unused = grant_for(lease, "a.example"), grant_for(lease, "c.example")
            assert service.post(old.text, "a.example") == (200, "rotated")
        with keeper.lease(NAME, ttl=40, timeout=10) as lease:
            assert lease.token > old.token
            assert service.post(grant_for(lease, "b.example").text, "b.example") == (200, "rotated")
            for text, host in ((old.text, "a.example"), (unused.text, "c.example")):
                assert service.post(text, host) == (409, f"StaleToken {old.token} {lease.token} the next one")
            stored = [("a.example", old.token), ("b.example", lease.token)]
    assert service.rotated == stored


def test_a_forged_huge_token_never_reaches_the_fence(etcd: EtcdServer, namespace: str, service: Service) -> None:
    """ROW A11, A26: a raw client with a huge token of its own making is refused, and the real owner is not locked out."""
    guess = HmacKey(KEY.key_id, b"what a forger may try as secret.")
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.lease(NAME, ttl=40, timeout=10) as lease:
        true = grant_for(lease, "a.example").text
        forged = with_token(true, TOKEN_MAX)
        head = forged.rpartition(".")[0]
        guessed = f"{head}.{encoded(guess.sign(head.encode()))}"
        for text in (forged, guessed, with_token(true, lease.token + 1)):
            assert service.post(text, "a.example") == (403, "AuthError")
        for text in (head, str(TOKEN_MAX), ""):
            assert service.post(text, "a.example") == (403, "ConfigError")
        assert service.post(None, "a.example") == (403, "AuthError")
        assert service.highest == 0
        assert service.post(true, "b.example") == (403, "AuthError")
        assert service.post(true, "a.example") == (200, "rotated")
        assert service.highest == lease.token
        stored = [("a.example", lease.token)]
    assert service.rotated == stored


def test_an_owner_of_another_name_is_nobody_here(etcd: EtcdServer, namespace: str, service: Service) -> None:
    """ROW A26: a true grant from a lease on another name, whose token may well be larger, is refused and not remembered."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.lease("another", ttl=40, timeout=10) as lease:
        assert service.post(grant_for(lease, "a.example").text, "a.example") == (403, "AuthError")
    assert service.highest == 0


def test_an_expired_grant_is_refused_here_and_there(etcd: EtcdServer, namespace: str, service: Service) -> None:
    """ROW A26: past its deadline a grant is refused by its own process and by the resource, although the lease goes on."""
    done: list[str] = []

    @requires_grant("rotate")
    def rotate(grant: Grant, host: str) -> None:
        done.append(host)

    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.lease(NAME, ttl=4, timeout=10) as lease:
        grant = rotate.grant(lease, Issuer(KEY), "a.example")
        until(lambda: grant.remaining() == 0.0)
        assert service.post(grant.text, "a.example") == (410, "LeaseSuspended")
        with pytest.raises(LeaseSuspended):
            rotate(grant, "a.example")
        with pytest.raises(Misuse):
            rotate("a.example")  # type: ignore[call-arg, arg-type]
        assert not done
        assert lease.wait(timeout=30) == grant.token
    assert (service.rotated, service.highest) == ([], 0)


def test_a_grant_ends_with_its_lease(proxy: FaultProxy, namespace: str, etcd: EtcdServer) -> None:
    """ROW A26: without heartbeats a grant is refused locally, with time left on it; once the claim is gone it is LeaseLost."""
    done: list[str] = []

    @requires_grant("rotate")
    def rotate(grant: Grant, host: str) -> None:
        done.append(host)

    with Keeper(proxy.endpoint, namespace=namespace) as keeper:
        lease = keeper.acquire(NAME, ttl=5, timeout=10)
        grant = rotate.grant(lease, Issuer(KEY), "a.example")
        rotate(grant, "a.example")
        proxy.cut()
        until(lambda: lease.state is State.SUSPENDED)
        with pytest.raises(LeaseSuspended):
            rotate(grant, "a.example")
        RawEtcd(etcd.endpoint).delete(lease.key)
        proxy.heal()
        until(lambda: lease.loss is not None)
        with pytest.raises(LeaseLost):
            rotate(grant, "a.example")
        with pytest.raises(LeaseLost):
            rotate.grant(lease, Issuer(KEY), "a.example")
    assert done == ["a.example"]


@on_loop
async def test_an_async_lease_grants_too(etcd: EtcdServer, namespace: str, service: Service) -> None:
    """ROW A26: coroutines are gated by the same grants, made from an AsyncLease."""
    done: list[str] = []

    @requires_grant("rotate")
    async def rotate(grant: Grant, host: str) -> int:
        done.append(host)
        return grant.token

    async with AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper:
        async with keeper.lease(NAME, ttl=40, timeout=10) as lease:
            grant = rotate.grant(lease, Issuer(KEY), "a.example")
            assert await rotate(grant, "a.example") == lease.token
            assert service.answer(grant.text, {"host": "a.example"}) == (200, "rotated")
        with pytest.raises(LeaseLost, match="released"):
            await rotate(grant, "a.example")
    assert done == ["a.example"]
