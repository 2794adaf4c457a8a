"""Nothing hangs: with etcd out of reach in any way, every call ends in its time with an error that says so."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from leasekeeper import (
    Keeper,
    Lease,
    LeasekeeperError,
    LeaseLost,
    LeaseSuspended,
    NotAcquired,
    State,
    Timing,
    Unavailable,
)
from leasekeeper.protocol import leave, lend
from leasekeeper.runtime import core
from leasekeeper.testing import EtcdServer, Fault, FaultProxy
from tests.support import until

# What a call that has no timeout of its own may take here; really it is 10 s, for releasing and closing 3 s.
PATIENCE_S = 0.6
# Cleaning up after a call that failed takes up to 0.8 s twice; the rest is for a busy machine.
GRACE_S = 6.0
FAULTS = [Fault("blackhole"), Fault("cut"), Fault("lose_replies")]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten what a test would only wait for."""
    monkeypatch.setattr(lend, "PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(core, "ASK_S", PATIENCE_S)
    monkeypatch.setattr(core, "CLOSE_S", PATIENCE_S)
    monkeypatch.setattr(leave, "RELEASE_S", PATIENCE_S)


def timed(call: Callable[[], object]) -> tuple[float, BaseException | None]:
    """How long a call took, and what it raised."""
    began_s = time.monotonic()
    try:
        call()
    except LeasekeeperError as error:
        return time.monotonic() - began_s, error
    return time.monotonic() - began_s, None


@pytest.fixture
def silent_endpoint() -> Iterator[str]:
    """An address where connections are taken and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("where", ["closed", "silent", "no such host"])
def test_an_etcd_that_was_never_there(where: str, silent_endpoint: str, namespace: str) -> None:
    """Unavailable within the timeout, naming the endpoint and the call; closing the keeper then is quick and quiet."""
    endpoint = {"closed": "127.0.0.1:1", "silent": silent_endpoint, "no such host": "no-such-host.invalid:2379"}[where]
    with Keeper(endpoint, namespace=namespace) as keeper, ThreadPoolExecutor(6) as pool:
        calls: list[Callable[[], object]] = [
            lambda: keeper.acquire("n", timeout=0.5),
            lambda: keeper.acquire("n"),
            lambda: keeper.try_acquire("n"),
            lambda: keeper.verify("n", 5),
            lambda: keeper.claims("n"),
            lambda: list(keeper.names()),
        ]
        for took_s, error in pool.map(timed, calls):
            assert isinstance(error, Unavailable), error
            assert error.endpoints == (endpoint,)
            assert error.operation
            assert endpoint in str(error)
            assert took_s < PATIENCE_S + GRACE_S
    assert timed(keeper.close)[0] < GRACE_S


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_an_etcd_that_goes_away(proxy: FaultProxy, namespace: str, etcd: EtcdServer, fault: Fault) -> None:
    """C10 B26: With leases held and a claim waiting every call ends in its time, and once healed no claim is left behind."""
    timing = Timing(ttl=30)
    with (
        Keeper(etcd.endpoint, namespace=namespace) as rival,
        rival.lease("taken", timeout=10),
        Keeper(proxy.endpoint, namespace=namespace, timing=timing) as keeper,
        ThreadPoolExecutor(10) as pool,
    ):
        lease, other = keeper.acquire("n", timeout=10), keeper.acquire("m", timeout=10)
        waiting = pool.submit(timed, lambda: keeper.acquire("taken", timeout=1))
        until(lambda: len(rival.claims("taken")) == 2)
        until(lambda: lease.remaining() < 29)
        proxy.inject(fault)
        calls: list[tuple[Callable[[], object], tuple[type, ...]]] = [
            (lambda: keeper.acquire("x", timeout=0.5), (Unavailable, NotAcquired)),
            (lambda: keeper.acquire("y"), (Unavailable,)),
            (lambda: keeper.acquire("z", ttl=5, timeout=0.5), (Unavailable,)),
            (lambda: keeper.try_acquire("x"), (Unavailable,)),
            (lambda: keeper.verify("n", lease.token), (Unavailable,)),
            (lambda: keeper.claims("n"), (Unavailable,)),
            (lambda: list(keeper.names()), (Unavailable,)),
            (lambda: lease.check(need=29.0), (LeaseSuspended,)),
            (lambda: lease.wait(need=29.0, timeout=0.5), (LeaseSuspended,)),
            (other.release, (type(None),)),
        ]
        outcomes = list(pool.map(timed, [call for call, _ in calls]))
        for (took_s, error), (_, expected) in zip(outcomes, calls, strict=True):
            assert isinstance(error, expected), error
            assert took_s < PATIENCE_S + GRACE_S
        took_s, error = waiting.result(30)
        assert isinstance(error, (NotAcquired, Unavailable))
        assert took_s < 1 + GRACE_S
        assert lease.check() == lease.token
        proxy.heal()
        until(lambda: [len(rival.claims(name)) for name in rival.names()] == [1, 1])
        assert lease.wait(timeout=20) == lease.token


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_closing_while_etcd_is_away(proxy: FaultProxy, namespace: str, fault: Fault) -> None:
    """Closing a keeper that cannot reach etcd ends in its time: gates are shut first, waiters and gate-keepers are told."""
    with ThreadPoolExecutor(3) as pool, Keeper(proxy.endpoint, namespace=namespace, timing=Timing(ttl=30)) as keeper:
        leases = [keeper.acquire("n", timeout=10), keeper.acquire("m", ttl=20, timeout=10)]
        waiting = pool.submit(keeper.acquire, "n")
        until(lambda: len(keeper.claims("n")) == 2)
        until(lambda: leases[0].remaining() < 29)
        blocked = pool.submit(leases[0].wait, 29.0)
        proxy.inject(fault)
        closing = pool.submit(timed, keeper.close)
        until(lambda: leases[0].state is State.LOST, 2)
        took_s, error = closing.result(30)
        assert error is None
        assert took_s < PATIENCE_S + GRACE_S
        with pytest.raises(LeaseLost):
            blocked.result(10)
        with pytest.raises(LeasekeeperError):
            waiting.result(10)
        proxy.heal()


def test_leaving_a_block_while_etcd_is_away(proxy: FaultProxy, namespace: str) -> None:
    """Leaving a block in a black hole ends in its time; with authority still proven it is no error."""

    def body(held: list[Lease]) -> None:
        with (
            Keeper(proxy.endpoint, namespace=namespace, timing=Timing(ttl=30)) as keeper,
            keeper.lease("n", timeout=10) as lease,
        ):
            held.append(lease)
            proxy.blackhole()

    held: list[Lease] = []
    took_s, error = timed(lambda: body(held))
    assert error is None
    assert held[0].state is State.RELEASED
    assert took_s < 2 * PATIENCE_S + GRACE_S
    proxy.heal()


def test_a_timeout_while_waiting_is_kept(etcd: EtcdServer, namespace: str) -> None:
    """C10: Twenty timeouts of one live process on a held name leave no claim, and the next acquire succeeds at once."""
    with (
        Keeper(etcd.endpoint, namespace=namespace) as owner,
        Keeper(etcd.endpoint, namespace=namespace) as keeper,
        ThreadPoolExecutor(20) as pool,
    ):
        lease = owner.acquire("n", timeout=10)
        outcomes = list(pool.map(lambda _: timed(lambda: keeper.acquire("n", timeout=0.5)), range(20)))
        assert all(isinstance(error, NotAcquired) for _, error in outcomes)
        assert all(0.5 <= took_s < 0.5 + GRACE_S for took_s, _ in outcomes)
        assert len(owner.claims("n")) == 1
        lease.release()
        assert keeper.acquire("n", timeout=0).token > lease.token
