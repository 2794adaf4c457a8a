"""Acquire, try, verify and release on a model of etcd: who owns what, with which token, after which loss of replies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from leasekeeper.errors import ConfigError, NotAcquired, StoreRewound
from leasekeeper.fencing import EPOCH_MAX, REVISION_MAX, make_token
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol import queue
from leasekeeper.protocol.authority import Authority, State
from leasekeeper.protocol.keys import read_claim, write_epoch
from leasekeeper.protocol.leave import release, remove, sweep, withdraw
from leasekeeper.protocol.lend import lend
from leasekeeper.protocol.plan import Call, Cause, Detach, Fault, Kind, Wait, Watch
from leasekeeper.timing import Timing
from tests.model.world import KEYS, Client, Strike, World

QUEUE = KEYS.queue("name")


def acquire(client: Client, name: str = "name", timeout_s: float | None = None) -> Authority:
    """Acquire a name that can be had."""
    return client.do(queue.acquire(client.ctx, client.want(name, timeout_s)))


def try_acquire(client: Client, name: str = "name") -> Authority | None:
    """Try for a name."""
    return client.do(queue.try_acquire(client.ctx, client.want(name)))


def give_back(client: Client, authority: Authority) -> bool | None:
    """Release a claim."""
    authority.release()
    return client.do(release(client.ctx, authority.slot))


def raise_epoch(world: World, number: int) -> None:
    """What `leasekeeper epoch bump` leaves behind."""
    world.store.put(KEYS.epoch, write_epoch(number, at=0.0, by=f"bump {world.number()}"))


def calls(run: Any) -> int:
    """How many calls a run made."""
    return sum(isinstance(operation, Call) for operation in run.trace)


# ---------------------------------------------------------------- the usual course


def test_an_uncontended_acquire_is_one_round_trip_and_so_is_its_release() -> None:
    """With a session at hand, owning a free name costs one transaction, and giving it back another."""
    client = Client(World())
    client.do(lend(client.ctx, client.want()))
    run = client.run(queue.acquire(client.ctx, client.want()))
    assert calls(run) == len(run.trace) == 1
    assert run.result is not None
    run.result.release()
    assert calls(client.run(release(client.ctx, run.result.slot))) == 1
    assert client.stored() == []


def test_the_token_is_the_create_revision_of_the_key() -> None:
    """G2: with epoch 0 the token is just the create revision, which an observer sees too."""
    client = Client(World())
    authority = acquire(client)
    (kv,) = client.stored()
    assert authority.token == authority.create_revision == kv.create_revision
    assert read_claim(KEYS, kv, 0).token == authority.token


def test_the_key_lives_under_the_lease_of_its_session() -> None:
    """C33, C45: no claim is ever put without a lease, and the lease is the session's."""
    client = Client(World())
    acquire(client)
    (kv,) = client.stored()
    (session,) = client.sessions()
    assert kv.lease == session.lease_id
    assert kv.key == KEYS.claim("name", session.lease_id)


def test_two_claims_of_one_session_queue_like_strangers() -> None:
    """A second claim on the same name takes the next slot and waits its turn behind the first."""
    world = World()
    client = Client(world)
    first = acquire(client)
    world.script = [lambda: world.pass_time(1.0), lambda: give_back(client, first)]
    second = acquire(client)
    assert second.slot.key == KEYS.claim("name", second.session.lease_id, 1)
    assert second.token > first.token
    assert len(world.store.leases) == 1


def test_owners_follow_in_the_order_of_their_claims() -> None:
    """G1, G2: first in, first out, each with a larger token than the one before."""
    world = World()
    owner = world.stranger("name")
    client, later = Client(world), []
    world.script = [
        lambda: later.append(world.stranger("name")),
        lambda: world.store.delete(owner),
    ]
    authority = acquire(client)
    first, second = world.store.below(QUEUE)
    assert (first.key, second.key) == (authority.slot.key, later[0])


def test_a_waiter_watches_its_own_key_and_the_one_before_it() -> None:
    """A release wakes one waiter: nobody watches the whole queue."""
    world = World()
    world.stranger("name")
    before = world.stranger("name")
    client = Client(world)
    run = client.run(queue.acquire(client.ctx, client.want(timeout_s=1.0)))
    watches = [operation for operation in run.trace if isinstance(operation, Watch)]
    own = KEYS.claim("name", client.sessions()[0].lease_id)
    assert [set(watch.keys) for watch in watches] == [{own, before}]


