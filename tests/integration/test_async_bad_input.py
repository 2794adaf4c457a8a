"""Bad input to both APIs, end to end: a typed error that names the value and what would be right, and nothing sent."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator
from decimal import Decimal
from typing import Any

import grpc
import pytest

from leasekeeper import AsyncKeeper, AsyncLease, ConfigError, Keeper, Lease, LeasekeeperError, Misuse, Timing
from leasekeeper.testing import EtcdServer
from tests.intermediary import Intermediary
from tests.raw import RawEtcd

TIMING = Timing(ttl=2)
KINDS: list[type[Keeper | AsyncKeeper]] = [Keeper, AsyncKeeper]
LONG = "x" * 256
HUGE = 10**400

ENDPOINTS: list[object] = [
    "",
    " ",
    ",",
    "host:port",
    "host:0",
    "host:70000",
    "http://",
    "ftp://host:1",
    "::1",
    "[::1",
    "[::1]x",
    "a host:1",
    "host:2379/",
    "http://host:2379/v3",
    "unix:///socket",
    "host:٢٣",
    "https://a:1,http://b:1",
    [],
    [5],
    b"host:1",
    5,
    None,
    {"host": 1},
    [f"host{i}" for i in range(65)],
]
NAMES: list[object] = ["", LONG, "a\n", "a\0", "\ud800", "a\u2028b", "\x7f", 5, None, b"name", ["name"]]
TTLS: list[object] = ["10", 0, -1, 0.5, 90_000, math.nan, math.inf, True, HUGE, [], b"5"]
TIMEOUTS: list[object] = ["5", -1, math.nan, math.inf, True, HUGE, []]
NOTES: list[object] = [None, 5, b"note", "x" * 1025, "\ud800"]
NEEDS: list[object] = ["x", None, -1, math.nan, math.inf, TIMING.ttl, HUGE, 10**5000, [], Decimal(1)]
TOKENS: list[object] = ["x", "", "-5", "1.5", "٣", "1" * 30, -1, 0, 1.5, None, True, 2**63, 2**44]
ARGUMENTS: list[dict[str, object]] = [
    *({"namespace": name} for name in NAMES),
    *({"holder": name} for name in NAMES if name is not None),
    {"timing": 10},
    {"timing": "10"},
    {"tls": True},
    {"tls": "ca.pem"},
    {"user": "alice"},
    {"password": "s3cr3t"},
    {"user": "", "password": "s3cr3t"},
    {"user": "alice", "password": ""},
    {"user": 5, "password": "s3cr3t"},
    {"user": "alice", "password": b"s3cr3t"},
    {"channel": 5},
    {"channel": "host:1"},
    {"metadata": None},
    {"metadata": 5},
    {"metadata": "text"},
    {"metadata": {"key": "value"}},
    {"metadata": [("key",)]},
    {"metadata": [("key", "value", "more")]},
    {"metadata": [("key", 5)]},
    {"metadata": [("key", "s3cr3t\n")]},
    {"metadata": [("key", b"s3cr3t")]},
    {"metadata": [("key-bin", "s3cr3t")]},
    {"metadata": [("a key", "s3cr3t")]},
    {"metadata": [("", "s3cr3t")]},
    {"metadata": [(5, "s3cr3t")]},
    {"metadata": [("grpc-timeout", "1")]},
    {"metadata": [("key", "ü")]},
]
TIMINGS: list[dict[str, object]] = [
    *({"ttl": ttl} for ttl in TTLS),
    {"ttl": 10, "beat_every": 2.6},
    {"ttl": 10, "beat_every": 0},
    {"ttl": 10, "beat_every": "1"},
    {"ttl": 10, "pause_after": 9.8},
    {"ttl": 10, "beat_every": 2, "pause_after": 3},
    {"ttl": 10, "margin": 5},
    {"ttl": 10, "margin": 0},
    {"ttl": 10, "give_up_after": 0},
    {"ttl": 10, "max_hold": -1},
    {"ttl": 10, "max_hold": math.nan},
]


def shown(value: object) -> str:
    """A value as a test's name."""
    return repr(value)[:40]


def told(error: LeasekeeperError) -> None:
    """An error of a bad value: one line that is not longer than somebody reads, and no secret."""
    assert isinstance(error, (ConfigError, Misuse))
    assert error.__suppress_context__ or error.__context__ is None
    assert str(error)
    assert "\n" not in str(error)
    assert "s3cr3t" not in str(error)
    assert "expected" in str(error) or "must be" in str(error) or "at most" in str(error)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("endpoints", ENDPOINTS, ids=shown)
