"""Owners cut off from etcd, as processes of their own, with a resource that remembers who wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasekeeper.testing import EtcdServer, Fault, FaultProxy
from tests.replicas import Replicas, accepted_in_order
from tests.support import until


@pytest.mark.parametrize("fault", [Fault("blackhole"), Fault("lose_replies")], ids=str)
def test_both_sides_of_a_partition(
    etcd: EtcdServer, proxy: FaultProxy, namespace: str, tmp_path: Path, fault: Fault
) -> None:
    """C01 A29: The owner that is cut off stops at its gate before the other one owns; healed, it learns that it is LOST."""
    with Replicas(namespace, tmp_path) as replicas:
        a = replicas.owner(proxy.endpoint)
        first = a.wait_for("acquired")
        b = replicas.owner(etcd.endpoint)
        a.wait_for_more("wrote", 5)
        proxy.inject(fault)
        second = b.wait_for("acquired")
        b.wait_for_more("wrote", 5)
        proxy.heal()
        assert a.wait_for("lost")["reason"] == "expired"
        assert second["token"] > first["token"]
        # The gate alone kept the two apart: the last write of one was done before the other owned the name.
        assert max(entry["at"] for entry in replicas.attempts(first["token"])) < second["at"]
        assert accepted_in_order(replicas.ledger())
        assert a.all("refused") == []
        a.end()
        assert a.reports[-1]["event"] == "closed"
        assert len(replicas.attempts(first["token"])) == len(a.all("wrote"))


def test_a_short_partition_is_a_pause(etcd: EtcdServer, proxy: FaultProxy, namespace: str, tmp_path: Path) -> None:
    """G5 C38: Cut off for less than a TTL the replica pauses and goes on under the same token; nobody else got in."""
    with Replicas(namespace, tmp_path, ttl=4) as replicas:
        a = replicas.owner(proxy.endpoint)
        token = a.wait_for("acquired")["token"]
        b = replicas.owner(etcd.endpoint)
        a.wait_for_more("wrote", 3)
        proxy.blackhole()
        until(lambda: a.all("state"))
        written = len(a.all("wrote"))
        proxy.heal()
        a.wait_for_more("wrote", written + 3)
        assert [report["state"] for report in a.wait_for_more("state", 2)] == ["SUSPENDED", "HELD"]
        assert {entry["token"] for entry in replicas.ledger()} == {token}
        a.tell("release")
        a.wait_for("released")
        assert b.wait_for("acquired")["token"] > token