def test_a_claim_before_it_that_gives_up_does_not_make_a_waiter_the_owner() -> None:
    """When the one just ahead leaves the queue, the waiter moves up and goes on waiting."""
    world = World()
    owner, ahead = world.stranger("name"), world.stranger("name")
    client = Client(world)
    seen: list[int] = []
    world.script = [
        lambda: world.store.delete(ahead),
        lambda: seen.append(len(world.store.below(QUEUE))),
        lambda: world.store.delete(owner),
    ]
    authority = acquire(client)
    assert seen == [2]
    assert world.store.below(QUEUE)[0].key == authority.slot.key


def test_when_the_time_is_over_the_error_names_the_owner() -> None:
    """C44: NotAcquired carries the owner's claim: holder, token, lease id."""
    world = World()
    owner, client = Client(world), Client(world)
    held = acquire(owner)
    run = client.run(queue.acquire(client.ctx, client.want(timeout_s=2.0)))
    assert isinstance(run.error, NotAcquired)
    claim = run.error.owner
    assert claim is not None
    assert (claim.token, claim.holder, claim.lease_id) == (held.token, owner.ctx.holder, held.session.lease_id)
    assert run.error.waited_s == pytest.approx(2.0, abs=0.1)
    for part in (owner.ctx.holder, str(held.token), f"{held.session.lease_id:x}"):
        assert part in str(run.error)


def test_the_error_tells_how_many_claims_were_there_before() -> None:
    """NotAcquired carries how many claims stood in the queue when this one came, whatever came behind it."""
    world = World()
    world.stranger("name")
    world.stranger("name")
    client = Client(world)
    world.script = [lambda: world.stranger("name"), lambda: world.pass_time(3.0)]
    run = client.run(queue.acquire(client.ctx, client.want(timeout_s=2.0)))
    assert isinstance(run.error, NotAcquired)
    assert run.error.ahead == 2


@pytest.mark.parametrize("at_hand", [False, True])
def test_a_try_that_comes_to_nothing_can_tell_why(at_hand: bool) -> None:
    """Asked at once, NotAcquired tells the owner and how many claims stand there, from the very answer that refused."""
    world = World()
    owner, client = Client(world), Client(world)
    held = acquire(owner)
    world.stranger("name")
    if at_hand:
        client.do(lend(client.ctx, client.want()))
    run = client.run(queue.at_once(client.ctx, client.want()))
    assert calls(run) == 1
    assert isinstance(run.error, NotAcquired)
    claim = run.error.owner
    assert claim is not None
    assert (claim.token, claim.holder) == (held.token, owner.ctx.holder)
    assert run.error.ahead == 2
    assert owner.ctx.holder in str(run.error)


def test_an_owner_that_left_in_the_last_moment_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the owner leaves just before the claim is given up, the error says that nobody owns the name."""
    world = World()
    owner = world.stranger("name")
    client = Client(world)
    answer = world.store.answer

    def owner_leaves_first(request: Any) -> Any:
        if isinstance(request, pb.TxnRequest) and any(op.HasField("request_delete_range") for op in request.success):
            world.store.delete(owner)
        return answer(request)

    monkeypatch.setattr(world.store, "answer", owner_leaves_first)
    run = client.run(queue.acquire(client.ctx, client.want(timeout_s=1.0)))
    assert isinstance(run.error, NotAcquired)
    assert run.error.owner is None
    assert "nobody owns it any more" in str(run.error)


def test_an_owner_is_named_although_giving_up_was_not_answered() -> None:
    """When the withdrawal's reply is lost, the owner is the one that the last look showed."""
    world = World()
    owner, client = Client(world), Client(world)
    held = acquire(owner)
    quiet = client.run(queue.acquire(client.ctx, client.want(timeout_s=1.0)))
    withdrawal = max(index for index, operation in enumerate(quiet.trace) if isinstance(operation, Call))
    silence = Strike(lambda: Fault(Kind.UNKNOWN), "now")
    run = client.run(queue.acquire(client.ctx, client.want(timeout_s=1.0)), {withdrawal - 1: silence})
    assert isinstance(run.error, NotAcquired)
    assert isinstance(run.trace[-1], Detach)
    assert run.error.owner is not None
    assert run.error.owner.token == held.token