def test_endpoints(kind: type[Keeper | AsyncKeeper], endpoints: Any) -> None:
    """What cannot be an endpoint is refused when the keeper is made."""
    with pytest.raises(ConfigError) as caught:
        kind(endpoints)
    told(caught.value)
    assert caught.value.field in ("endpoint", "endpoints")


@pytest.mark.parametrize("kind", KINDS)
def test_a_password_in_an_endpoint_is_not_shown(kind: type[Keeper | AsyncKeeper]) -> None:
    """A user and password before a host are refused without showing them."""
    with pytest.raises(ConfigError, match="host:1") as caught:
        kind("http://alice:s3cr3t@host:1")
    told(caught.value)
    assert "s3cr3t" not in repr(vars(caught.value))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=shown)
def test_arguments(kind: type[Keeper | AsyncKeeper], arguments: dict[str, Any]) -> None:
    """What cannot be right in any other argument is refused when the keeper is made, and named."""
    with pytest.raises(LeasekeeperError) as caught:
        kind("host:1", **arguments)
    told(caught.value)
    assert any(word in str(caught.value) for word in (*arguments, "password", "user"))


def test_an_asyncio_channel() -> None:
    """A channel of grpc.aio belongs to one loop and cannot be lent, to neither API."""

    async def lend() -> None:
        async with grpc.aio.insecure_channel("host:1") as channel:
            for kind in KINDS:
                with pytest.raises(Misuse, match=r"not grpc\.aio"):
                    kind(channel=channel)  # type: ignore[arg-type]

    asyncio.run(lend())


@pytest.mark.parametrize("fields", TIMINGS, ids=shown)
def test_timing(fields: dict[str, Any]) -> None:
    """Durations that cannot be, or that contradict each other, are refused together with what would be right."""
    with pytest.raises(ConfigError) as caught:
        Timing(**fields)
    told(caught.value)


# ---------------------------------------------------------------- what is asked of a keeper


class Asked:
    """One keeper of either kind, asked as from plain code."""

    def __init__(self, keeper: Keeper | AsyncKeeper) -> None:
        self.keeper = keeper

    def do(self, what: Callable[[Any], Any]) -> Any:
        """Do something with the keeper to its end."""
        if isinstance(self.keeper, Keeper):
            return what(self.keeper)

        async def run() -> Any:
            result = what(self.keeper)
            return await result if isinstance(result, Coroutine) else result

        return asyncio.run(run())

    def names(self, prefix: Any) -> list[str]:
        """All names."""
        if isinstance(self.keeper, Keeper):
            return list(self.keeper.names(prefix))
        keeper = self.keeper

        async def walk() -> list[str]:
            return [name async for name in keeper.names(prefix)]

        return asyncio.run(walk())


@pytest.fixture(params=KINDS)
def asked(request: pytest.FixtureRequest, etcd: EtcdServer, namespace: str) -> Iterator[Asked]:
    """A keeper of each kind; after the test etcd must not have been asked for a claim."""
    with Intermediary(etcd.endpoint) as between:
        asked = Asked(request.param(between.endpoint, namespace=namespace, timing=TIMING))
        yield asked
        asked.do(lambda keeper: keeper.close())
        assert between.count("Txn") == 0
        assert between.count("LeaseGrant") == 0
    assert RawEtcd(etcd.endpoint).claims(namespace) == []


@pytest.mark.parametrize("method", ["acquire", "try_acquire", "lease", "claims", "verify"])
@pytest.mark.parametrize("name", NAMES, ids=shown)
def test_names(asked: Asked, method: str, name: Any) -> None:
    """What cannot be a name is refused by whatever takes one, before anything is sent."""
    more = (5,) if method == "verify" else ()
    with pytest.raises(ConfigError, match="name=") as caught:
        asked.do(lambda keeper: getattr(keeper, method)(name, *more))
    told(caught.value)


@pytest.mark.parametrize("prefix", [name for name in NAMES if name != ""], ids=shown)
def test_prefixes(asked: Asked, prefix: Any) -> None:
    """What no name can begin with is refused as a prefix."""
    with pytest.raises(ConfigError, match="prefix=") as caught:
        asked.names(prefix)
    told(caught.value)


@pytest.mark.parametrize("token", TOKENS, ids=shown)
def test_tokens(asked: Asked, token: Any) -> None:
    """What cannot be a token is refused by verify()."""
    with pytest.raises(ConfigError, match="token=") as caught:
        asked.do(lambda keeper: keeper.verify("n", token))
    told(caught.value)


BAD_WISHES = [
    *({"ttl": ttl} for ttl in TTLS),
    *({"timeout": timeout} for timeout in TIMEOUTS),
    *({"note": note} for note in NOTES),
]


