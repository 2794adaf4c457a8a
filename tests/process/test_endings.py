"""What is left behind by programs and handles that end without closing anything: nothing, within a TTL."""

from __future__ import annotations

import gc
import logging
import signal
import threading
import weakref
from collections.abc import Callable

import pytest

from leasekeeper import AsyncKeeper, Keeper, State, Timing, observe
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.loops import eventually, on_loop
from tests.program import Program
from tests.raw import RawEtcd
from tests.support import until

TTL_S = 3

# How a program ends, its status, and what it may write to stderr: its own errors, and that it dropped a lease.
ENDINGS = [
    ("returns", 0),
    ("exits_with_a_global", 0),
    ("exits_with_a_cycle", 0),
    ("raises", 1),
    ("exits_while_others_wait", 0),
    ("exits_after_asyncio", 0),
    ("is_terminated", -signal.SIGTERM),
]


Threads = Callable[[], list[str]]


@pytest.fixture
def new_threads() -> Threads:
    """Names the library's threads that the test has started and that still run."""
    before = set(threading.enumerate())

    def names() -> list[str]:
        started = [thread.name for thread in set(threading.enumerate()) - before]
        return [name for name in started if name.startswith("leasekeeper-") and "testing" not in name]

    return names


@pytest.mark.parametrize(("scenario", "status"), ENDINGS)
def test_a_program_that_ends_with_a_lease(etcd: EtcdServer, namespace: str, scenario: str, status: int) -> None:
    """However a program ends, it ends at once and without a word of the library's, and its name is free within a TTL."""
    raw = RawEtcd(etcd.endpoint)
    with Program("endings", scenario=scenario, endpoint=etcd.endpoint, namespace=namespace, ttl=TTL_S) as program:
        program.wait_for("acquired")
        assert program.end() == status
        until(lambda: not raw.claims(namespace), timeout_s=TTL_S + 10)
    words = [line for line in program.errors.splitlines() if "dropped without a release" not in line]
    if scenario == "raises":
        assert words[0].startswith("Traceback")
        assert words[-1] == "KeyError: (\"the program's own error\", 'n')"
        assert not any("Exception ignored" in line for line in words)
    else:
        assert words == []


def test_a_program_that_ends_while_etcd_is_away(etcd: EtcdServer, proxy: FaultProxy, namespace: str) -> None:
    """An etcd that answers nothing holds up nobody's exit."""
    raw = RawEtcd(etcd.endpoint)
    given = {"endpoint": proxy.endpoint, "namespace": namespace, "ttl": TTL_S}
    with Program("endings", scenario="exits_while_etcd_is_away", **given) as program:
        program.wait_for("ready")
        proxy.blackhole()
        program.tell("go")
        assert program.end(TTL_S) == 0
        assert program.errors == ""
        until(lambda: not raw.claims(namespace), timeout_s=TTL_S + 10)


def test_a_thread_that_dies_frees_its_name(etcd: EtcdServer, namespace: str) -> None:
    """C18: A lease whose thread died of an error is given up while the program lives on, with a warning."""
    raw = RawEtcd(etcd.endpoint)
    given = {"endpoint": etcd.endpoint, "namespace": namespace, "ttl": 60}
    with Program("endings", scenario="loses_a_thread", **given) as program:
        program.wait_for("thread_died")
        until(lambda: not raw.claims(namespace), timeout_s=30)
        until(lambda: "the lease on 'n' was dropped without a release" in program.errors)
        assert program.alive
        program.tell("end")
        assert program.end() == 0


# ---------------------------------------------------------------- handles


def test_a_dropped_lease_is_given_up(etcd: EtcdServer, namespace: str, caplog: pytest.LogCaptureFixture) -> None:
    """C18: A handle that is garbage is not renewed for ever: its name is free long before its TTL, and that is warned of."""
    raw = RawEtcd(etcd.endpoint)
    told: list[observe.Event] = []
    observe.add(told.append)
    try:
        with Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=60)) as keeper:
            kept, lease = keeper.acquire("kept", timeout=10), keeper.acquire("n", timeout=10)
            claim = lease.claim
            with caplog.at_level(logging.WARNING, "leasekeeper"):
                del lease
                gc.collect()
                until(lambda: observe.Dropped("n", claim) in told)
                until(lambda: "'n' was dropped without a release" in caplog.text)
            until(lambda: [key.key for key in raw.claims(namespace)] == [kept.key])
            assert keeper.acquire("n", timeout=10).token > kept.check()
    finally:
        observe.remove(told.append)


def test_a_dropped_lease_in_a_cycle_is_given_up(etcd: EtcdServer, namespace: str) -> None:
    """C18: So is one that only the garbage collector can find, in the middle of whatever it interrupts."""
    raw = RawEtcd(etcd.endpoint)
    with Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=60)) as keeper:
        for number in range(20):
            cycle: list[object] = [keeper.acquire(f"n{number}", timeout=10)]
            cycle.append(cycle)
            del cycle
        gc.collect()
        until(lambda: not raw.claims(namespace))


def test_a_dropped_lease_whose_subscriber_was_told_is_given_up(
    etcd: EtcdServer, proxy: FaultProxy, namespace: str
) -> None:
    """C18: So is one whose subscriber knows it and has heard news of it, although no others follow."""
    raw = RawEtcd(etcd.endpoint)
    with Keeper(proxy.endpoint, namespace=namespace, timing=Timing(ttl=20, pause_after=1)) as keeper:
        lease = keeper.acquire("n", timeout=10)
        heard: list[State] = []
        lease.subscribe(lambda state, lease=lease: heard.append(lease.state))  # type: ignore[misc]
        proxy.blackhole()
        until(lambda: heard)
        proxy.heal()
        until(lambda: heard[-1] is State.HELD)
        del lease
        gc.collect()
        until(lambda: not raw.claims(namespace))


