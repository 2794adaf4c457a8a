"""What somebody does to a run's keys by etcd's own tools, one at a time: no effect runs on it, and nothing is a default."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from leasekeeper import CorruptState, InDoubt, Keeper, Quarantined, StepsOpen, effect
from leasekeeper.protocol import run_keys
from leasekeeper.protocol.receipt import seal
from leasekeeper.testing import EtcdServer
from tests.raw import RawEtcd
from tests.tampering import KEY, State, World, refused


@pytest.fixture
def keeper(etcd: EtcdServer, namespace: str) -> Iterator[Keeper]:
    """A keeper of its own namespace."""
    with Keeper(etcd.endpoint, namespace=namespace) as made:
        yield made


@pytest.fixture
def world(etcd: EtcdServer, raw: RawEtcd, namespace: str) -> World:
    """A world of one test."""
    return World(etcd, raw, namespace)


# ---------------------------------------------------------------- one byte


KINDS = {
    "meta": "meta$",
    "head": "head$",
    "the first record": "r/0+1$",
    "a record in the middle": "r/0+7$",
    "the last record": "r/",
    "a step that was done": "step/charge$",
    "a step that was begun": "step/begun$",
    "a checkpoint": "ck/state$",
    "a phase": "ck/ca$",
    "a piece of a large result": "blob/",
}


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
def test_one_byte_of_any_key(world: World, keeper: Keeper, kind: str, signed: bool) -> None:
    """A3: a byte flipped in any key that is decided on is CorruptState, never a default value, and no effect runs."""
    asked: dict[str, Any] = {"signer": KEY, "trust": [KEY]} if signed else {}
    world.begin(keeper, **asked)
    found = [key for key in sorted(world.saved()) if re.search(KINDS[kind], key.removeprefix(world.keys.root))]
    assert found
    stored = world.saved()[found[-1]]
    at = len(stored) // 2
    world.raw.put(found[-1], stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :])
    refused(world, keeper, **asked)


def test_one_byte_of_the_namespace_and_of_a_tombstone(world: World, keeper: Keeper, raw: RawEtcd) -> None:
    """A3: also of what a run does not keep itself: the identity, and a tombstone of its id."""
    world.begin(keeper)
    for key in (run_keys.identity(world.keys.keys).decode(), world.keys.tomb.decode()):
        stored = next((each.value for each in raw.keys(key)), seal(b'{"at":1,"v":1}', None))
        raw.put(key, stored[:20] + b"~" + stored[21:])
        refused(world, keeper)
        world.put_back({key: stored} if "identity" in key else {}, key)
    world.live(keeper)  # all is as it was: it goes on
    assert [step for step, _ in world.calls] == ["begun", "last"]


# ---------------------------------------------------------------- where steps stand


def deleted(world: World) -> None:
    """The key of a done step goes."""
    world.raw.delete(world.keys.step("charge").decode())


def set_back(world: World) -> None:
    """A done step is begun again, as it was."""
    world.put_pointer("charge", world.pointer("charge").turned("intent"))


def cleared(world: World) -> None:
    """A step that may have been applied is told to be surely not."""
    world.put_pointer("begun", world.pointer("begun").turned("cleared"))


def done(world: World) -> None:
    """A step that was begun is told to be done, with another's outcome."""
    world.put_pointer("begun", world.pointer("begun").turned("done", world.pointer("charge").outcome))


def swapped(world: World) -> None:
    """Two steps that were done change places."""
    one, other = world.pointer("charge"), world.pointer("ship")
    world.put_pointer("charge", other)
    world.put_pointer("ship", one)


def added(world: World) -> None:
    """A step that was never begun is told to be done."""
    world.put_pointer("last", world.pointer("charge"))


def fewer(world: World) -> None:
    """The attempts of a step that was begun are counted down."""
    world.put_pointer("begun", world.pointer("begun")._replace(attempts=0))


@pytest.mark.parametrize("change", [deleted, set_back, cleared, done, swapped, added, fewer])
def test_where_a_step_stands_is_held_against_the_records(
    world: World, keeper: Keeper, change: Callable[[World], None]
) -> None:
    """A3, A5: a step's key deleted, set back, swapped or forged, digest and all, is CorruptState; nothing is called again."""
    world.begin(keeper)
    change(world)
    refused(world, keeper, "step/")


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("change", [deleted, set_back])
def test_where_a_step_stands_is_held_against_the_records_while_the_owner_lives(
    world: World, keeper: Keeper, change: Callable[[World], None], resumed: bool
) -> None:
    """A3, A19: also where that is done under the owner's hands, whether this life has done the step or one before."""
    if resumed:
        world.begin(keeper)
    # A life before has left a step open.
    ends = pytest.raises(StepsOpen) if resumed else nullcontext()
    with ends, keeper.run("order", id="1", signer=None) as run:
        if not resumed:
            run.do("charge", world.plain)
            world.calls.clear()
        change(world)
        if resumed:
            # The outcome itself is read ahead, and its record is whole: what the step's key says does not matter.
            assert run.do("charge", world.plain) == "charge"
        else:
            with pytest.raises(CorruptState, match="step/charge"):
                run.do("charge", world.plain)
        assert world.calls == []