def test_a_claim_whose_turn_comes_in_the_last_moment_is_looked_at_once_more() -> None:
    """A release that arrives together with the end of the time is not thrown away."""
    world = World()
    owner, client = world.stranger("name"), Client(world)
    want = client.want(timeout_s=2.0)

    def too_late() -> None:
        world.pass_time(2.0)
        world.store.delete(owner)

    world.script = [too_late]
    assert client.do(queue.acquire(client.ctx, want)).state(world.now_s) is State.HELD


def test_slots_are_used_again() -> None:
    """A session's keys do not grow in number: each acquire of a free name takes the same key."""
    client = Client(World())
    keys = set()
    for _ in range(5):
        authority = acquire(client)
        keys.add(authority.slot.key)
        give_back(client, authority)
    assert len(keys) == 1


# ---------------------------------------------------------------- try


def test_a_try_that_is_turned_away_leaves_no_trace() -> None:
    """try_acquire on a taken name writes nothing and grants no lease (C14, C29)."""
    world = World()
    world.stranger("name")
    client = Client(world)
    before = world.store.revision
    assert try_acquire(client) is None
    assert (world.store.revision, world.store.leases) == (before, {})


def test_a_try_with_a_session_at_hand_is_one_transaction() -> None:
    """The range compare needs no queue entry, neither when the name is free nor when it is taken."""
    world = World()
    client = Client(world)
    client.do(lend(client.ctx, client.want()))
    won = client.run(queue.try_acquire(client.ctx, client.want()))
    before = world.store.revision
    lost = client.run(queue.try_acquire(client.ctx, client.want()))
    assert won.result is not None
    assert (lost.result, lost.error) == (None, None)
    assert calls(won) == calls(lost) == 1
    assert world.store.revision == before


def test_a_try_does_not_wait_without_end_for_a_beat() -> None:
    """When etcd goes away just after the put, a try is over within its patience and leaves nothing behind."""
    world = World()
    client = Client(world)
    client.do(lend(client.ctx, client.want()))
    plan = queue.try_acquire(client.ctx, client.want())
    operation = next(plan)
    assert isinstance(operation, Call)
    reply = client._perform(operation)
    world.down = True
    world.now_s += 6.0  # frozen, while the reply was on its way: the proof is too old now
    operation = plan.send(reply)
    assert isinstance(operation, Wait)
    assert operation.until is not None
    assert operation.until <= world.now_s + 10.0
    world.pass_time(operation.until - world.now_s)
    with pytest.raises(Fault):
        _finish(client, plan, False)
    world.down = False
    client.tidy()
    assert client.stored() == []


def _finish(client: Client, plan: Any, result: Any) -> Any:
    try:
        operation = plan.send(result)
        while True:
            try:
                result = client._perform(operation)
            except Fault as fault:
                operation = plan.throw(fault)
            else:
                operation = plan.send(result)
    except StopIteration as done:
        return done.value


# ---------------------------------------------------------------- lost replies


def test_a_lost_reply_to_the_put_is_resolved_by_the_nonce() -> None:
    """G6: the repeated put finds its own key and takes the place that the first one got."""
    world = World()
    client = Client(world)
    client.do(lend(client.ctx, client.want()))
    lost_reply = Strike(lambda: Fault(Kind.UNKNOWN), "now")
    run = client.run(queue.acquire(client.ctx, client.want()), {0: lost_reply})
    assert run.result is not None
    (kv,) = client.stored()
    assert run.result.create_revision == kv.create_revision == 2
    assert calls(run) == 2


def test_somebody_elses_value_at_the_key_is_not_taken_for_ones_own() -> None:
    """C25: exclusion depends on the nonce of this acquire, not on names, hosts or the key."""
    world = World()
    client = Client(world)
    session = client.do(lend(client.ctx, client.want()))
    _, like_mine = client.ctx.record("", session.timing.ttl, 0)
    world.store.put(KEYS.claim("name", session.lease_id), like_mine, session.lease_id)
    authority = acquire(client)
    assert authority.slot.number == 1
    assert world.store.below(QUEUE)[0].value == authority.slot.record


def test_a_ghost_in_the_slot_is_removed_and_the_claim_goes_on() -> None:
    """A key of the session's own that a restore brought back does not block its name for as long as the session lives."""
    world = World()
    client = Client(world)
    session = client.do(lend(client.ctx, client.want()))
    ghost = KEYS.claim("name", session.lease_id)
    world.store.put(ghost, b"from before the restore", session.lease_id)
    authority = acquire(client, timeout_s=30.0)
    assert ghost not in world.store.keys
    assert authority.state(world.now_s) is State.HELD


