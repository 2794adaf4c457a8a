"""Many replicas on many runs, judged by the outside world's own ledger; and a run that kills whoever goes on with it."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from leasekeeper import Keeper
from leasekeeper.protocol.receipt import read_receipt
from leasekeeper.runs.run import Run
from leasekeeper.testing import EtcdServer
from leasekeeper.testing.outside import OutsideWorld
from tests.program import Program
from tests.programs.replica import charge
from tests.raw import RawEtcd
from tests.support import until

RUNS = 200
REPLICAS_HERE = 12
REPLICAS = 16
CHARGE = "till.charge"


@pytest.fixture
def world() -> Iterator[OutsideWorld]:
    """An outside world of this test's own."""
    with OutsideWorld() as made:
        yield made


def finished(raw: RawEtcd, namespace: str) -> bool:
    """Whether no run is left to go on with."""
    return not raw.keys(f"leasekeeper/{namespace}/unfinished/")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_sixteen_replicas(etcd: EtcdServer, namespace: str, raw: RawEtcd, world: OutsideWorld) -> None:
    """A31: sixteen replicas, threads and processes, sync and async, do 200 runs: each effect is asked for and happens once."""
    orders = [f"o-{number:03}" for number in range(RUNS)]

    def order(run: Run) -> None:
        run.do("charge", charge, world.url, run.id)

    with ExitStack() as stack:
        told = {"endpoint": etcd.endpoint, "namespace": namespace, "url": world.url, "ttl": 10}
        programs = [
            stack.enter_context(Program("replica", **told, aio=bool(number % 2), concurrency=2))
            for number in range(REPLICAS - REPLICAS_HERE)
        ]
        keepers = [stack.enter_context(Keeper(etcd.endpoint, namespace=namespace)) for _ in range(REPLICAS_HERE)]
        for program in programs:
            program.wait_for("ready")
        workers = [
            stack.enter_context(keeper.worker({"order": order}, every=0.2, ttl=10, signer=None)) for keeper in keepers
        ]
        for id_ in orders:
            assert keepers[0].begin("order", id=id_, ttl=10, signer=None)
        until(lambda: finished(raw, namespace), 180)
        assert all(worker.stop(30.0) for worker in workers)
        here = sum(worker.finished for worker in workers)
        assert not any(worker.failed for worker in workers)
        assert 0 < here < RUNS, "threads and processes had their share"
        assert not any(program.all("alert") for program in programs)

    assert Counter(entry.subject for entry in world.received(CHARGE)) == dict.fromkeys(orders, 1)
    assert Counter(entry.subject for entry in world.applied(CHARGE)) == dict.fromkeys(orders, 1)
    heads = [key for key in raw.keys(f"leasekeeper/{namespace}/run/") if key.key.endswith("/head")]
    assert len(heads) == RUNS
    assert raw.claims(namespace) == []
    kinds = Counter(
        read_receipt(key.value, key.key).kind for key in raw.keys(f"leasekeeper/{namespace}/run/") if "/r/" in key.key
    )
    assert kinds == {"opened": 2 * RUNS, "intent": RUNS, "outcome": RUNS, "finished": RUNS}


def test_ctrl_c_ends_a_worker(etcd: EtcdServer, namespace: str, raw: RawEtcd, world: OutsideWorld) -> None:
    """`run` works until Ctrl-C, which comes out of it as itself, whatever the worker's threads are at."""
    told = {"endpoint": etcd.endpoint, "namespace": namespace, "url": world.url, "ttl": 5}
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, Program("replica", **told, run=True) as program:
        keeper.begin("order", id="o-1", ttl=5, signer=None)
        program.wait_for("ready")
        world.wait_applied(CHARGE)
        until(lambda: finished(raw, namespace))
        program.signal(signal.SIGINT)
        assert program.end() == -signal.SIGINT
    assert program.errors.strip().endswith("KeyboardInterrupt")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_run_that_kills_replicas(
    etcd: EtcdServer, namespace: str, raw: RawEtcd, world: OutsideWorld, tmp_path: Path
) -> None:
    """A25: replicas are started again as they die; the run is put aside within its budget, told once; the others are done."""
    cured = tmp_path / "cured"
    told = {
        "endpoint": etcd.endpoint,
        "namespace": namespace,
        "url": world.url,
        "ttl": 1,
        "restarts": 3,
        "poison": "poison",
        "cured": str(cured),
    }
    others = [f"o-{number}" for number in range(10)]
    dead: list[Program] = []
    with ExitStack() as stack, Keeper(etcd.endpoint, namespace=namespace) as keeper:
        for id_ in ("poison", *others):
            keeper.begin("order", id=id_, signer=None)

        def alive() -> list[Program]:
            """Two replicas, whoever died replaced."""
            for place, program in enumerate(replicas):
                if not program.alive:
                    dead.append(program)
                    replicas[place] = stack.enter_context(Program("replica", **told))
            return replicas

        def alerts() -> list[str]:
            return [alert["kind"] for each in (*dead, *alive()) for alert in each.all("alert")]

        replicas = [stack.enter_context(Program("replica", **told)) for _ in range(2)]
        until(alerts, 120)
        until(lambda: alive() and sum(bool(world.applied(CHARGE, id_)) for id_ in others) == len(others), 60)
        killed = len(dead)
        assert 1 <= killed <= 4, "so many lives as the budget allows, and no more"
        keeper.begin("order", id="late", signer=None)
        until(lambda: alive() and world.applied(CHARGE, "late"), 60)
        assert len(dead) == killed, "nobody dies of it any more"
        assert not world.received(CHARGE, "poison")

        cured.touch()
        keeper.resolve("order/poison", evidence="it kills nobody any more", signer=None)
        until(lambda: alive() and world.applied(CHARGE, "poison"), 60)
        until(lambda: finished(raw, namespace))
        assert alerts() == ["quarantined"]
    assert set(Counter(entry.subject for entry in world.applied(CHARGE)).values()) == {1}