def test_a_dropped_keeper_ends(etcd: EtcdServer, namespace: str, new_threads: Threads) -> None:
    """A keeper that nobody closed and nobody can use any more takes its threads, its connections and its leases along."""
    raw = RawEtcd(etcd.endpoint)
    before = raw.leases()
    keeper = Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=60))
    lease = keeper.acquire("n", timeout=10)
    core = weakref.ref(keeper._core)
    until(lambda: len(new_threads()) >= 2)  # the heart and the watch
    del keeper
    gc.collect()
    assert lease.check() == lease.token  # a lease is enough to keep it going
    assert lease.state is State.HELD
    lease.release()
    assert raw.leases() != before
    del lease
    gc.collect()
    until(lambda: not new_threads())
    until(lambda: set(raw.leases()) <= set(before))
    until(lambda: (gc.collect(), core())[1] is None)


@pytest.mark.parametrize("held", [False, True])
@on_loop
async def test_a_dropped_keeper_ends_under_asyncio(
    etcd: EtcdServer, namespace: str, held: bool, new_threads: Threads
) -> None:
    """The same for AsyncKeeper, with its lease held or released when both are dropped."""
    raw = RawEtcd(etcd.endpoint)
    before = raw.leases()
    keeper = AsyncKeeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=60))
    lease = await keeper.acquire("n", timeout=10)
    if not held:
        await lease.release()
    del keeper, lease
    gc.collect()
    await eventually(lambda: not new_threads())
    await eventually(lambda: set(raw.leases()) <= set(before))
    assert not raw.claims(namespace)


def test_a_keeper_dropped_by_one_of_its_own_callbacks_ends(
    etcd: EtcdServer, namespace: str, new_threads: Threads
) -> None:
    """The last reference may go on any thread, also on the one that the library calls subscribers on."""
    raw = RawEtcd(etcd.endpoint)
    keeper = Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=60))
    lease = keeper.acquire("n", timeout=10)
    key = lease.key
    holders: list[object] = [keeper, lease]
    lease.subscribe(lambda _: holders.clear())
    del keeper, lease
    raw.delete(key)
    until(lambda: not new_threads())


@pytest.mark.parametrize("at", ["shutting the gates", "revoking"])
def test_ctrl_c_while_closing_leaves_nothing(
    etcd: EtcdServer, namespace: str, new_threads: Threads, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """C10: Ctrl-C during the close of a keeper comes out, and all the same its gates are shut and its leases revoked."""
    raw = RawEtcd(etcd.endpoint)
    keeper = Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=60))
    lease = keeper.acquire("n", timeout=10)
    struck: list[bool] = []

    def strike(call: Callable[..., object]) -> Callable[..., object]:
        def once(*args: object) -> object:
            if not struck:
                struck.append(True)
                raise KeyboardInterrupt
            return call(*args)

        return once

    whose, what = (keeper._core.heart, "lose") if at == "shutting the gates" else (keeper._core, "_revoke_all")
    monkeypatch.setattr(whose, what, strike(getattr(whose, what)))
    with pytest.raises(KeyboardInterrupt):
        keeper.close()
    assert lease.state is State.LOST
    assert not raw.claims(namespace)
    assert not new_threads()


@pytest.mark.parametrize("at", ["heart", "sessions"])
def test_ctrl_c_while_a_session_begins_leaves_no_lease(
    etcd: EtcdServer, namespace: str, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """C10: Ctrl-C right after a lease was granted leaves one that is known: used by the next claim or revoked at once."""
    raw = RawEtcd(etcd.endpoint)
    before = set(raw.leases())
    keeper = Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=60))

    def strike(*_: object) -> None:
        patch.undo()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        core = keeper._core
        patch.setattr(core.heart, "add", strike) if at == "heart" else patch.setattr(core.sessions, "make", strike)
        with pytest.raises(KeyboardInterrupt):
            keeper.acquire("n", timeout=10)
    if at == "sessions":
        until(lambda: not set(raw.leases()) - before)
    else:
        assert {keeper.acquire("n", timeout=10).lease_id} == set(raw.leases()) - before
    keeper.close()
    assert not set(raw.leases()) - before


def test_a_close_that_ctrl_c_cut_short_is_made_up_for(
    etcd: EtcdServer, namespace: str, new_threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10: Where Ctrl-C allowed nothing at all, another close does everything, and so does nobody's having the keeper."""
    raw = RawEtcd(etcd.endpoint)

    def strike(_: float) -> None:
        raise KeyboardInterrupt

    for drop in (False, True):
        keeper = Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=60))
        lease = keeper.acquire("n", timeout=10)
        with monkeypatch.context() as patch:
            patch.setattr(keeper._core, "_shut", strike)
            with pytest.raises(KeyboardInterrupt):
                keeper.close()
        assert lease.check() == lease.token
        if not drop:
            keeper.close()
            assert lease.state is State.LOST
        del keeper, lease
        gc.collect()
        until(lambda: not raw.claims(namespace))
        until(lambda: not new_threads())


def test_a_keeper_that_was_never_used_starts_nothing_when_it_is_dropped(new_threads: Threads) -> None:
    """No thread is started before first use, and none for the end of what was never used."""
    for _ in range(50):
        Keeper("127.0.0.1:1")
    gc.collect()
    assert not new_threads()