def test_a_key_in_the_slot_under_another_lease_is_left_alone() -> None:
    """What stands where the claim should go but is not the session's is queued behind, never removed."""
    world = World()
    client = Client(world)
    session = client.do(lend(client.ctx, client.want()))
    foreign = KEYS.claim("name", session.lease_id)
    world.store.put(foreign, b"put by hand")
    run = client.run(queue.acquire(client.ctx, client.want(timeout_s=30.0)))
    assert isinstance(run.error, NotAcquired)
    assert foreign in world.store.keys


# ---------------------------------------------------------------- leases that end


def test_a_revoked_lease_is_replaced_at_once() -> None:
    """C40: the put under a lease that is gone takes a new lease and goes on, within the time given."""
    world = World()
    client = Client(world)
    session = client.do(lend(client.ctx, client.want()))
    world.store.end_lease(session.lease_id)
    began_s = world.now_s
    authority = acquire(client, timeout_s=2.0)
    assert authority.session is not session
    assert world.now_s - began_s < 0.5


def test_a_waiter_whose_lease_is_gone_is_told_and_queues_again() -> None:
    """A waiter never becomes owner by a key that is gone: it stands at the end of the queue with a new one."""
    world = World()
    owner, client = world.stranger("name"), Client(world)
    other: list[bytes] = []
    world.script = [
        lambda: other.append(world.stranger("name")),
        lambda: world.store.end_lease(client.stored()[0].lease),
        lambda: world.store.delete(owner),
        lambda: world.store.delete(*other),
    ]
    authority = acquire(client)
    assert world.store.below(QUEUE)[0].key == authority.slot.key
    assert authority.create_revision > 5


def test_a_waiter_that_was_displaced_has_its_patience_anew() -> None:
    """After an hour in the queue, a claim that must begin again may ride out a short outage as at the beginning."""
    world = World()
    owner, client = world.stranger("name", ttl=100_000), Client(world)

    def displaced_in_an_outage() -> None:
        world.pass_time(3600.0)
        world.store.delete(client.stored()[0].key)
        world.store.delete(owner)

    world.script = [displaced_in_an_outage]
    want = client.want()
    trace = client.run(queue.acquire(client.ctx, want)).trace
    # The second put is the call that can fail now; it is repeated.
    puts = [at for at, operation in enumerate(trace) if _is_put(operation)]
    assert len(puts) == 2

    world = World()
    owner, client = world.stranger("name", ttl=100_000), Client(world)
    world.script = [displaced_in_an_outage]
    refused = Strike(lambda: Fault(Kind.NOT_SENT))
    run = client.run(queue.acquire(client.ctx, client.want()), {puts[1]: refused, puts[1] + 2: refused})
    assert isinstance(run.result, Authority)


def _is_put(operation: object) -> bool:
    return (
        isinstance(operation, Call)
        and isinstance(operation.request, pb.TxnRequest)
        and any(op.HasField("request_put") for op in operation.request.success)
    )


def test_a_claim_that_comes_first_while_authority_lapses_is_read_again() -> None:
    """A waiter that is first but cannot prove its lease waits for a beat, and then looks whether its key still stands."""
    world = World()
    client = Client(world)
    client.do(lend(client.ctx, client.want()))
    plan = queue.acquire(client.ctx, client.want())
    reply = client._perform(next(plan))
    world.now_s += 9.8  # frozen for longer than the authority of the last proof, not for the TTL
    operation = plan.send(reply)
    assert isinstance(operation, Wait)
    client._perform(operation)
    world.store.delete(client.stored()[0].key)
    stranger = world.stranger("name")
    world.script = [lambda: world.store.delete(stranger)]
    authority = _finish(client, plan, True)
    assert world.store.below(QUEUE)[0].key == authority.slot.key
    assert authority.create_revision > 4


def test_authority_is_fresh_when_acquire_returns() -> None:
    """G3: with a proof that is too old the claim waits for a beat before it is handed out."""
    world = World()
    client = Client(world)
    client.do(lend(client.ctx, client.want()))
    plan = queue.acquire(client.ctx, client.want())
    reply = client._perform(next(plan))
    world.now_s += 5.5
    operation = plan.send(reply)
    assert isinstance(operation, Wait)
    authority = _finish(client, plan, client._perform(operation))
    assert authority.passes(0.0, world.now_s)


