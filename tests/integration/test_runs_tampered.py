"""What somebody does to a run by etcd's own tools: no effect runs on it, and where it cannot be told, that is said here too.

Everything is changed below the library, digest and all where that matters; `seal` and the records' own words are known to
everybody. What a chain alone cannot show (its end cut off, the whole of it gone) is shown by an anchor, and its harm is bounded
by idempotency keys that stay the same.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import CorruptState, InDoubt, Keeper, Quarantined, RunRewound, effect
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import run_keys
from leasekeeper.protocol.head import Head, read_head
from leasekeeper.protocol.keys import Keys
from leasekeeper.protocol.pointer import Pointer, read_pointer
from leasekeeper.protocol.receipt import Draft, Writer, digest, read_receipt, seal, signed_part
from leasekeeper.protocol.run_keys import RunKeys, RunName
from leasekeeper.runs.anchor import FileAnchor
from leasekeeper.runs.run import Run
from leasekeeper.signing import HmacKey
from leasekeeper.testing import EtcdServer
from tests.raw import RawEtcd
from tests.support import until

KEY = HmacKey("k1", b"a secret that nobody else knows.")
LARGE = "x" * 100_000
RUN = RunName("order", "1")
PHASES = {"staged": ["live"], "live": []}


@dataclass(frozen=True)
class State:
    """What a run keeps."""

    paid: int = 0


@dataclass(frozen=True)
class Other:
    """Something else that it keeps."""

    paid: int = 0


class World:
    """Who is called, with which keys; what etcd holds; and a program that does one run."""

    def __init__(self, etcd: EtcdServer, raw: RawEtcd, namespace: str) -> None:
        self.etcd, self.raw, self.namespace = etcd, raw, namespace
        self.calls: list[tuple[str, str]] = []
        self.keys = RunKeys(Keys(namespace), RUN)
        self.breaks = True

        @effect(dedupes=True, key_ttl="24h")
        def begun(step: Any) -> str:
            self.calls.append((step.key, step.idempotency_key))
            if self.breaks:
                raise ConnectionError("nobody knows")
            return "done"

        @effect(dedupes=True, key_ttl="24h")
        def plain(step: Any) -> str:
            self.calls.append((step.key, step.idempotency_key))
            return str(step.key)

        self.begun, self.plain = begun, plain

    def program(self, run: Run) -> None:
        """The same in every life; the first one ends in ``begun``."""
        state, phase = run.checkpoint("state", State), run.phase("ca", PHASES)
        run.do("charge", self.plain)
        if state.value is None:
            state.commit(paid=1)
            state.commit(paid=2)
        if phase.now() == "staged":
            phase.move("live")
        run.memo("large", lambda: LARGE)
        run.do("ship", self.plain)
        run.do("begun", self.begun)
        run.do("last", self.plain)

    def live(self, keeper: Keeper, id: str = "1", **asked: Any) -> None:  # noqa: A002 - the run's own word
        """One life of the program."""
        with keeper.run("order", id=id, **{"signer": None, **asked}) as run:
            self.program(run)

    def begin(self, keeper: Keeper, id: str = "1", **asked: Any) -> None:  # noqa: A002 - the run's own word
        """A life that ends where ``begun`` breaks."""
        self.breaks = True
        with pytest.raises(ConnectionError):
            self.live(keeper, id, **asked)
        self.breaks = False
        self.calls.clear()

    # ------------------------------------------------------------ touching

    def saved(self, prefix: str | None = None) -> dict[str, bytes]:
        """What stands below a prefix; default: the run."""
        return {key.key: key.value for key in self.raw.keys(prefix or self.keys.root)}

    def put_back(self, saved: dict[str, bytes], prefix: str | None = None) -> None:
        """Just that stands there, and nothing else."""
        for key in self.saved(prefix):
            if key not in saved:
                self.raw.delete(key)
        for key, value in saved.items():
            self.raw.put(key, value)

    def pointer(self, step: str) -> Pointer:
        """Where a step stands."""
        stored = self.saved()[self.keys.step(step).decode()]
        return read_pointer(pb.KeyValue(key=b"step", value=stored))

    def put_pointer(self, step: str, pointer: Pointer) -> None:
        """Write it, digest and all."""
        self.raw.put(self.keys.step(step).decode(), pointer.stored())

    @property
    def head(self) -> Head:
        """The head."""
        return read_head(self.saved()[self.keys.head.decode()], "the head")

    def put_head(self, head: Head) -> None:
        """Write it, digest and all."""
        self.raw.put(self.keys.head.decode(), head.stored())


@pytest.fixture
def keeper(etcd: EtcdServer, namespace: str) -> Iterator[Keeper]:
    """A keeper of its own namespace."""
    with Keeper(etcd.endpoint, namespace=namespace) as made:
        yield made


@pytest.fixture
def world(etcd: EtcdServer, raw: RawEtcd, namespace: str) -> World:
    """A world of one test."""
    return World(etcd, raw, namespace)


def refused(world: World, keeper: Keeper, match: str | None = None, **asked: Any) -> None:
    """The next life ends in CorruptState, nobody was called, and nothing was written."""
    before = world.saved()
    with pytest.raises(CorruptState, match=match):
        world.live(keeper, **asked)
    assert world.calls == []
    after = world.saved()
    steps = world.keys.steps.decode()
    assert {key: value for key, value in after.items() if key.startswith(steps)} == {
        key: value for key, value in before.items() if key.startswith(steps)
    }


def tampered_live(world: World, keeper: Keeper, **asked: Any) -> BaseException | None:
    """A life on what was tampered with: what it ended in."""
    try:
        world.live(keeper, **asked)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    return None


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
    with keeper.run("order", id="1", signer=None) as run:
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
    """RUNS.md: how old an idempotency key is, the record of its first intent tells as well; forged younger, it is InDoubt."""
    calls: list[str] = []

    @effect(dedupes=True, key_ttl="1s")
    def send(step: Any) -> None:
        calls.append(step.key)
        raise ConnectionError

    with pytest.raises(ConnectionError), keeper.run("order", id="1", signer=None) as run:
        run.do("send", send)
    time.sleep(1.0)
    world.put_pointer("send", world.pointer("send")._replace(at_ms=int(time.time() * 1000) + 500))
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


# ---------------------------------------------------------------- runs


@pytest.mark.parametrize("what", ["meta", "head", "r/", "step/", ""])
def test_two_runs_do_not_change_places(world: World, keeper: Keeper, what: str) -> None:
    """A5: first facts, heads, records, steps, or all of two runs swapped key by key: CorruptState in both."""
    for id_ in ("1", "2"):
        world.begin(keeper, id_, input={"id": id_})
    one = RunKeys(world.keys.keys, RunName("order", "1")).root
    other = RunKeys(world.keys.keys, RunName("order", "2")).root
    mine = {key: value for key, value in world.saved(one).items() if key.startswith(one + what)}
    theirs = {key: value for key, value in world.saved(other).items() if key.startswith(other + what)}
    for source, here, there in ((mine, one, other), (theirs, other, one)):
        for key, value in source.items():
            world.raw.put(there + key.removeprefix(here), value)
    for id_ in ("1", "2"):
        error = tampered_live(world, keeper, id=id_)
        assert isinstance(error, CorruptState), error
    assert world.calls == []


def test_a_run_of_another_namespace(world: World, keeper: Keeper, etcd: EtcdServer, namespace: str) -> None:
    """A22: a run copied from one namespace to another, key by key, is of another environment there."""
    world.begin(keeper)
    with Keeper(etcd.endpoint, namespace=namespace + "-staging") as staging:
        world.live(staging, id="2")
        world.calls.clear()
        for key, value in world.saved().items():
            world.raw.put(key.replace(f"/{namespace}/", f"/{namespace}-staging/"), value)
        with pytest.raises(CorruptState, match="another environment"):
            world.live(staging)
    assert world.calls == []


def test_an_identity_that_is_gone_is_not_made_anew_for_old_runs(world: World, keeper: Keeper, raw: RawEtcd) -> None:
    """A18, A22: with another secret the idempotency keys would be others: a run that was begun is not resumed."""
    world.begin(keeper)
    raw.delete(run_keys.identity(world.keys.keys).decode())
    refused(world, keeper, "another environment")


def test_a_run_that_workers_were_made_to_overlook(world: World, keeper: Keeper, raw: RawEtcd) -> None:
    """The list of unfinished runs is a hint: without its entry a worker overlooks a run; whoever opens it puts it back."""
    world.begin(keeper)
    raw.delete(world.keys.unfinished.decode())
    with pytest.raises(KeyError), keeper.run("order", id="1", signer=None):
        raise KeyError
    assert raw.keys(world.keys.unfinished.decode())
    with keeper.worker({"order": world.program}, every=0.2, signer=None) as worker:
        until(lambda: worker.finished == 1)
    assert [step for step, _ in world.calls] == ["begun", "last"]


# ---------------------------------------------------------------- signatures


def forged(world: World, **more: Any) -> None:
    """One more record, chained and unsigned, as somebody without the key writes it: the step that was begun is done."""
    last = read_receipt(world.saved()[world.keys.record(world.head.seq).decode()], "last")
    writer = Writer(
        workflow="order",
        id="1",
        gen=1,
        namespace_id=last.namespace_id,
        token=last.token,
        claim=last.claim,
        holder=last.holder,
        life=last.life,
    )
    seq = last.seq + 1
    stored = writer.seal(Draft("outcome", "begun", b'{"result":"forged"}', "f" * 32), seq=seq, prev=last.hash, at_ms=1)
    head = world.head.after(seq, digest(stored), 1, len(stored)).one_more()
    world.raw.put(world.keys.record(seq).decode(), stored)
    world.put_pointer("begun", world.pointer("begun").turned("done", seq))
    world.put_head(head._replace(**more))


@pytest.mark.parametrize("more", [{}, {"key_id": ""}], ids=["", "and the head says that nobody signs"])
def test_an_outcome_is_not_forged_at_the_end_of_a_signed_run(
    world: World, keeper: Keeper, more: dict[str, Any]
) -> None:
    """A5, A22: whoever has no key adds nothing to a run that is signed, whatever its head says."""
    world.begin(keeper, signer=KEY, trust=[KEY])
    forged(world, **more)
    refused(world, keeper, "not signed", signer=KEY, trust=[KEY])


def test_a_record_of_a_signed_run_is_not_written_anew(world: World, keeper: Keeper) -> None:
    """A5: changed with all hashes after it to match: the last signature is of other bytes."""
    world.begin(keeper, signer=KEY, trust=[KEY])
    head, saved = world.head, world.saved()
    prev, size = "0" * 64, 0
    for seq in range(1, head.seq + 1):
        stored = saved[world.keys.record(seq).decode()]
        body, before = signed_part(stored), read_receipt(stored, "it")
        again = body.replace(before.prev.encode(), prev.encode()).replace(b'"result":"charge"', b'"result":"cheap!"')
        tail = stored[-len(f'"key":"k1","sig":"{before.signature}"}}') :]
        stored = seal(again, None)[: -len(b'"key":"","sig":""}')] + tail
        world.raw.put(world.keys.record(seq).decode(), stored)
        prev, size = digest(stored), size + len(stored)
    world.put_head(head._replace(hash=prev, size=size))
    refused(world, keeper, signer=KEY, trust=[KEY])


# ---------------------------------------------------------------- what a chain alone cannot show


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
def test_an_end_that_was_cut_off(world: World, keeper: Keeper, tmp_path: Path, signed: bool) -> None:
    """A5: an older state of a run put back by hand is a good one by itself; an anchor shows it, and nothing is called.

    Without one, what was done since is done again, with the same idempotency keys: also where the run is signed.
    """
    asked: dict[str, Any] = {"signer": KEY, "trust": [KEY]} if signed else {}
    anchor = FileAnchor(tmp_path / "anchor")
    with pytest.raises(KeyError), keeper.run("order", id="1", **{"signer": None, **asked}, anchors=[anchor]):
        raise KeyError
    older = world.saved()
    world.begin(keeper, anchors=[anchor], **asked)
    world.breaks = False
    world.live(keeper, anchors=[anchor], **asked)
    idems = {step: world.pointer(step).idem for step in ("charge", "ship", "begun", "last")}
    world.calls.clear()
    world.put_back(older)
    with pytest.raises(RunRewound):
        world.live(keeper, anchors=[anchor], **asked)
    assert world.calls == []
    world.live(keeper, **asked)
    assert dict(world.calls) == idems


def test_a_run_that_was_deleted(world: World, keeper: Keeper, tmp_path: Path) -> None:
    """A5: a run of which nothing is left begins anew, with the same idempotency keys; an anchor that knows it says RunRewound."""
    anchor = FileAnchor(tmp_path / "anchor")
    world.begin(keeper, anchors=[anchor])
    before = {step: world.pointer(step).idem for step in ("charge", "ship", "begun")}
    world.put_back({})
    with pytest.raises(RunRewound) as told:
        world.live(keeper, anchors=[anchor])
    assert told.value.have == 0
    assert world.calls == []
    world.live(keeper)
    assert dict(world.calls) == {**dict(world.calls), **before}


def test_a_cut_that_left_something_of_the_end(world: World, keeper: Keeper) -> None:
    """A5: set back without all that goes with it, it shows also without an anchor."""
    world.begin(keeper)
    older = world.saved()
    world.live(keeper)
    world.calls.clear()
    records = {key: value for key, value in older.items() if "/r/" in key or key.endswith("/head")}
    kept = {key: value for key, value in world.saved().items() if "/r/" not in key and not key.endswith("/head")}
    world.put_back({**kept, **records})
    refused(world, keeper, "step/")
    world.put_back(
        {**older, **{key: value for key, value in kept.items() if "/ck/" not in key and "/step/" not in key}}
    )
    world.live(keeper)
