"""Signal handlers of the user's that release a lease or close a keeper, also while their own thread is inside of the library."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leasekeeper import Keeper, LeasekeeperError, State, Timing, observe
from leasekeeper.protocol.authority import Authority
from leasekeeper.protocol.keys import Keys
from leasekeeper.runtime.heart import Heart
from leasekeeper.testing import EtcdServer
from leasekeeper.wire.channel import Channels
from leasekeeper.wire.watch import WatchedKey
from tests.raw import RawEtcd
from tests.support import until

# Where each lock of the library's is held. A signal comes there, the first time that it is called.
PLACES = [
    (Authority, "release"),
    (Heart, "_tell"),
    (Keys, "claim"),
    (WatchedKey, "__init__"),
    (Keys, "queue"),
]
TIMING = Timing(ttl=60)


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Sets what SIGUSR1 does."""
    before = signal.getsignal(signal.SIGUSR1)

    def set_to(call: Callable[[], object]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: (call(), None)[1])

    yield set_to
    signal.signal(signal.SIGUSR1, before)


def strike(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> list[bool]:
    """Raise the signal the next time that this is called; the list tells whether it was."""
    was: Callable[..., Any] = getattr(kind, name)
    struck: list[bool] = []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if not struck:
            struck.append(True)
            signal.raise_signal(signal.SIGUSR1)
        return was(*args, **kwargs)

    monkeypatch.setattr(kind, name, interrupted)
    return struck


@pytest.mark.parametrize(("kind", "name"), PLACES, ids=lambda part: getattr(part, "__name__", part))
@pytest.mark.parametrize("does", ["release", "close"])
def test_a_signal_handler_can_end_it_at_any_moment(
    etcd: EtcdServer,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    on_signal: Callable[[Callable[[], object]], None],
    kind: type,
    name: str,
    does: str,
) -> None:
    """A handler that comes while its own thread is in the midst of an acquire, a wait or a release neither hangs nor harms."""
    raw = RawEtcd(etcd.endpoint)
    with Keeper(etcd.endpoint, namespace=namespace, timing=TIMING) as keeper:
        held = keeper.acquire("held", timeout=10)
        waited_for = keeper.acquire("waited for", timeout=10)
        struck = strike(monkeypatch, kind, name)
        on_signal(held.release if does == "release" else keeper.close)
        try:
            keeper.acquire("n", timeout=10).release()
            keeper.acquire("waited for", timeout=0.1)
        except LeasekeeperError:
            pass
        waited_for.release()
        assert struck
        assert held.state is (State.RELEASED if does == "release" else State.LOST)
        until(lambda: raw.claims(namespace) == [])


def test_a_signal_handler_can_close_a_keeper_that_is_just_connecting(
    etcd: EtcdServer, namespace: str, monkeypatch: pytest.MonkeyPatch, on_signal: Callable[[Callable[[], object]], None]
) -> None:
    """The same before the first connection is there."""
    keeper = Keeper(etcd.endpoint, namespace=namespace, timing=TIMING)
    on_signal(keeper.close)
    struck = strike(monkeypatch, Channels, "open")
    with pytest.raises(LeasekeeperError):
        keeper.acquire("n", timeout=10)
    assert struck
    assert not RawEtcd(etcd.endpoint).claims(namespace)


@pytest.mark.parametrize("name", ["release", "turn"])
def test_a_lease_released_twice_at_once_was_released(
    etcd: EtcdServer,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    on_signal: Callable[[Callable[[], object]], None],
    name: str,
) -> None:
    """A handler that releases the very lease that its thread is just releasing makes no loss of it; it is told once."""
    told: list[observe.Event] = []
    observe.add(told.append)
    try:
        with Keeper(etcd.endpoint, namespace=namespace, timing=TIMING) as keeper:
            with keeper.lease("n", timeout=10) as lease:
                on_signal(lease.release)
                struck = strike(monkeypatch, Authority, name)
            assert struck
            assert lease.state is State.RELEASED
    finally:
        observe.remove(told.append)
    assert len([event for event in told if isinstance(event, observe.Released)]) == 1
