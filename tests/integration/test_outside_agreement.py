"""Runs against the outside world: what they record and what it writes down fit together, whatever goes wrong there."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any

import pytest

from leasekeeper import Keeper, Observed, effect
from leasekeeper.testing import EtcdServer
from leasekeeper.testing.outside import OutsideWorld, Refused, Trouble, call, disagreements, records_of

URL: list[str] = []


@pytest.fixture(scope="module")
def world() -> Iterator[OutsideWorld]:
    """One world for all tests here, which use orders of their own."""
    with OutsideWorld() as started:
        URL.append(started.url)
        yield started


@effect(dedupes=True, key_ttl="24h")
def charge(step: Any, order: str) -> Any:
    """Take money."""
    body = {"order": order, "amount_cents": 100}
    return call(URL[-1], "POST", "/charges", body, headers=step.headers(), timeout_s=step.remaining())


@effect(probe=True)
def sell(step: Any, order: str) -> Any:
    """Sell at the till, which knows no keys."""
    body = {"order": order, "amount_cents": 100}
    return call(URL[-1], "POST", "/till/charges", body, headers=step.headers(), timeout_s=step.remaining())


@sell.preflight
def sold(step: Any, order: str) -> Observed:
    """Whether it was sold."""
    found = call(URL[-1], "GET", "/till/charges", query={"order": order})["charges"]
    return Observed(found[0] if found else None, applied=bool(found))


def work(keeper: Keeper, order: str) -> Any:
    """One life of a run with both."""
    with keeper.run("order", id=order) as run:
        return run.do("charge", charge, order), run.do("sell", sell, order)


TROUBLES = [
    Trouble("lose_reply", "payments.charge"),
    Trouble("lose_reply", "till.charge"),
    Trouble("fail", "payments.charge"),
    Trouble("fail", "till.charge"),
    Trouble("fail_after", "payments.charge"),
    Trouble("fail_after", "till.charge"),
    Trouble("outage", "payments.charge"),
    Trouble("outage", "till.charge"),
]


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda one: f"{one.kind}-{one.where}")
def test_after_trouble_both_tell_one_story(
    etcd: EtcdServer, namespace: str, world: OutsideWorld, trouble: Trouble
) -> None:
    """A4, B28: whatever became of a call's answer, the next life ends with one charge and one sale, and no disagreement."""
    order = f"{trouble.kind}-{trouble.where}"
    world.trouble(trouble)
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        with pytest.raises((Refused, OSError, http.client.HTTPException)):
            work(keeper, order)
        work(keeper, order)
        records = records_of(keeper, "order", order)
    assert len(world.applied("payments.charge", order)) == len(world.applied("till.charge", order)) == 1
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert disagreements([entry for entry in world.ledger() if entry.subject == order], records) == []


def test_a_call_past_the_run_is_found(etcd: EtcdServer, namespace: str, world: OutsideWorld) -> None:
    """B28: somebody who acts with a key that no step has is told of, and a run of which nothing is known has no records."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        work(keeper, "past")
        call(world.url, "POST", "/charges", {"order": "past", "amount_cents": 1}, headers={"Idempotency-Key": "mine"})
        ours = [entry for entry in world.ledger() if entry.subject == "past"]
        (found,) = disagreements(ours, records_of(keeper, "order", "past"))
        assert "came with a key that no intent has" in found
        assert records_of(keeper, "order", "another") == []
