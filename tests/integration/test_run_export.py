"""Exports of real runs: what is in etcd is in the file, the file tells of every tampering there, and rebuilds the state."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import Keeper
from leasekeeper.errors import ConfigError
from leasekeeper.protocol.head import read_head
from leasekeeper.protocol.keys import Keys
from leasekeeper.protocol.receipt import digest, read_receipt
from leasekeeper.protocol.replay import Replay
from leasekeeper.protocol.run_keys import RunKeys, RunName
from leasekeeper.run_errors import NotApplied
from leasekeeper.runs.blobs import DirectoryBlobs
from leasekeeper.runs.export import Blob, Record, read_export, state_at, verify_export
from leasekeeper.runs.exporting import export_run
from leasekeeper.runs.run import Run
from leasekeeper.signing import HmacKey, Keyring
from tests.raw import RawEtcd

KEY = HmacKey("k1", b"a secret that nobody else knows.")
LARGE = "x" * 700_000


@dataclass(frozen=True)
class OrderState:
    """What a run keeps."""

    paid: int = 0


@pytest.fixture
def run_keys(namespace: str) -> RunKeys:
    """The keys of the run that `story` writes."""
    return RunKeys(Keys(namespace), RunName("order", "a/b 42"))


def not_yet() -> None:
    """An effect that surely did nothing."""
    raise NotApplied


def first_life(run: Run) -> None:
    """Some steps, of which the last one fails."""
    run.do("charge", lambda amount: {"charged": amount}, 42)
    run.checkpoint("state", OrderState).commit(paid=42)
    run.phase("ca", {"staged": ["distributed"], "distributed": []}).move("distributed")
    run.do("ship", not_yet)


def story(keeper: Keeper, **asked: Any) -> None:
    """A run with a bit of everything, in two lives, the first of which ends in an error."""
    with pytest.raises(NotApplied), keeper.run("order", id="a/b 42", signer=KEY, trust=[KEY], **asked) as run:
        first_life(run)
    with keeper.run("order", id="a/b 42", signer=KEY, trust=[KEY], **asked) as run:
        assert run.memo("report", lambda: LARGE) == LARGE
        run.checkpoint("state", OrderState).commit(paid=43)


def exported(keeper: Keeper, run_keys: RunKeys, key: HmacKey | None = KEY, **asked: Any) -> bytes:
    """The bytes of an export."""
    stream = io.BytesIO()
    export_run(keeper._core, run_keys, stream, key, **asked)
    return stream.getvalue()


def found(data: bytes) -> tuple[int, int | None, str | None]:
    """The part of a verdict that a program acts on."""
    verdict = verify_export(io.BytesIO(data), Keyring(KEY))
    return verdict.verified, verdict.bad, verdict.kind


def records_of(raw: RawEtcd, run_keys: RunKeys) -> list[tuple[str, bytes]]:
    """The records as they stand in etcd, in the order of their keys."""
    return sorted((key.key, key.value) for key in raw.keys(run_keys.records.decode()))


def test_an_export_holds_what_etcd_holds(keeper: Keeper, raw: RawEtcd, run_keys: RunKeys, tmp_path: Path) -> None:
    """A1, A20: every record byte by byte, the head, and large results; it verifies, is complete, and nobody was disturbed."""
    story(keeper)
    path = tmp_path / "run.jsonl"
    footer = export_run(keeper._core, run_keys, path, KEY)
    stored = [value for _, value in records_of(raw, run_keys)]
    with path.open("rb") as stream:
        export = read_export(stream)
        lines = list(export)
    assert [line.stored for line in lines if isinstance(line, Record)] == stored
    assert [line.data for line in lines if isinstance(line, Blob)] == [f'"{LARGE}"'.encode()]
    assert (footer.seq, footer.hash) == (len(stored), digest(stored[-1]))
    assert export.header.head == raw.keys(run_keys.head.decode())[0].value
    assert (export.header.workflow, export.header.id, export.header.gen) == ("order", "a/b 42", 1)
    with path.open("rb") as stream:
        verdict = verify_export(stream, Keyring(KEY), namespace_id=export.header.namespace_id, run=("order", "a/b 42"))
    assert (verdict.kind, verdict.verified, verdict.complete, verdict.keys) == (None, len(stored), True, ("k1",))


def test_an_export_rebuilds_the_state_byte_by_byte(keeper: Keeper, raw: RawEtcd, run_keys: RunKeys) -> None:
    """B14: replayed from the records alone: checkpoints and phases are etcd's very bytes, steps and status the same."""
    story(keeper)
    data = exported(keeper, run_keys)
    receipts: list[Any] = []
    replay = Replay()
    for line in read_export(io.BytesIO(data)):
        if isinstance(line, Record):
            receipts.append(read_receipt(line.stored, "it"))
            replay.add(receipts[-1])
    stored = {key.key: key.value for key in raw.keys(run_keys.checkpoints.decode())}
    assert {run_keys.checkpoint(name).decode(): value for name, value in replay.checkpoint_bytes().items()} == stored
    state = state_at(io.BytesIO(data), len(receipts), Keyring(KEY))
    assert state == replay.state()
    assert state["status"] == read_head(raw.keys(run_keys.head.decode())[0].value, "head").status == "finished"
    pointers = raw.keys(run_keys.steps.decode())
    assert state["steps"] == {
        run_keys.step_of(each.key.encode()): json.loads(each.value)["body"]["state"] for each in pointers
    }
    assert state["steps"] == {"charge": "done", "ship": "cleared", "report": "done"}
    assert (state["checkpoints"], state["phases"]) == ({"state": {"paid": 43}}, {"ca": "distributed"})
    # And as it was when the first life ended.
    failed = next(receipt.seq for receipt in receipts if receipt.kind == "failed")
    before = state_at(io.BytesIO(data), failed, Keyring(KEY))
    assert before["checkpoints"] == {"state": {"paid": 42}}
    assert before["status"] == "running"


