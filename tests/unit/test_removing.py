"""Removals that arrive late: whatever stands at the key by then is somebody else's claim, and stays."""

from __future__ import annotations

import math

import pytest

from leasekeeper.protocol import queue
from leasekeeper.protocol.authority import Authority
from leasekeeper.protocol.evict import evict
from leasekeeper.protocol.leave import withdraw
from leasekeeper.protocol.lend import lend
from leasekeeper.protocol.plan import Call, Fault, Kind
from tests.model.world import Client, Strike, World


def acquire(client: Client) -> Authority:
    """Own the name."""
    return client.do(queue.acquire(client.ctx, client.want()))


def test_a_withdrawal_that_is_late_spares_the_next_claim_on_the_key() -> None:
    """G6: a claim that was refused and never seen is withdrawn by its nonce: the same session's next claim on that key stays."""
    world = World()
    client = Client(world)
    client.do(lend(client.ctx, client.want()))
    # The put is refused before it had any effect, and the withdrawal of what never was is still on its way ...
    put, withdrawal = 0, 1
    refused = client.run(
        queue.acquire(client.ctx, client.want("other")),
        {
            put: Strike(lambda: Fault(Kind.FIX, text="refused")),
            withdrawal: Strike(lambda: Fault(Kind.UNKNOWN, text="lost"), "late"),
        },
    )
    assert isinstance(refused.error, Fault)
    late = list(world.late)
    assert len(late) == 1
    client.tidy()
    # ... when the same key is taken by the next claim.
    claim = client.do(queue.acquire(client.ctx, client.want("other")))
    assert claim.slot.key == late[0].compare[0].key  # type: ignore[attr-defined]
    world.arrive()
    assert [kv.create_revision for kv in client.stored("other")] == [claim.create_revision]


def test_a_withdrawal_without_a_revision_names_the_nonce() -> None:
    """G6: as long as nobody has seen at which revision a claim was put, only its own record is removed."""
    world = World()
    client = Client(world)
    slot = acquire(client).slot
    slot.create_revision = 0
    world.store.delete(slot.key)
    world.store.put(slot.key, b"the next claim of this session", slot.session.lease_id)
    client.do(withdraw(client.ctx, slot))
    assert slot.key in world.store.keys


def test_an_eviction_that_is_late_spares_the_next_owner() -> None:
    """C44: an operator's removal that arrives when the owner has gone by itself and another came hits nobody."""
    world = World()
    client, operator = Client(world), Client(world)
    old = acquire(client)
    plan = evict(operator.ctx, "name", old.token, math.inf)
    read = next(plan)
    removal = plan.send(operator._perform(read))
    assert isinstance(removal, Call)
    # Same key, same lease, in between.
    world.store.delete(old.slot.key)
    revision = world.store.put(old.slot.key, old.slot.record, old.session.lease_id)
    again = plan.send(operator._perform(removal))
    assert world.store.keys[old.slot.key].create_revision == revision
    with pytest.raises(StopIteration) as done:
        plan.send(operator._perform(again))
    assert done.value.value.by_itself
    assert done.value.value.owner.create_revision == revision
