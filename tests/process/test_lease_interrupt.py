"""Ctrl-C and SIGTERM, as real signals to real processes."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from leasekeeper import Keeper
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.program import Program
from tests.raw import RawEtcd
from tests.replicas import Replicas
from tests.support import until


def test_ctrl_c_while_waiting_leaves_nothing(etcd: EtcdServer, namespace: str) -> None:
    """C10: A waiter that gets SIGINT ends with KeyboardInterrupt, its place in the queue and its lease are gone, it exits."""
    raw = RawEtcd(etcd.endpoint)
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        lease = keeper.acquire("n", timeout=10)
        with Program("owner", endpoint=etcd.endpoint, namespace=namespace, name="n", ttl=20) as waiter:
            until(lambda: len(raw.claims(namespace)) == 2)
            theirs = raw.claims(namespace)[1]
            waiter.signal(signal.SIGINT)
            waiter.wait_for("interrupted")
            assert [key.create_revision for key in raw.claims(namespace)] == [lease.token]
            assert waiter.end() == 0
            assert waiter.reports[-1]["event"] == "closed"
            assert theirs.lease not in raw.leases()
        lease.release()
        assert keeper.acquire("n", timeout=0).token > lease.token


@pytest.mark.parametrize("blind", [False, True], ids=["connected", "in a black hole"])
def test_ctrl_c_at_the_gate_gives_the_name_back(
    etcd: EtcdServer, proxy: FaultProxy, namespace: str, blind: bool
) -> None:
    """C10: SIGINT in the middle of the work, or while it is held at the gate, ends the block; the name is free soon."""
    raw = RawEtcd(etcd.endpoint)
    with Program("owner", endpoint=proxy.endpoint, namespace=namespace, name="n", ttl=3) as owner:
        owner.wait_for_more("wrote", 2)
        if blind:
            proxy.blackhole()
            until(lambda: owner.all("state"))
        owner.signal(signal.SIGINT)
        owner.wait_for("interrupted")
        until(lambda: raw.claims(namespace) == [])


@pytest.mark.parametrize("state", ["waiting", "connecting"])
def test_an_error_raised_by_a_signal_handler_leaves_nothing(
    etcd: EtcdServer, proxy: FaultProxy, namespace: str, state: str
) -> None:
    """C10: An exception out of the caller's own signal handler ends an acquire at whatever point; no claim or lease stays."""

    class Enough(Exception):
        pass

    def enough(*_: object) -> None:
        raise Enough

    def interrupt() -> None:
        if state == "waiting":
            until(lambda: len(raw.claims(namespace)) == 2)
        else:
            until(lambda: proxy.counts.connections)
        os.kill(os.getpid(), signal.SIGUSR1)

    raw = RawEtcd(etcd.endpoint)
    before = signal.signal(signal.SIGUSR1, enough)
    try:
        with (
            Keeper(etcd.endpoint, namespace=namespace) as owner,
            owner.lease("n", timeout=10) as lease,
            Keeper(proxy.endpoint, namespace=namespace) as keeper,
        ):
            if state == "connecting":
                proxy.blackhole()
            threading.Thread(target=interrupt, daemon=True).start()
            with pytest.raises(Enough):
                keeper.acquire("n", timeout=30)
            proxy.heal()
            until(lambda: [key.create_revision for key in raw.claims(namespace)] == [lease.token])
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_ctrl_c_while_etcd_does_not_answer(proxy: FaultProxy, namespace: str) -> None:
    """C10: SIGINT during a call that hangs ends it."""
    proxy.blackhole()
    with Program("owner", endpoint=proxy.endpoint, namespace=namespace, name="n", ttl=3) as owner:
        owner.wait_for("waiting")
        owner.signal(signal.SIGINT)
        owner.wait_for("interrupted")
        assert owner.end() == 0


def test_sigterm_stops_the_work_before_the_name_is_given_back(etcd: EtcdServer, namespace: str, tmp_path: Path) -> None:
    """C03: Work that takes two TTLs to stop keeps the name by its beats until it has; the next owner never overlaps it."""
    with Replicas(namespace, tmp_path, ttl=1) as replicas:
        a = replicas.owner(etcd.endpoint, finish_s=2)
        first = a.wait_for("acquired")
        b = replicas.owner(etcd.endpoint)
        until(lambda: len(RawEtcd(etcd.endpoint).claims(namespace)) == 2)
        a.signal(signal.SIGTERM)
        stopping = a.wait_for("stopping")
        second = b.wait_for("acquired")
        b.wait_for("wrote")
        assert second["at"] - stopping["at"] > 2
        assert a.wait_for("releasing")["at"] < second["at"]
        assert max(entry["at"] for entry in replicas.attempts(first["token"])) < second["at"]
        assert all(entry["accepted"] for entry in replicas.ledger())