@pytest.mark.parametrize("at", [1, 3, 5])
def test_tampering_in_etcd_is_told_by_the_export(keeper: Keeper, raw: RawEtcd, run_keys: RunKeys, at: int) -> None:
    """A5: overwrite, delete, swap, cut off, set the head back: the first bad record is named in each case."""
    story(keeper)
    records = records_of(raw, run_keys)
    count = len(records)
    assert found(exported(keeper, run_keys)) == (count, None, None)
    (key, stored), (other, other_stored) = records[at - 1], records[at]

    raw.put(key, stored.replace(b'"holder":"', b'"holder":"x'))
    assert found(exported(keeper, run_keys)) == (at - 1, at, "corrupt")
    raw.put(key, b"\xff\n")
    assert found(exported(keeper, run_keys)) == (at - 1, at, "corrupt")
    raw.delete(key)
    assert found(exported(keeper, run_keys)) == (at - 1, at, "removed")
    raw.put(key, other_stored)
    raw.put(other, stored)
    assert found(exported(keeper, run_keys)) == (at - 1, at, "swapped")
    raw.put(key, stored)
    raw.put(other, other_stored)
    assert found(exported(keeper, run_keys)) == (count, None, None)

    for cut, _ in records[at:]:
        raw.delete(cut)
    assert found(exported(keeper, run_keys)) == (at, at + 1, "truncated")
    for cut, value in records[at:]:
        raw.put(cut, value)
    head = raw.keys(run_keys.head.decode())[0].value
    back = read_head(head, "head").after(at, digest(stored), 1, 1).stored()
    raw.put(run_keys.head.decode(), back)
    assert found(exported(keeper, run_keys)) == (at, at + 1, "truncated")
    raw.delete(run_keys.head.decode())
    assert found(exported(keeper, run_keys)) == (count, None, "corrupt")


def test_large_results_that_are_kept_elsewhere_are_exported(keeper: Keeper, run_keys: RunKeys, tmp_path: Path) -> None:
    """With the blob store at hand they are in the file; without it left out; a damaged one spoils its record."""
    blobs = DirectoryBlobs(tmp_path)
    story(keeper, blobs=blobs)
    data = exported(keeper, run_keys, blobs=blobs)
    assert [line.data for line in read_export(io.BytesIO(data)) if isinstance(line, Blob)] == [f'"{LARGE}"'.encode()]
    without = exported(keeper, run_keys)
    assert not [line for line in read_export(io.BytesIO(without)) if isinstance(line, Blob)]
    assert found(without)[2] is None


def test_a_damaged_piece_spoils_its_record(keeper: Keeper, raw: RawEtcd, run_keys: RunKeys) -> None:
    """A large result in etcd of which a piece was changed or removed is told with the record that names it."""
    story(keeper)
    data = exported(keeper, run_keys)
    seq = next(
        number
        for number, line in enumerate((line for line in read_export(io.BytesIO(data)) if isinstance(line, Record)), 1)
        if b'"blob":{"digest"' in line.stored
    )
    pieces = raw.keys(f"{run_keys.root}blob/")
    assert len(pieces) > 1
    raw.put(pieces[1].key, b"other")
    assert found(exported(keeper, run_keys)) == (seq - 1, seq, "corrupt")
    raw.delete(pieces[1].key)
    assert found(exported(keeper, run_keys)) == (seq - 1, seq, "corrupt")


def test_a_run_is_exported_while_it_goes_on(keeper: Keeper, run_keys: RunKeys) -> None:
    """An owned run is exported as it stood at one moment, and its owner goes on."""
    with keeper.run("order", id="a/b 42", signer=KEY, trust=[KEY]) as run:
        for number in range(3):
            run.do(f"step {number}", lambda: 1)
            assert found(exported(keeper, run_keys)) == (run.last().seq, None, None)
        last = run.last().seq
    assert found(exported(keeper, run_keys)) == (last + 1, None, None)


def test_a_run_that_does_not_exist_is_not_exported(keeper: Keeper, run_keys: RunKeys, tmp_path: Path) -> None:
    """It is a ConfigError that names it, and no file is left."""
    with pytest.raises(ConfigError, match=r"order/a%2Fb 42"):
        export_run(keeper._core, run_keys, tmp_path / "run.jsonl")
    assert list(tmp_path.iterdir()) == []