def test_arguments_and_key_of_a_step_are_those_of_its_intent(world: World, keeper: Keeper) -> None:
    """A18: an idempotency key that somebody writes into a step's key is not sent: the intent has another."""
    world.begin(keeper)
    world.put_pointer("begun", world.pointer("begun")._replace(idem="f" * 32))
    with pytest.raises(CorruptState, match="its intent"):
        world.live(keeper)
    assert world.calls == []


def test_a_key_does_not_become_younger(world: World, keeper: Keeper) -> None:
    """A18: how old an idempotency key is, the record of its first intent tells as well; forged younger, it is InDoubt."""
    calls: list[str] = []

    @effect(dedupes=True, key_ttl="3s")
    def send(step: Any) -> None:
        calls.append(step.key)
        raise ConnectionError

    with pytest.raises(ConnectionError), keeper.run("order", id="1", signer=None) as run:
        run.do("send", send)
    time.sleep(2.6)  # beyond 0.8 of it
    world.put_pointer("send", world.pointer("send")._replace(at_ms=int(time.time() * 1000)))
    with pytest.raises(InDoubt), keeper.run("order", id="1", signer=None) as run:
        run.do("send", send)
    assert calls == ["send"]


# ---------------------------------------------------------------- the head


@pytest.mark.parametrize(
    "change",
    [{"status": "finished"}, {"status": "quarantined"}, {"done": 0}, {"doubts": ("begun",)}, {"gen": 2}, {"seq": 4}],
    ids=lambda change: next(iter(change)) + "=" + str(next(iter(change.values()))),
)
def test_a_head_is_held_against_the_records(world: World, keeper: Keeper, change: dict[str, Any]) -> None:
    """A3, A22: a head that says what the records do not, digest and all, is CorruptState."""
    world.begin(keeper)
    world.put_head(world.head._replace(**change))
    refused(world, keeper)


def test_a_quarantine_is_not_lifted_by_hand(world: World, keeper: Keeper) -> None:
    """A25: a head written back to running does not try a run that its records have put aside."""
    world.begin(keeper)
    with pytest.raises(Quarantined), keeper.run("order", id="1", signer=None, restarts=0):
        pass
    world.put_head(world.head._replace(status="running", restarts=0, due=()))
    refused(world, keeper, "head")


@pytest.mark.parametrize("left", ["records", "everything but the head", "everything but meta"])
def test_a_run_is_not_begun_among_what_is_left_of_another(world: World, keeper: Keeper, left: str) -> None:
    """A3: head or first facts gone while records are there is CorruptState, at once, not another beginning."""
    world.begin(keeper)
    if left != "everything but meta":
        world.raw.delete(world.keys.head.decode())
    if left != "everything but the head":
        world.raw.delete(world.keys.meta.decode())
    refused(world, keeper, "not there|is gone")


# ---------------------------------------------------------------- checkpoints


def test_a_checkpoint_that_is_gone_is_no_default_value(world: World, keeper: Keeper) -> None:
    """A3: a deleted checkpoint, or phase, is CorruptState, not None or the first phase."""
    for name in ("state", "ca"):
        world.begin(keeper)
        saved = world.saved()
        world.raw.delete(world.keys.checkpoint(name).decode())
        refused(world, keeper, f"ck/{name}.*gone")
        world.put_back(saved)


def test_a_checkpoint_is_not_put_back(world: World, keeper: Keeper) -> None:
    """B8, A22: an older state of a checkpoint, just as it was written once, is CorruptState."""
    key = world.keys.checkpoint("state").decode()
    with keeper.run("order", id="1", signer=None) as run:
        state = run.checkpoint("state", State)
        state.commit(paid=1)
        older = world.saved()[key]
        state.commit(paid=2)
        world.raw.put(key, older)
        with pytest.raises(CorruptState, match="put back"):
            state.read()  # under the owner's hands
    with keeper.run("order", id="1", signer=None) as run, pytest.raises(CorruptState, match="put back"):
        run.checkpoint("state", State)


def test_checkpoints_do_not_change_places(world: World, keeper: Keeper) -> None:
    """A5: two checkpoints of one run, and one of two runs, swapped as they are: CorruptState."""
    for id_ in ("1", "2"):
        with keeper.run("order", id=id_, signer=None) as run:
            run.checkpoint("state", State).commit(paid=int(id_))
            run.checkpoint("other", State).commit(paid=3)
    one, other = (world.keys.checkpoint(name).decode() for name in ("state", "other"))
    saved = world.saved()
    for swap in ({one: saved[other], other: saved[one]}, {one: world.raw.keys(one.replace("/1/", "/2/"))[0].value}):
        for key, value in swap.items():
            world.raw.put(key, value)
        with keeper.run("order", id="1", signer=None) as run, pytest.raises(CorruptState):
            run.checkpoint("state", State)
        world.put_back(saved)