def test_the_ttl_that_was_granted_counts() -> None:
    """C39: a server that grants 8 s for 2 s makes a lease of 8 s, with the pause and the beats that belong to it."""
    world = World()
    world.store.minimum_ttl = 8
    client = Client(world, Timing(ttl=2.0))
    authority = acquire(client)
    assert (authority.timing.ttl, authority.timing.pause_s, authority.timing.beat_s) == (8.0, 4.0, 1.6)


# ---------------------------------------------------------------- epochs


def test_every_acquire_compares_the_epoch() -> None:
    """G2: a session that knows an old epoch cannot get a lease under it."""
    world = World()
    client = Client(world)
    old = acquire(client)
    give_back(client, old)
    raise_epoch(world, 3)
    new = acquire(client)
    assert new.token == make_token(3, new.create_revision)
    assert new.token > old.token


def test_a_waiter_of_an_old_epoch_queues_again_when_its_turn_comes() -> None:
    """G2: a claim put before a bump is not owned after it, since its token could be lower than one of before a restore."""
    world = World()
    owner, client = world.stranger("name"), Client(world)
    world.script = [lambda: raise_epoch(world, 3), lambda: world.store.delete(owner)]
    authority = acquire(client)
    assert authority.token == make_token(3, authority.create_revision)
    (kv,) = client.stored()
    assert read_claim(KEYS, kv, 3).token == authority.token


def test_a_lost_reply_and_a_bump_do_not_make_a_token_of_the_old_epoch() -> None:
    """G2, G6: a put whose reply was lost is given up when the epoch was raised before it was found."""
    world = World()
    client = Client(world)
    client.do(lend(client.ctx, client.want()))
    plan = queue.acquire(client.ctx, client.want())
    operation = next(plan)
    assert isinstance(operation, Call)
    world.store.answer(operation.request)
    operation = plan.throw(Fault(Kind.UNKNOWN))
    raise_epoch(world, 3)
    authority = _finish(client, plan, client._perform(operation))
    assert authority.token == make_token(3, authority.create_revision)


@pytest.mark.parametrize(
    "stored", [b"", b"{}", b"[1]", b'"x"', b'{"v":1,"epoch":-1}', b'{"v":2,"epoch":1}', b"\xff\xfe"]
)
def test_an_epoch_record_that_cannot_be_read_stops_everything(stored: bytes) -> None:
    """No token is safe without the epoch: acquire, try and verify refuse with what to mend."""
    world = World()
    world.store.put(KEYS.epoch, stored)
    client = Client(world)
    for plan in (
        queue.acquire(client.ctx, client.want()),
        queue.try_acquire(client.ctx, client.want()),
        queue.verify(client.ctx, "name", 5, world.now_s + 5.0),
    ):
        error = client.run(plan).error
        assert isinstance(error, ConfigError)
        assert error.field == KEYS.epoch.decode()
    client.tidy()
    assert client.stored() == []


def test_a_lower_epoch_is_a_store_that_went_back() -> None:
    """A30: an epoch lower than the one known is refused, even where no lower revision gives the restore away."""
    world = World()
    snapshot = world.store.snapshot()
    client = Client(world)
    raise_epoch(world, 3)
    give_back(client, acquire(client))
    world.store.restore(snapshot)
    for _ in range(20):
        world.store.put(b"others write on")
    for plan in (
        queue.acquire(client.ctx, client.want()),
        queue.try_acquire(client.ctx, client.want()),
        queue.verify(client.ctx, "name", 5, world.now_s + 5.0),
    ):
        error = client.run(plan).error
        assert isinstance(error, StoreRewound)
        assert "epoch bump" in str(error)
    assert client.stored() == []
    raise_epoch(world, 4)
    assert acquire(client).token > make_token(3, REVISION_MAX)


def test_another_record_of_the_same_epoch_is_a_store_that_went_back() -> None:
    """Two restores whose bumps gave the same number are told apart by the record, because their tokens could repeat."""
    world = World()
    snapshot = world.store.snapshot()
    client = Client(world)
    raise_epoch(world, 3)
    give_back(client, acquire(client))
    world.store.restore(snapshot)
    for _ in range(20):
        world.store.put(b"others write on")
    raise_epoch(world, 3)
    assert isinstance(client.run(queue.acquire(client.ctx, client.want())).error, StoreRewound)
    raise_epoch(world, 4)
    assert acquire(client).token > make_token(3, REVISION_MAX)


