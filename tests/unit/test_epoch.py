"""Raising the epoch: by compare-and-set, told truly when a reply is lost, and high enough for the next restore."""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper.errors import ConfigError, OutcomeUnknown
from leasekeeper.fencing import EPOCH_MAX, make_token
from leasekeeper.protocol import epoch as module
from leasekeeper.protocol.epoch import ORIGIN_S, UNIT_S, bump, next_epoch, read
from leasekeeper.protocol.keys import Epoch, read_epoch, write_epoch
from leasekeeper.protocol.plan import Call, Fault, Kind
from tests.model.world import KEYS, WALL_S, Client, Strike, World

BY_TIME = int((WALL_S + 1000.0 - ORIGIN_S) // UNIT_S)


def stored(world: World) -> Epoch:
    """The epoch as it stands."""
    kv = world.store.keys.get(KEYS.epoch)
    return read_epoch([kv] if kv is not None else [])


def bumped(client: Client, above: int = 0, wait_s: float = 5.0) -> Epoch:
    """Raise the epoch."""
    return client.do(bump(client.ctx, client.world.now_s + wait_s, above))


# ---------------------------------------------------------------- the number


def test_the_first_epoch_comes_from_the_time() -> None:
    """Units of 15 minutes since 2026: enough until 2040, and two incidents do not share one."""
    assert UNIT_S == 900
    assert next_epoch(0, ORIGIN_S) == 1
    assert next_epoch(0, ORIGIN_S + 10 * UNIT_S) == 10
    assert next_epoch(0, ORIGIN_S + 11 * UNIT_S - 1) == 10
    assert EPOCH_MAX * UNIT_S > 14 * 365 * 86_400


def test_a_clock_that_is_wrong_still_raises_it() -> None:
    """A clock before 2026, or set back since the last bump: one above the epoch that is there."""
    assert next_epoch(0, 0.0) == 1
    assert next_epoch(500, ORIGIN_S + 10 * UNIT_S) == 501


def test_it_is_above_a_token_that_was_given() -> None:
    """`--above TOKEN`: the new epoch is above that of any token which was seen."""
    assert next_epoch(0, 0.0, above=make_token(77, 5)) == 78
    assert next_epoch(0, ORIGIN_S + 100 * UNIT_S, above=make_token(77, 5)) == 100
    assert next_epoch(90, 0.0, above=make_token(77, 5)) == 91


@pytest.mark.parametrize(
    ("current", "wall_s", "above"),
    [
        (EPOCH_MAX, 0.0, 0),
        (0, 0.0, make_token(EPOCH_MAX, 1)),
        (0, ORIGIN_S + (EPOCH_MAX + 1) * UNIT_S, 0),
    ],
)
def test_when_the_bits_are_used_up_it_says_so(current: int, wall_s: float, above: int) -> None:
    """No epoch is ever handed out that a token cannot hold."""
    with pytest.raises(ConfigError) as caught:
        next_epoch(current, wall_s, above)
    assert caught.value.field == "epoch"


def test_the_last_epoch_can_be_had() -> None:
    """The bound itself is good."""
    assert next_epoch(EPOCH_MAX - 1, 0.0) == EPOCH_MAX


# ---------------------------------------------------------------- the bump


def test_a_bump_stores_what_it_returns() -> None:
    """The record says the number, when and by whom, and the client knows it from then on."""
    world = World()
    client = Client(world)
    new = bumped(client)
    assert new == stored(world) == client.ctx.epoch
    assert new.number == BY_TIME
    assert new.stored is not None
    assert client.ctx.holder.encode() in new.stored
    assert client.do(read(client.ctx, world.now_s + 5.0)) == new


def test_two_operators_raise_it_once_each() -> None:
    """A bump that meets another one goes above it, and says what it did itself."""
    world = World()
    one, other = Client(world), Client(world)
    plan = bump(one.ctx, world.now_s + 5.0)
    operation = plan.send(one._perform(next(plan)))
    assert isinstance(operation, Call)
    first = bumped(other)
    second = _finish(one, plan, one._perform(operation))
    assert second.number == first.number + 1
    assert stored(world) == second


def test_a_bump_whose_reply_was_lost_is_found_by_reading_back() -> None:
    """G6: the repeated transaction fails its compare; the stored record tells that the first one was this one."""
    world = World()
    client = Client(world)
    lost = Strike(lambda: Fault(Kind.UNKNOWN), "now")
    run = client.run(bump(client.ctx, world.now_s + 5.0), {1: lost})
    assert run.error is None
    assert run.result == stored(world)
    assert run.result.number == BY_TIME


def test_a_lost_reply_is_not_taken_for_a_later_bump_of_somebody_else() -> None:
    """G6: a record with the same number that somebody else wrote is not this bump's."""
    world = World()
    one, other = Client(world), Client(world)
    plan = bump(one.ctx, world.now_s + 5.0)
    operation = plan.send(one._perform(next(plan)))
    theirs = bumped(other)
    operation = plan.throw(Fault(Kind.UNKNOWN))
    mine = _finish(one, plan, one._perform(operation))
    assert mine.number == theirs.number + 1
    assert stored(world) == mine


def test_a_bump_that_cannot_be_read_back_is_said_to_be_unknown() -> None:
    """G6: when the reply is lost and time is over, nobody claims that nothing happened."""
    world = World()
    client = Client(world)
    lost = Strike(lambda: Fault(Kind.UNKNOWN, text="timed out"), "now")
    run = client.run(bump(client.ctx, world.now_s + 0.01), {1: lost})
    assert isinstance(run.error, OutcomeUnknown)
    assert run.error.operation == "epoch bump"
    assert stored(world).number == BY_TIME


@pytest.mark.parametrize("kind", [Kind.NOT_SENT, Kind.RETRY, Kind.FIX])
def test_a_bump_that_had_no_effect_fails_as_it_is(kind: Kind) -> None:
    """What surely did not happen is not called unknown."""
    world = World()
    client = Client(world)
    run = client.run(bump(client.ctx, world.now_s + 0.01), {1: Strike(lambda: Fault(kind))})
    assert isinstance(run.error, Fault)
    assert run.error.kind is kind
    assert stored(world) == Epoch()


def test_a_bump_goes_above_what_the_client_knew_before_a_restore() -> None:
    """G2: a keeper that has seen a higher epoch than the restored store shows does not bump below it."""
    world = World()
    snapshot = world.store.snapshot()
    client = Client(world)
    bumped(client)
    before = bumped(client)
    world.store.restore(snapshot)
    assert bumped(client).number == before.number + 1


def test_a_second_restore_of_the_same_backup_gives_another_epoch() -> None:
    """G2: the restore forgets the first bump, but not the time: a unit later the epoch is a new one."""
    world = World()
    snapshot = world.store.snapshot()
    first = bumped(Client(world))
    world.store.restore(snapshot)
    world.now_s += UNIT_S
    second = bumped(Client(world))
    assert second.number > first.number


def test_within_the_same_unit_a_token_of_the_first_try_helps() -> None:
    """What the module's text tells operators to do who restore twice at once."""
    world = World()
    snapshot = world.store.snapshot()
    first = bumped(Client(world))
    world.store.restore(snapshot)
    assert bumped(Client(world)).number == first.number
    world.store.restore(snapshot)
    assert bumped(Client(world), above=make_token(first.number, 1)).number == first.number + 1
    assert module.__doc__ is not None
    assert "above" in module.__doc__


def test_a_record_that_cannot_be_read_is_not_raised_over() -> None:
    """The epoch that it held could have been higher, so a person must look."""
    world = World()
    world.store.put(KEYS.epoch, b"garbage")
    client = Client(world)
    with pytest.raises(ConfigError):
        bumped(client)
    assert world.store.keys[KEYS.epoch].value == b"garbage"


def test_the_record_names_itself() -> None:
    """Two bumps to the same number are told apart by their bytes."""
    assert write_epoch(5, at=1.0, by="a 01") != write_epoch(5, at=1.0, by="a 02")


def _finish(client: Client, plan: Any, result: Any) -> Any:
    try:
        while True:
            operation = plan.send(result)
            result = client._perform(operation)
    except StopIteration as done:
        return done.value