@pytest.mark.parametrize("method", ["acquire", "lease"])
@pytest.mark.parametrize("wish", BAD_WISHES, ids=shown)
def test_wishes(asked: Asked, method: str, wish: dict[str, Any]) -> None:
    """A TTL, timeout or note that cannot be is refused where it is given, also by lease() before it is entered."""
    with pytest.raises(ConfigError) as caught:
        asked.do(lambda keeper: getattr(keeper, method)("n", **wish))
    told(caught.value)
    assert caught.value.field in wish


def test_a_ttl_that_the_timing_does_not_allow(etcd: EtcdServer) -> None:
    """A TTL that contradicts the keeper's explicit durations is refused with both of them named."""
    keeper = Keeper(etcd.endpoint, timing=Timing(ttl=10, pause_after=5))
    with keeper, pytest.raises(ConfigError, match=r"pause_after=5 .*ttl - margin = 5\.2"):
        keeper.acquire("n", ttl=5.2)


# ---------------------------------------------------------------- what is asked of a lease


def test_needs_and_timeouts_of_the_gate(etcd: EtcdServer, namespace: str) -> None:
    """A need that no proof can satisfy is Misuse, a timeout that cannot be a ConfigError, held or not; the lease stays."""
    with Keeper(etcd.endpoint, namespace=namespace, timing=TIMING) as keeper, keeper.lease("n") as lease:
        for need in NEEDS:
            for ask in (lease.check, lambda need, lease=lease: lease.wait(need, timeout=0.1), lease.critical):
                with pytest.raises(Misuse, match="need=") as caught:
                    _entered(ask(need))  # type: ignore[arg-type]
                told(caught.value)
        for timeout in TIMEOUTS:
            with pytest.raises(ConfigError, match="timeout="):
                lease.wait(timeout=timeout)  # type: ignore[arg-type]
        assert lease.check() == lease.wait(1, timeout=0) == lease.token


def test_needs_and_timeouts_of_the_gate_for_tasks(etcd: EtcdServer, namespace: str) -> None:
    """The same under asyncio."""

    async def ask() -> None:
        async with AsyncKeeper(etcd.endpoint, namespace=namespace, timing=TIMING) as keeper, keeper.lease("n") as lease:
            for need in NEEDS:
                with pytest.raises(Misuse, match="need="):
                    lease.check(need)  # type: ignore[arg-type]
                with pytest.raises(Misuse, match="need=") as caught:
                    await lease.wait(need, timeout=0.1)  # type: ignore[arg-type]
                told(caught.value)
                with pytest.raises(Misuse, match="need="):
                    await lease.critical(need).__aenter__()  # type: ignore[arg-type]
            for timeout in TIMEOUTS:
                with pytest.raises(ConfigError, match="timeout="):
                    await lease.wait(timeout=timeout)  # type: ignore[arg-type]
            assert lease.check() == await lease.wait(1, timeout=0) == lease.token

    asyncio.run(ask())


def _entered(asked: Any) -> None:
    if not isinstance(asked, int):
        asked.__enter__()


@pytest.mark.parametrize("callback", [None, 5, "text", asyncio.sleep])
def test_subscribers(etcd: EtcdServer, namespace: str, callback: Any) -> None:
    """What cannot be called, or would only make a coroutine, cannot subscribe."""
    keeper = Keeper(etcd.endpoint, namespace=namespace, timing=TIMING)
    with keeper, keeper.lease("n") as lease, pytest.raises(Misuse, match="subscribe"):
        lease.subscribe(callback)


def test_too_many_subscribers(etcd: EtcdServer, namespace: str) -> None:
    """Subscribers of one lease are bounded, and one that leaves makes room."""
    with Keeper(etcd.endpoint, namespace=namespace, timing=TIMING) as keeper, keeper.lease("n") as lease:
        leave = [lease.subscribe(lambda _: None) for _ in range(64)]
        with pytest.raises(Misuse, match="64"):
            lease.subscribe(lambda _: None)
        leave[0]()
        lease.subscribe(lambda _: None)


def test_a_lease_that_is_over_says_so_first(etcd: EtcdServer, namespace: str) -> None:
    """On a lease that is over even a bad need is answered by LeaseLost: the work has to stop."""
    with Keeper(etcd.endpoint, namespace=namespace, timing=TIMING) as keeper:
        lease: Lease | AsyncLease = keeper.acquire("n")
        assert isinstance(lease, Lease)
        lease.release()
        for need in (-1, 100):
            with pytest.raises(LeasekeeperError, match="is over"):
                lease.check(need)
            with pytest.raises(LeasekeeperError, match="is over"):
                lease.wait(need)
