"""Opening a run while the epoch is raised, and others of the same process learn of it: nothing is written under the old token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leasekeeper.errors import StaleToken
from leasekeeper.protocol.keys import Epoch, write_epoch
from leasekeeper.protocol.opening import Opening, open_run
from leasekeeper.protocol.plan import Plan
from leasekeeper.protocol.run_keys import RunKeys, RunName
from leasekeeper.runtime.appending import Queue
from tests.model.runs import NAME, OPEN_S, Owner
from tests.model.world import KEYS

MOST = 40


def interrupted(plan: Plan[Any], at: int, happens: Callable[[], None]) -> Plan[Any]:
    """The plan, with something that happens right before its operation number ``at``."""
    result: Any = None
    for number in range(MOST):
        try:
            operation = plan.send(result)
        except StopIteration as done:
            return done.value
        if number == at:
            happens()
        result = yield operation
    raise AssertionError("it does not end")


@pytest.mark.parametrize("name", [NAME, RunName("order", "new")], ids=["taken over", "begun"])
def test_an_epoch_that_is_raised_meanwhile(name: RunName) -> None:
    """At whichever operation it is raised and learnt of, what was not written by then is not: StaleToken."""
    refused = opened = 0
    for at in range(MOST):
        owner = Owner()
        ctx, keys, store = owner.client.ctx, RunKeys(KEYS, name), owner.world.store
        left: list[int] = []

        def learn(ctx: Any = ctx, keys: RunKeys = keys, store: Any = store, left: list[int] = left) -> None:
            raised = write_epoch(3, at=0.0, by="an operator")
            store.put(KEYS.epoch, raised)
            ctx.epoch = Epoch(3, raised)
            left.append(len(store.below(keys.records)))

        begun = Opening(
            life=f"{owner.world.number():032x}", facts={"claim": owner.authority.slot.nonce, "host": "here"}
        )
        plan = open_run(
            ctx, keys, owner.mine, begun, line=Queue(), alive=lambda: True, until=owner.client.ctx.now() + OPEN_S
        )
        try:
            owner.client.do(interrupted(plan, at, learn))
        except StaleToken:
            refused += 1
        else:
            opened += 1
        if not left:
            break  # it had ended by then
        assert len(store.below(keys.records)) == left[0], f"written at operation {at}"
    assert refused >= 3
    assert opened >= 1
