"""Runs exchanged, copied, forged, cut off and deleted: what shows, and what a chain alone cannot show.

That is shown by an anchor, and its harm is bounded by idempotency keys that stay the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leasekeeper import CorruptState, Keeper, RunRewound
from leasekeeper.protocol import run_keys
from leasekeeper.protocol.receipt import Draft, Writer, digest, read_receipt, seal, signed_part
from leasekeeper.protocol.run_keys import RunKeys, RunName
from leasekeeper.runs.anchor import FileAnchor
from leasekeeper.testing import EtcdServer
from tests.raw import RawEtcd
from tests.support import until
from tests.tampering import KEY, World, refused, tampered_live


@pytest.fixture
def world(etcd: EtcdServer, raw: RawEtcd, namespace: str) -> World:
    """A world of one test."""
    return World(etcd, raw, namespace)


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
    refused(world, keeper, "identity: it is not there, and runs are")
    assert raw.keys(run_keys.identity(world.keys.keys).decode()) == []
    with pytest.raises(CorruptState, match="identity: it is not there"):
        keeper.resolve("order/1", "begun", applied=True, evidence="looked", signer=None)
    with pytest.raises(KeyError), keeper.run("order", id="2", signer=None):
        raise KeyError  # a new one is begun with a new identity, and the old ones are of another environment then
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
