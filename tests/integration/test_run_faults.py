"""Runs and what can happen to etcd and the way to it: full, away, frozen members, replies that never come; Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import AsyncKeeper, Keeper, LeaseLost, OutOfSpace, QuotaReserved, Timing, Unavailable
from leasekeeper.protocol.history import Walk, last, page
from leasekeeper.protocol.receipt import read_receipt
from leasekeeper.protocol.run_keys import RunKeys, RunName
from leasekeeper.testing import EtcdCluster, EtcdServer, FaultProxy
from tests.raw import RawEtcd, Refused
from tests.support import until

MIB = 1024 * 1024
FULL = 4 * MIB


def whole(keeper: Keeper, name: str = "1") -> list[str]:
    """Walk over the chain of run ``order/NAME``: the kinds of its records."""
    core = keeper._core
    keys = RunKeys(core.ctx.keys, RunName("order", name))
    found = core.run(last(core.ctx, keys, core.until()))
    assert found is not None
    walk = Walk(keys)
    while core.run(walk.next_page(core.ctx, found[0].seq, core.until())):
        pass
    assert (walk.seq, walk.hash) == (found[0].seq, found[0].hash)
    stored = core.run(page(core.ctx, keys, 1, core.until(), limit=500))
    return [read_receipt(each, "here").kind for _, each in stored]


# ---------------------------------------------------------------- full


@pytest.fixture
def small() -> Iterator[EtcdServer]:
    """An etcd with little room."""
    with EtcdServer(fsync=False, quota_bytes=FULL) as server:
        yield server


def fill(server: EtcdServer) -> None:
    """Write until the quota is used up."""
    raw = RawEtcd(server.endpoint)
    for number in range(200):
        try:
            raw.put(f"fill/{number:03d}", "x" * (MIB // 4))
        except Refused as refused:
            if "space exceeded" in str(refused):
                return
            raise
    raise AssertionError("the quota was never reached")


def make_room(server: EtcdServer) -> None:
    """What etcd's manual says."""
    raw = RawEtcd(server.endpoint)
    for key in raw.keys("fill/"):
        raw.delete(key.key)
    raw.post("kv/compaction", revision=str(raw.revision()), physical=True)
    raw.post("maintenance/defragment")
    disarm(server)


def disarm(server: EtcdServer) -> None:
    """Have etcd take writes again."""
    raw = RawEtcd(server.endpoint)
    raw.post("maintenance/alarm", action="DEACTIVATE", memberID=str(server.status().member_id), alarm="NOSPACE")


@pytest.mark.timeout(120)
def test_a_full_etcd_takes_no_step_and_gets_the_outcome_of_what_was_begun(
    small: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    """NOSPACE strikes during a call: its outcome waits, which the log tells, and lands when there is room; no step is begun."""

    def effect() -> int:
        fill(small)
        return 7

    with Keeper(small.endpoint) as keeper, keeper.run("order", id="1", signer=None) as run:
        run.do("first", lambda: 1)
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(run.do("s", effect)), daemon=True)
        thread.start()
        until(lambda: _is_full(small))
        with pytest.raises(OutOfSpace):
            run.do("another", lambda: 1)
        assert thread.is_alive()
        assert results == []
        until(lambda: delays(caplog)[:2] == [("waits", 1), ("waits", 2)])
        make_room(small)
        thread.join(60)
        assert results == [7]
        until(lambda: delays(caplog)[-1][0] == "recorded")
        assert run.do("s", effect) == 7
        assert run.do("another", lambda: 2) == 2
        assert whole(keeper).count("outcome") == 3


@pytest.mark.timeout(120)
def test_a_fast_writer_does_not_fill_etcd() -> None:
    """A run that would fill etcd within one reading's seconds is stopped at 80 % of the quota, with room left for outcomes."""
    quota = 8 * FULL
    with EtcdServer(fsync=False, quota_bytes=quota) as server, Keeper(server.endpoint) as keeper:

        def write() -> None:
            with keeper.run("order", id="1", signer=None, quota=quota) as run:
                for number in range(4000):
                    run.do(f"s{number}", lambda: "x" * 30_000)

        with pytest.raises(QuotaReserved):
            write()
        assert not _is_full(server)