def test_a_waiter_notices_that_the_store_went_back() -> None:
    """A waiter whose epoch was raised and restored away does not become owner under the lower one."""
    world = World()
    owner, client = world.stranger("name", ttl=100_000), Client(world)
    snapshot = world.store.snapshot()
    raise_epoch(world, 3)

    def restored() -> None:
        mine = client.stored()[0]
        world.store.restore(snapshot)
        for _ in range(20):
            world.store.put(b"others write on")
        world.store.leases.update({mine.lease: world.store.leases[next(iter(world.store.leases))]})
        world.store.put(mine.key, mine.value, mine.lease)
        world.store.delete(owner)

    world.script = [restored]
    run = client.run(queue.acquire(client.ctx, client.want(timeout_s=60.0)))
    assert run.result is None
    assert isinstance(run.error, (StoreRewound, NotAcquired))


# ---------------------------------------------------------------- a store whose revision went back


def rewound(*, known_epoch: int = 0) -> tuple[World, Client]:
    """A client that has seen a higher revision than the store has now."""
    world = World()
    if known_epoch:
        raise_epoch(world, known_epoch)
    client = Client(world)
    client.do(lend(client.ctx, client.want()))
    snapshot = world.store.snapshot()
    for _ in range(5):
        give_back(client, acquire(client))
    world.store.restore(snapshot)
    return world, client


@pytest.mark.parametrize("known_epoch", [0, 2])
def test_nothing_is_acquired_on_a_store_that_went_back(known_epoch: int) -> None:
    """G2: a lower revision means a restore; no token is handed out, none is vouched for, and no key stays."""
    world, client = rewound(known_epoch=known_epoch)
    for plan in (
        queue.acquire(client.ctx, client.want()),
        queue.try_acquire(client.ctx, client.want()),
        queue.verify(client.ctx, "name", 5, world.now_s + 5.0),
    ):
        error = client.run(plan).error
        assert isinstance(error, Fault)
        assert (error.cause, error.kind) == (Cause.REWOUND, Kind.FIX)
    client.tidy()
    assert client.stored() == []


@pytest.mark.parametrize("known_epoch", [0, 2])
def test_a_raised_epoch_makes_a_store_that_went_back_good(known_epoch: int) -> None:
    """After `epoch bump` the same client goes on by itself, with tokens above all earlier ones."""
    world, client = rewound(known_epoch=known_epoch)
    highest = make_token(known_epoch, REVISION_MAX)
    raise_epoch(world, known_epoch + 1)
    assert acquire(client).token > highest
    assert client.do(queue.verify(client.ctx, "name", 5, world.now_s + 5.0)) is False


def test_all_who_meet_the_rewound_store_at_once_go_on() -> None:
    """Two claims that were refused together both go on: the epoch that one has learned is news to the other too."""
    world, client = rewound()
    plans = [queue.acquire(client.ctx, client.want(name)) for name in ("a", "b")]
    faults = []
    for plan in plans:
        operation = next(plan)
        with pytest.raises(Fault) as caught:
            client._perform(operation)
        assert caught.value.cause is Cause.REWOUND
        faults.append(caught.value)
    raise_epoch(world, 1)
    for plan, fault in zip(plans, faults, strict=True):
        authority = _finish(client, plan, client._perform(plan.throw(fault)))
        assert authority.token > REVISION_MAX


@pytest.mark.parametrize("bumped", [False, True])
def test_an_epoch_read_for_the_first_time_is_not_one_that_rose(bumped: bool) -> None:
    """A client that has only tried so far tells an old epoch from a raised one when the store goes back."""
    world = World()
    raise_epoch(world, 2)
    snapshot = world.store.snapshot()
    client = Client(world)
    for _ in range(5):
        world.stranger("name")
    assert try_acquire(client) is None
    world.store.restore(snapshot)
    if bumped:
        raise_epoch(world, 3)
        assert acquire(client).token > make_token(2, REVISION_MAX)
        return
    error = client.run(queue.acquire(client.ctx, client.want())).error
    assert isinstance(error, Fault)
    assert error.cause is Cause.REWOUND


