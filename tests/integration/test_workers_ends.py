"""Workers of threads against a real etcd: how they end, alone, at work, with their keeper, and in the child of a fork."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from leasekeeper import Keeper, Misuse
from leasekeeper.runs.run import Run
from leasekeeper.testing import EtcdServer
from leasekeeper.wire.worker import begin
from tests.support import until
from tests.working import EVERY_S, Calls, threads

pytestmark = pytest.mark.usefixtures("quick", "silent")


def test_idle_workers_end_at_once(keeper: Keeper) -> None:
    """A worker that waits for its next look is woken by `stop`, and leaves no thread behind."""
    working = keeper.worker({"order": print}, concurrency=4, every=3600, ttl=5)
    working.start()
    until(lambda: len(threads()) == 4)
    assert working.stop(30.0)
    until(lambda: not threads())
    with pytest.raises(Misuse, match="started already"):
        working.start()


def test_a_busy_worker_ends_its_run(keeper: Keeper) -> None:
    """`stop` waits as long as it may for what is under way, and takes nothing new."""
    calls, entered, let_go = Calls(), threading.Event(), threading.Event()

    def main(run: Run) -> None:
        entered.set()
        assert let_go.wait(30.0)
        run.do("act", calls, run.id)

    for name in "ab":
        keeper.begin("order", id=name, ttl=5)
    working = keeper.worker({"order": main}, every=EVERY_S, ttl=5)
    working.start()
    assert entered.wait(30.0)
    assert not working.stop(0.05)
    let_go.set()
    assert working.stop(30.0)
    assert working.finished == 1
    assert sum(calls.counts.values()) == 1
    until(lambda: not threads())


def test_a_worker_that_is_stopped_by_its_own_function(keeper: Keeper) -> None:
    """`stop` from within does not wait for itself; `run` returns once the function has."""
    working = keeper.worker({"order": lambda run: told.append(working.stop())}, every=EVERY_S, ttl=5)
    told: list[bool] = []
    keeper.begin("order", id="1", ttl=5)
    working.run()
    assert told == [False]
    assert working.finished == 1
    until(lambda: not threads())


def test_a_worker_ends_with_its_keeper(etcd: EtcdServer, namespace: str) -> None:
    """Closing the keeper ends what works with it: nothing goes on to look for runs."""
    keeper = Keeper(etcd.endpoint, namespace=namespace)
    working = keeper.worker({"order": print}, concurrency=2, every=EVERY_S, ttl=5)
    working.start()
    until(lambda: len(threads()) == 2)
    keeper.close()
    until(lambda: not threads())
    assert working.stop(30.0)


def test_a_worker_whose_threads_cannot_be_started(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes out, and those threads that were started end."""
    begun = begin

    def scarce(call: Callable[[], object], name: str) -> threading.Thread:
        if name.endswith("-2"):
            raise RuntimeError("can't start new thread")
        return begun(call, name)

    monkeypatch.setattr("leasekeeper.runs.worker.begin", scarce)
    working = keeper.worker({"order": print}, concurrency=4, every=EVERY_S, ttl=5)
    with pytest.raises(RuntimeError, match="new thread"):
        working.start()
    assert working.stop(30.0)
    until(lambda: not threads())


FORKS = """
import os, sys, threading
from leasekeeper import Keeper

def main(run):
    child = os.fork()
    if child == 0:
        assert working.stop() is True
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    run.do("act", lambda: 1)

keeper = Keeper(sys.argv[1], namespace=sys.argv[2])
keeper.begin("order", id="1", ttl=5)
working = keeper.worker({"order": main}, every=0.1, ttl=5)
with working:
    while not working.finished and not working.failed:
        threading.Event().wait(0.05)
print(working.finished, working.failed)
"""


def test_a_function_that_forks(etcd: EtcdServer, namespace: str) -> None:
    """In the child there is no worker to wait for; the parent's goes on."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, etcd.endpoint, namespace],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.stdout.split() == ["1", "0"], ended.stderr