@pytest.mark.timeout(120)
def test_a_larger_quota_helps_where_what_fills_etcd_is_live(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Restarted with more room it is still said to be full; once that is disarmed, what has waited all the while is recorded."""
    with ExitStack() as stack:
        tight = stack.enter_context(EtcdServer(fsync=False, quota_bytes=FULL, data_dir=tmp_path / "etcd"))
        port = int(tight.endpoint.rpartition(":")[2])
        roomy = EtcdServer(fsync=False, quota_bytes=4 * FULL, data_dir=tmp_path / "etcd", client_port=port)
        stack.callback(roomy.close)

        def effect() -> int:
            fill(tight)
            return 7

        with Keeper(tight.endpoint, timing=Timing(ttl=60)) as keeper, keeper.run("order", id="1", signer=None) as run:
            results: list[Any] = []
            thread = threading.Thread(target=lambda: results.append(run.do("s", effect)), daemon=True)
            thread.start()
            until(lambda: delays(caplog))
            tight.stop()
            roomy.start()
            assert _is_full(roomy)
            assert results == []
            disarm(roomy)
            thread.join(60)
            assert results == [7]
            assert run.do("another", lambda: 2) == 2
            assert whole(keeper).count("outcome") == 2


def delays(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    """What the log warns of that the outcome of ``s`` waits, and that it does no more."""
    found = [record for record in caplog.records if getattr(record, "lease_event", "") == "RecordDelayed"]
    assert all("run order/1, step 's': its record (outcome)" in record.getMessage() for record in found)
    assert all(record.levelno == logging.WARNING for record in found)
    return [(str(record.__dict__["lease_how"]), int(record.__dict__["lease_in_a_row"])) for record in found]


def _is_full(server: EtcdServer) -> bool:
    try:
        RawEtcd(server.endpoint).put("probe", "x")
    except Refused:
        return True
    return False


# ---------------------------------------------------------------- away


@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [1, 300_000])
def test_etcd_goes_away_during_a_call(size: int) -> None:
    """Killed while an effect runs, and started again: the result is kept and recorded, once, also a large one."""
    with EtcdServer() as server, Keeper(server.endpoint, timing=Timing(ttl=30)) as keeper:
        back: list[threading.Timer] = []

        def effect() -> str:
            server.kill()
            back.append(threading.Timer(1.0, server.start))
            back[0].start()
            return "x" * size

        with keeper.run("order", id="1", signer=None) as run:
            assert run.do("s", effect) == "x" * size
            assert run.do("t", lambda: 1) == 1
        back[0].join()
        assert whole(keeper) == ["opened", "intent", "outcome", "intent", "outcome", "finished"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("library", ["threads", "asyncio"])
def test_leaving_a_block_by_an_error_does_not_wait_for_etcd(etcd: EtcdServer, namespace: str, library: str) -> None:
    """The body raises while etcd cannot be reached: the error comes out, and does not hang on word of it that nobody needs."""
    with FaultProxy(etcd.endpoint) as proxy:

        def threads() -> None:
            with Keeper(proxy.endpoint, namespace=namespace) as keeper, keeper.run("order", id="1", signer=None) as run:
                run.do("s", lambda: 1)
                proxy.blackhole()
                raise KeyError("mine")

        async def tasks() -> None:
            async with (
                AsyncKeeper(proxy.endpoint, namespace=namespace) as keeper,
                keeper.run("order", id="1", signer=None) as run,
            ):
                await run.do("s", lambda: 1)
                proxy.blackhole()
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            threads() if library == "threads" else asyncio.run(tasks())


def _is_away(keeper: Keeper) -> bool:
    try:
        keeper.claims("anything")
    except Unavailable as error:
        return "failed to connect" in str(error)
    return False


@pytest.mark.timeout(120)
def test_no_step_is_begun_while_etcd_is_away(etcd: EtcdServer, namespace: str) -> None:
    """An intent that cannot be sent comes back as Unavailable, or LeaseLost where the lease went first; nothing is called."""
    called: list[int] = []
    with (
        FaultProxy(etcd.endpoint) as proxy,
        Keeper(proxy.endpoint, namespace=namespace, timing=Timing(ttl=120)) as keeper,
    ):
        with keeper.run("order", id="1", signer=None) as run:
            run.do("s", lambda: 1)
            proxy.cut()
            until(lambda: _is_away(keeper))
            with pytest.raises((Unavailable, LeaseLost)):
                run.do("t", called.append, 1)
            proxy.heal()
            assert called == []
            assert run.do("u", lambda: 2) == 2
        assert "failed" not in whole(keeper)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["intent", "outcome", "checkpoint", "finished", "opened"])
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_message_is_lost(etcd: EtcdServer, namespace: str, kind: str, lost: str) -> None:
    """B23: the reply, or the request, of each kind of transaction is lost once: no hole, nothing twice, one effect."""
    called: list[int] = []
    with FaultProxy(etcd.endpoint) as proxy, Keeper(proxy.endpoint, namespace=namespace) as keeper:
        match = f'"kind":"{kind}"'.encode()
        trip = proxy.lose_next_reply(match) if lost == "reply" else proxy.lose_next_request(match)
        with keeper.run("order", id="1", signer=None) as run:
            for number in range(3):
                run.do(f"s{number}", called.append, number)
            run.checkpoint("state", dict).commit(a=1)
        trip.wait(30)
        assert called == [0, 1, 2]
        expected = ["opened", *(["intent", "outcome"] * 3), "checkpoint", "finished"]
        assert whole(keeper) == expected


@pytest.mark.timeout(180)
def test_a_member_without_its_cluster_does_not_answer_from_memory(namespace: str) -> None:
    """A7, A12: asked through a member that is cut off from the others, `last` fails; it never tells the past."""
    with EtcdCluster(3) as cluster:
        endpoints = cluster.endpoints.split(",")
        with Keeper(cluster.endpoints, namespace=namespace, timing=Timing(ttl=20)) as keeper:
            alone = Keeper(endpoints[0], namespace=namespace)
            with alone, keeper.run("order", id="1", signer=None) as run:
                run.do("before", lambda: 1)
                core = alone._core
                keys = RunKeys(core.ctx.keys, RunName("order", "1"))
                seen = core.run(last(core.ctx, keys, core.until()))
                assert seen is not None
                cluster.partition([0], [1, 2])
                until(lambda: run.do(f"after-{time.monotonic()}", lambda: 1) == 1)
                with pytest.raises(Unavailable):
                    core.run(last(core.ctx, keys, core.until(4.0)))
                cluster.heal()
                now = run.last()
                until(lambda: core.run(last(core.ctx, keys, core.until(10.0)))[0].seq == now.seq)


# ---------------------------------------------------------------- Ctrl-C

STRIKES = 25
PROGRAM = """
import contextlib, signal, sys, threading, time
from leasekeeper import Keeper, StepsOpen
endpoint, namespace, strikes = sys.argv[1], sys.argv[2], int(sys.argv[3])
calls, inside, missed, ended = [], [], [], []

def interrupted(*_):
    # Only inside of a step is it worth anything; outside of one it is counted, and the next is waited for.
    if inside:
        inside.clear()
        raise KeyboardInterrupt
    missed.append(1)

@contextlib.contextmanager
def left():
    # Steps that were struck in the middle of their call are open, and nobody asks for them again.
    try:
        yield
    except StepsOpen:
        print("left open")
    else:
        print("left finished")

def slow(number):
    calls.append(number)
    time.sleep(0.002)
    return number

def others():
    number = 0
    while not ended:
        assert run.do(f"o{number}", lambda: 1) == 1
        number += 1

signal.signal(signal.SIGINT, interrupted)
with Keeper(endpoint, namespace=namespace) as keeper, left(), keeper.run("order", id="1", signer=None) as run:
    thread = threading.Thread(target=others, daemon=True)
    thread.start()
    print("go", flush=True)
    number = struck = 0
    while struck < strikes:
        number += 1
        try:
            inside.append(1)
            run.do(f"s{number}", slow, number)
            inside.clear()
        except KeyboardInterrupt:
            missed.append(1)
        if missed:
            missed.clear()
            struck += 1
            print("struck", flush=True)
    ended.append(True)
    thread.join(30)
    assert not thread.is_alive(), "another thread waits for ever"
    assert {step.state for step in run.steps()} <= {"done", "intent", "cleared"}
    assert len(calls) == len(set(calls)), "called twice"
    assert run.do("end", lambda: 1) == 1
"""


@pytest.mark.timeout(120)
def test_ctrl_c_anywhere(etcd: EtcdServer, namespace: str) -> None:
    """Ctrl-C again and again in the main thread, which does steps beside another thread: nobody hangs, the chain is whole."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, etcd.endpoint, namespace, str(STRIKES)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "go\n"
        for number in range(STRIKES):
            time.sleep(0.0007 * (number % 11))
            os.kill(program.pid, signal.SIGINT)
            line = program.stdout.readline()
            assert line == "struck\n", (line, program.stderr.read() if program.stderr else "")
        out, err = program.communicate(timeout=60)
    finally:
        program.kill()
    assert out in ("left open\n", "left finished\n"), err
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        kinds = whole(keeper)
    assert kinds[-1] == ("failed" if "open" in out else "finished")