def test_a_rewound_store_with_an_epoch_that_was_never_read_is_refused() -> None:
    """Whoever has seen higher revisions but never the epoch cannot know that it was raised since."""
    world = World()
    raise_epoch(world, 2)
    client = Client(world)
    client.seen = world.store.revision + 50
    error = client.run(queue.acquire(client.ctx, client.want())).error
    assert isinstance(error, Fault)
    assert error.cause is Cause.REWOUND


def test_a_keeper_is_not_given_the_same_token_twice() -> None:
    """G2, A30: a restored store that makes the last revision anew is recognised, although it shows no lower one."""
    world = World()
    client = Client(world)
    acquire(client, "elsewhere")
    snapshot = world.store.snapshot()
    first = acquire(client)
    assert client.seen == first.create_revision
    world.store.restore(snapshot)
    run = client.run(queue.acquire(client.ctx, client.want("another")))
    assert isinstance(run.error, Fault)
    assert run.error.cause is Cause.REWOUND
    assert world.store.below(KEYS.queue("another")) == []
    raise_epoch(world, 1)
    assert acquire(client, "another").token > first.token


def test_what_a_restore_brings_back_does_not_block_its_name() -> None:
    """A claim given back since the backup stands there again, by a lease that lives on for other claims: it is swept away."""
    world = World()
    client = Client(world)
    held = acquire(client, "held")
    given_back = acquire(client)
    world.store.put(KEYS.claim("elsewhere", 0xABC), b"somebody's")
    snapshot = world.store.snapshot()
    give_back(client, given_back)
    for _ in range(5):
        give_back(client, acquire(client, "other"))
    world.store.restore(snapshot)
    assert [kv.key for kv in client.stored()] == [given_back.slot.key]
    raise_epoch(world, 1)
    new = acquire(client, "other")
    assert new.session is not held.session
    world.pass_time(1.0)
    assert client.stored() == []
    assert held.state(world.now_s) is State.HELD
    assert new.state(world.now_s) is State.HELD
    assert KEYS.claim("elsewhere", 0xABC) in world.store.keys
    assert acquire(Client(world), timeout_s=1.0).token > REVISION_MAX


def test_a_sweep_leaves_alone_what_a_slot_knows() -> None:
    """Claims of the session that wait, are owned or are on their way out have somebody who looks after them."""
    world = World()
    client = Client(world)
    authority = acquire(client)
    session = authority.session
    leaving = acquire(client, "leaving").slot
    leaving.leaving = True
    putting = acquire(client, "putting").slot
    putting.create_revision = 0
    stray = KEYS.claim("stray", session.lease_id)
    foreign = KEYS.claim("foreign", session.lease_id)
    outside = b"not/ours"
    for key, lease in ((stray, session.lease_id), (foreign, 0), (outside, session.lease_id)):
        world.store.put(key, b"", lease)
    session.doubt()
    client.do(sweep(client.ctx, session))
    assert stray not in world.store.keys
    for key in (authority.slot.key, leaving.key, putting.key, foreign, outside):
        assert key in world.store.keys
    session.shut()
    assert client.run(sweep(client.ctx, session)).trace == []


def test_a_claim_that_a_restore_brings_back_in_the_place_of_a_later_one_is_swept_away() -> None:
    """A session does not keep alive what stands before its own waiter: an earlier claim of its own, at a key used again."""
    world = World()
    client = Client(world)
    session = acquire(client, "other").session
    given_back = acquire(client)
    snapshot = world.store.snapshot()
    give_back(client, given_back)
    again = acquire(client)
    assert again.slot.key == given_back.slot.key
    world.store.restore(snapshot)
    session.doubt()
    client.do(sweep(client.ctx, session))
    assert again.slot.key not in world.store.keys


def test_a_sweep_removes_only_what_still_lives_by_the_lease() -> None:
    """A key that somebody else put in the place of a stray one, after it was listed, is theirs."""
    world = World()
    client = Client(world)
    session = acquire(client).session
    stray = KEYS.claim("stray", session.lease_id)
    world.store.put(stray, b"", session.lease_id)
    session.doubt()
    plan = sweep(client.ctx, session)
    listed = client._perform(next(plan))
    world.store.delete(stray)
    world.store.put(stray, b"somebody else's")
    _finish(client, plan, listed)
    assert stray in world.store.keys


