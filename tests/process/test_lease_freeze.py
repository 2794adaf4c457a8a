"""Owners that are frozen (SIGSTOP) at the worst moment, and wake up when somebody else owns the name."""

from __future__ import annotations

from pathlib import Path

from leasekeeper.clock import boottime
from leasekeeper.testing import EtcdServer
from tests.raw import RawEtcd
from tests.replicas import Replicas, accepted_in_order
from tests.support import until


def test_frozen_before_the_gate(etcd: EtcdServer, namespace: str, tmp_path: Path) -> None:
    """C02: A process that slept through its lease is stopped by the gate at its first instruction: it writes nothing more."""
    with Replicas(namespace, tmp_path) as replicas:
        a = replicas.owner(etcd.endpoint, freeze="before_gate")
        first = a.wait_for("acquired")
        a.wait_for("freezing")
        b = replicas.owner(etcd.endpoint)
        second = b.wait_for("acquired")
        b.wait_for_more("wrote", 3)
        a.thaw()
        assert a.wait_for("lost")["reason"] == "expired"
        attempts = replicas.attempts(first["token"])
        assert len(attempts) == 2
        assert all(entry["at"] < second["at"] for entry in attempts)


def test_frozen_between_the_gate_and_the_write(etcd: EtcdServer, namespace: str, tmp_path: Path) -> None:
    """C02 G4: A write that had passed the gate before the freeze is refused by the resource, and the lease is LOST."""
    with Replicas(namespace, tmp_path) as replicas:
        a = replicas.owner(etcd.endpoint, freeze="after_gate")
        first = a.wait_for("acquired")
        a.wait_for("freezing")
        b = replicas.owner(etcd.endpoint)
        b.wait_for("acquired")
        b.wait_for_more("wrote", 3)
        a.thaw()
        a.wait_for("refused")
        assert a.wait_for("lost")["reason"] == "expired"
        assert [entry["accepted"] for entry in replicas.attempts(first["token"])] == [True, True, False]
        assert accepted_in_order(replicas.ledger())
        b.wait_for_more("wrote", len(b.all("wrote")) + 2)


def test_a_short_freeze_is_a_pause(etcd: EtcdServer, namespace: str, tmp_path: Path) -> None:
    """C02 G5: Frozen for longer than the pause but less than the TTL, it proves its authority anew under the same token."""
    with Replicas(namespace, tmp_path, ttl=4) as replicas:
        a = replicas.owner(etcd.endpoint)
        token = a.wait_for("acquired")["token"]
        b = replicas.owner(etcd.endpoint)
        until(lambda: len(queue(etcd, namespace)) == 2)
        a.wait_for_more("wrote", 3)
        a.freeze()
        until(lambda: a.frozen)
        thaw_at = boottime() + 2.2
        until(lambda: boottime() > thaw_at)
        written = len(a.all("wrote"))
        a.thaw()
        assert a.wait_for_more("wrote", written + 3)[-1]["at"] > thaw_at
        assert {entry["token"] for entry in replicas.ledger()} == {token}
        assert a.all("lost") == b.all("acquired") == []


def test_a_frozen_waiter_is_passed_over(etcd: EtcdServer, namespace: str, tmp_path: Path) -> None:
    """C02: A waiter frozen past its TTL loses its place, those behind it go on, and awake it queues again."""
    with Replicas(namespace, tmp_path) as replicas:
        a = replicas.owner(etcd.endpoint)
        a.wait_for_more("wrote", 1)
        b = replicas.owner(etcd.endpoint)
        b.wait_for("waiting")
        until(lambda: len(queue(etcd, namespace)) == 2)
        b.freeze()
        c = replicas.owner(etcd.endpoint)
        until(lambda: len(queue(etcd, namespace)) == 3)
        until(lambda: len(queue(etcd, namespace)) == 2)
        a.tell("release")
        third = c.wait_for("acquired")
        b.thaw()
        until(lambda: len(queue(etcd, namespace)) == 2)
        assert b.all("acquired") == []
        c.tell("release")
        assert b.wait_for("acquired")["token"] > third["token"]
        assert accepted_in_order(replicas.ledger())


def test_a_waiter_that_sleeps_through_its_turn_does_not_own(etcd: EtcdServer, namespace: str, tmp_path: Path) -> None:
    """C02 G1: A waiter that came to be first while it was frozen, and whose lease ran out then, wakes up without the name."""
    with Replicas(namespace, tmp_path) as replicas:
        a = replicas.owner(etcd.endpoint)
        a.wait_for_more("wrote", 1)
        b = replicas.owner(etcd.endpoint)
        until(lambda: len(queue(etcd, namespace)) == 2)
        c = replicas.owner(etcd.endpoint)
        until(lambda: len(queue(etcd, namespace)) == 3)
        b.freeze()
        until(lambda: b.frozen)
        a.tell("release")
        a.wait_for("released")
        third = c.wait_for("acquired")
        b.thaw()
        until(lambda: len(queue(etcd, namespace)) == 2)
        assert b.all("acquired") == []
        c.tell("release")
        assert b.wait_for("acquired")["token"] > third["token"]
        assert accepted_in_order(replicas.ledger())


def queue(etcd: EtcdServer, namespace: str) -> list[int]:
    """The create revisions of the claims."""
    return [key.create_revision for key in RawEtcd(etcd.endpoint).claims(namespace)]
