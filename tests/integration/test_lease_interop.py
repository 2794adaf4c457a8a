"""One queue with etcd's own mutex: ``etcdctl lock`` and leasekeeper exclude each other on the same key."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from leasekeeper import Keeper, NotAcquired, Timing
from leasekeeper.testing import EtcdServer
from tests.raw import RawEtcd
from tests.support import until


class EtcdctlLock:
    """A running ``etcdctl lock KEY``: it prints its key when it owns the lock, and holds it until told to end."""

    def __init__(self, program: str, endpoint: str, key: str) -> None:
        command = [program, f"--endpoints={endpoint}", "lock", "--ttl=3", key]
        env = {name: value for name, value in os.environ.items() if not name.startswith("ETCDCTL_")}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**env, "ETCDCTL_API": "3"}, text=True)
        self.owned = ""
        self._reader = threading.Thread(target=self._read, name="etcdctl-lock", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.owned = self._process.stdout.readline().strip()

    def release(self) -> None:
        """End it as Ctrl-C does; it then gives the lock back."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(20)

    def close(self) -> None:
        """End it however it stands."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(20)
        self._reader.join(20)
        if self._process.stdout is not None:
            self._process.stdout.close()


Lock = Callable[[str], EtcdctlLock]


@pytest.fixture
def lock(etcd: EtcdServer) -> Iterator[Lock]:
    """Starts ``etcdctl lock KEY``."""
    program = etcd.binary.etcdctl or shutil.which("etcdctl")
    if program is None:
        pytest.skip("there is no etcdctl")
    started: list[EtcdctlLock] = []

    def start(key: str) -> EtcdctlLock:
        started.append(EtcdctlLock(program, etcd.endpoint, key))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def keeper(etcd: EtcdServer, namespace: str) -> Iterator[Keeper]:
    """A keeper."""
    with Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=5)) as made:
        yield made


def lock_key(keeper: Keeper, name: str) -> str:
    """The key that operators are told to use with ``etcdctl lock``."""
    return keeper._core.ctx.keys.lock_key(name)


@pytest.mark.parametrize("name", ["n", "a/b", "per%cent/ключ"])
def test_etcdctl_keeps_us_out(keeper: Keeper, lock: Lock, name: str) -> None:
    """While ``etcdctl lock`` owns a name, a try fails, an acquire times out, and the queue shows who it is; then we own it."""
    theirs = lock(lock_key(keeper, name))
    until(lambda: theirs.owned)
    assert keeper.try_acquire(name) is None
    with pytest.raises(NotAcquired) as caught:
        keeper.acquire(name, timeout=0.3)
    (claim,) = keeper.claims(name)
    assert (claim.key, claim.flag) == (theirs.owned, "foreign")
    assert caught.value.owner == claim
    theirs.release()
    assert keeper.acquire(name, timeout=10).token > claim.create_revision


def test_we_keep_etcdctl_out(keeper: Keeper, lock: Lock) -> None:
    """While a lease is held, ``etcdctl lock`` on its key waits, and owns it after the release."""
    lease = keeper.acquire("n", timeout=10)
    theirs = lock(lock_key(keeper, "n"))
    until(lambda: len(keeper.claims("n")) == 2)
    assert not theirs.owned
    assert lease.check() == lease.token
    lease.release()
    until(lambda: theirs.owned)
    assert [claim.key for claim in keeper.claims("n")] == [theirs.owned]


def test_one_queue_first_come_first_served(keeper: Keeper, lock: Lock, etcd: EtcdServer, namespace: str) -> None:
    """G1: Claims of both kinds, queued in turns, own the name one after the other in exactly that order."""
    raw = RawEtcd(etcd.endpoint)
    owner = keeper.acquire("n", timeout=10)
    theirs: list[EtcdctlLock] = []
    ours: list[Future[Any]] = []
    with ThreadPoolExecutor(3) as pool:
        for number in range(3):
            theirs.append(lock(lock_key(keeper, "n")))
            until(lambda: len(raw.claims(namespace)) == 2 * number + 2)  # noqa: B023 - called in this round only
            ours.append(pool.submit(keeper.acquire, "n", timeout=60))
            until(lambda: len(raw.claims(namespace)) == 2 * number + 3)  # noqa: B023 - called in this round only
        queue = [key.key for key in raw.claims(namespace)]
        owner.release()
        for number in range(3):
            until(lambda: theirs[number].owned)  # noqa: B023 - called in this round only
            assert theirs[number].owned == queue[1 + 2 * number]
            assert not any(each.done() for each in ours[number:])
            theirs[number].release()
            lease = ours[number].result(20)
            assert lease.key == queue[2 + 2 * number]
            assert not any(each.owned for each in theirs[number + 1 :])
            lease.release()
    assert raw.claims(namespace) == []


def test_a_foreign_claim_that_dies_lets_us_in(keeper: Keeper, lock: Lock) -> None:
    """C27: When an ``etcdctl lock`` that owns the name is killed, its lease runs out and the waiter behind it owns the name."""
    theirs = lock(lock_key(keeper, "n"))
    until(lambda: theirs.owned)
    theirs.close()
    assert keeper.acquire("n", timeout=30).check()