def test_clean_up_works_on_a_store_that_went_back() -> None:
    """What is held is given back and what is left is withdrawn, whatever the revision says."""
    world = World()
    client = Client(world)
    authority = acquire(client)
    snapshot = world.store.snapshot()
    for _ in range(5):
        give_back(client, acquire(client, "other"))
    world.store.restore(snapshot)
    assert give_back(client, authority) is True
    assert world.store.below(QUEUE) == []


# ---------------------------------------------------------------- verify


def test_verify_knows_the_owner_by_its_token() -> None:
    """Only the owner's own token is the owner's: not a waiter's, not an old one's, not the same revision of another epoch."""
    world = World()
    raise_epoch(world, 2)
    client = Client(world)
    owner = acquire(client)
    waiter = world.stranger("name")
    ask = partial(queue.verify, client.ctx, "name", until=world.now_s + 5.0)
    assert client.do(ask(token=owner.token)) is True
    for token in (owner.create_revision, owner.token + 1, make_token(3, owner.create_revision)):
        assert client.do(ask(token=token)) is False
    assert client.do(ask(token=make_token(2, world.store.keys[waiter].create_revision))) is False
    give_back(client, owner)
    assert client.do(ask(token=owner.token)) is False


def test_a_held_token_stays_the_owners_after_a_bump() -> None:
    """A lease that is held goes on under its old token; verify says so although the epoch is another one."""
    world = World()
    client = Client(world)
    owner = acquire(client)
    raise_epoch(world, EPOCH_MAX)
    assert client.do(queue.verify(client.ctx, "name", owner.token, world.now_s + 5.0)) is True


# ---------------------------------------------------------------- leaving


def test_a_release_says_what_became_of_the_key() -> None:
    """True: deleted now. False: gone already. None: not known, the background goes on."""
    world = World()
    client = Client(world)
    assert give_back(client, acquire(client)) is True
    gone = acquire(client)
    world.store.delete(gone.slot.key)
    assert give_back(client, gone) is False
    unknown = acquire(client)
    unknown.release()
    run = client.run(release(client.ctx, unknown.slot), {0: Strike(lambda: Fault(Kind.UNKNOWN))})
    assert run.result is None
    assert run.error is None
    assert len(client.detached) == 1


def test_a_claim_on_its_way_out_does_not_keep_its_session_alive() -> None:
    """C17: from the moment that the removal is asked for, no beat goes out for its sake."""
    client = Client(World())
    authority = acquire(client)
    authority.release()
    plan = release(client.ctx, authority.slot)
    reply = client._perform(next(plan))
    assert authority.session.claims() == []
    _finish(client, plan, reply)


@pytest.mark.parametrize("how", ["withdraw", "release", "remove"])
def test_leaving_does_nothing_to_a_later_claim(how: str) -> None:
    """However late it arrives, what removes a claim compares its create revision, so a newer key of that name stays."""
    world = World()
    client = Client(world)
    slot = acquire(client).slot
    world.store.delete(slot.key)
    world.store.put(slot.key, slot.record, slot.session.lease_id)  # the same bytes, but another claim
    plans: dict[str, Callable[[], Any]] = {
        "withdraw": lambda: withdraw(client.ctx, slot),
        "release": lambda: release(client.ctx, slot),
        "remove": lambda: remove(client.ctx, slot, slot.create_revision),
    }
    client.run(plans[how]())
    assert slot.key in world.store.keys


def test_a_claim_of_a_session_that_is_gone_needs_no_call_to_leave() -> None:
    """Etcd has removed the key with its lease; asking again would be for nothing."""
    world = World()
    client = Client(world)
    authority = acquire(client)
    client.heart.lease_gone(authority.session)
    run = client.run(release(client.ctx, authority.slot))
    assert run.trace == []
    assert run.result is False


def test_the_queue_is_read_in_the_order_of_claims() -> None:
    """The owner is the first by create revision, whatever the keys are called."""
    world = World()
    keys = [KEYS.queue("name") + suffix for suffix in (b"zz", b"0", b"m")]
    for key in keys:
        world.store.put(key)
    reply: Any = world.store.answer(m.read_only((m.first_of(QUEUE), m.last_of(QUEUE), m.last_of(QUEUE, before=4))))
    assert [m.range_kvs(reply, at)[0].key for at in range(3)] == [keys[0], keys[2], keys[1]]
    assert m.range_kvs(reply, 3) == []
