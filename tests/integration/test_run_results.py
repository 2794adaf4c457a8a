"""Results of steps: what is no JSON, what is large and where it is kept, what is too much, and the same value ever after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leasekeeper import (
    BlobMissing,
    CorruptState,
    Drift,
    Keeper,
    Misuse,
    NotSerialisable,
    RecordTooLarge,
    effect,
)
from leasekeeper.protocol.outcome import RESULT_INLINE_MAX
from leasekeeper.runs.blobs import DirectoryBlobs
from leasekeeper.signing import HmacKey
from tests.effects import Effect, ends_with
from tests.raw import RawEtcd


@pytest.mark.parametrize("result", [object(), {1, 2}, b"x", float("nan"), [object()]])
def test_a_result_that_is_no_json(keeper: Keeper, result: object) -> None:
    """The effect has happened, so the step is done, in every life; who asks is told why there is no result."""
    made = Effect(result)
    for _ in range(2):
        with (
            ends_with(NotSerialisable, match="step 's' of order/1 is done"),
            keeper.run("order", id="1", signer=None) as run,
        ):
            try:
                run.do("s", made)
            finally:
                assert [step.state for step in run.steps()] == ["done"]
    assert len(made.calls) == 1


@pytest.mark.parametrize("where", ["etcd", "directory"])
@pytest.mark.parametrize(
    "size", [RESULT_INLINE_MAX - 2, RESULT_INLINE_MAX - 1, 256 * 1024 - 2, 256 * 1024 - 1, 1_500_000]
)
def test_large_results(keeper: Keeper, raw: RawEtcd, namespace: str, tmp_path: Path, size: int, where: str) -> None:
    """A result larger than a record holds comes back whole, from pieces or a directory; one that fits stands in its record."""
    blobs = DirectoryBlobs(tmp_path) if where == "directory" else None
    made = Effect("x" * size)
    for life in range(2):
        with ends_with(KeyError), keeper.run("order", id="1", signer=None, blobs=blobs) as run:
            assert run.do("s", made) == "x" * size
            raise KeyError(life)
    assert len(made.calls) == 1
    pieces = raw.keys(f"leasekeeper/{namespace}/run/order/1/blob/")
    inline = size + 2 <= RESULT_INLINE_MAX
    assert len(pieces) == (0 if inline or blobs else -(-(size + 2) // (256 * 1024)))
    assert bool(list(tmp_path.iterdir())) == (where == "directory" and not inline)


def test_a_result_in_a_store_that_was_not_given_again(keeper: Keeper, tmp_path: Path) -> None:
    """A life without the blob store of the one before is told to give it: nothing was damaged, and nothing is called."""
    made = Effect("x" * 1_500_000)
    with ends_with(KeyError), keeper.run("order", id="1", signer=None, blobs=DirectoryBlobs(tmp_path)) as run:
        run.do("s", made)
        raise KeyError
    (blob,) = (file.name for file in tmp_path.rglob("*") if file.is_file())
    with ends_with(BlobMissing, match=f"blobs=.*{blob}"), keeper.run("order", id="1", signer=None) as run:
        run.do("s", made)
    assert len(made.calls) == 1


def test_a_result_that_is_too_large_for_everything(keeper: Keeper) -> None:
    """More than 8 MiB: the step is done, in every life, and who asks is told the bound."""
    made = Effect("x" * (8 * 1024 * 1024))
    for _ in range(2):
        with (
            ends_with(RecordTooLarge, match="step 's' of order/1 is done"),
            keeper.run("order", id="1", signer=None) as run,
        ):
            run.do("s", made)
    assert len(made.calls) == 1


def test_the_same_value_at_first_and_ever_after(keeper: Keeper) -> None:
    """B2: what a step returns is decoded from what is recorded, also the first time."""
    made = Effect({"tuple": (1, 2), "big": 2**60, "float": 1.0, "text": "ä"})
    found = []
    for _ in range(2):
        with ends_with(KeyError), keeper.run("order", id="1", signer=None) as run:
            found.append(run.do("s", made))
            found.append(run.do("s", made))
            raise KeyError
    assert found == [{"tuple": [1, 2], "big": str(2**60), "float": 1, "text": "ä"}] * 4


# ---------------------------------------------------------------- an operator gives one


@pytest.mark.parametrize("signer", [None, HmacKey("k1", b"k" * 32)], ids=["unsigned", "signed"])
@pytest.mark.parametrize("result", [object(), "x" * (8 * 1024 * 1024)], ids=["no JSON", "too large"])
def test_an_operator_gives_a_step_its_result(keeper: Keeper, result: object, signer: HmacKey | None) -> None:
    """A step that is done without a result stops each life that needs it, until an operator says what it returns."""
    made, after = Effect(result), Effect(2)
    for _ in range(2):
        with (
            ends_with(
                (NotSerialisable, RecordTooLarge),
                "`leasekeeper runs resolve order/1 s --applied --result JSON --evidence TEXT`",
            ),
            keeper.run("order", id="1", signer=signer) as run,
        ):
            run.do("s", made)
    said = keeper.resolve("order/1", "s", applied=True, evidence="the bank's list", result={"id": 7}, signer=signer)
    assert said.data["instead"] == 3
    for _ in range(2):  # as recorded, and once more by who takes over after that
        with ends_with(KeyError), keeper.run("order", id="1", signer=signer) as run:
            assert run.do("s", made) == {"id": 7}
            assert run.do("t", after) == 2
            raise KeyError
    with keeper.run("order", id="1", signer=signer) as run:
        assert run.do("s", made) == {"id": 7}
        assert run._life.log.head.done == 2
    assert (len(made.calls), len(after.calls)) == (1, 1)


def test_who_owns_the_run_meanwhile_gets_it_too(keeper: Keeper) -> None:
    """Said while the run goes on: its owner has it with the next record, and what the postcondition says of it counts."""
    good = [True]
    made = effect(lambda step: object())
    made.verify(lambda step, result: good[0])
    with ends_with(Drift), keeper.run("order", id="1", signer=None) as run:
        with pytest.raises(NotSerialisable):
            run.do("s", made)
        keeper.resolve("order/1", "s", applied=True, evidence="looked", result=7, signer=None)
        run.do("t", Effect())
        assert run.do("s", made) == 7
        good[0] = False
        run.do("s", made)


def test_a_result_that_a_store_has_lost(keeper: Keeper, raw: RawEtcd, tmp_path: Path) -> None:
    """A result that is in no store any more can be given anew once that was seen; one that is there stays, whatever is said."""
    made, store = Effect("x" * 1_500_000), DirectoryBlobs(tmp_path)
    with ends_with(KeyError), keeper.run("order", id="1", signer=None, blobs=store) as run:
        run.do("s", made)
        raise KeyError
    said: dict[str, Any] = {"applied": True, "evidence": "the disk is gone", "result": "short", "signer": None}
    revision = raw.revision()
    for blobs in (None, store):
        with ends_with(Misuse, "kept outside of etcd, as "):
            keeper.resolve("order/1", "s", blobs=blobs, **said)
    assert raw.revision() == revision
    for file in tmp_path.rglob("*"):
        if file.is_file():
            file.unlink()
    keeper.resolve("order/1", "s", blobs=store, **said)
    with keeper.run("order", id="1", signer=None) as run:
        assert run.do("s", made) == "short"
    assert len(made.calls) == 1


@pytest.mark.parametrize("piece", [0, 3])
def test_a_result_of_which_a_piece_is_lost(keeper: Keeper, raw: RawEtcd, namespace: str, piece: int) -> None:
    """Pieces in etcd that are no longer whole are no result: it can be given anew."""
    made = Effect("x" * 1_500_000)
    with ends_with(KeyError), keeper.run("order", id="1", signer=None) as run:
        run.do("s", made)
        raise KeyError
    raw.delete(raw.keys(f"leasekeeper/{namespace}/run/order/1/blob/")[piece].key)
    with ends_with((BlobMissing, CorruptState)), keeper.run("order", id="1", signer=None) as run:
        run.do("s", made)
    keeper.resolve("order/1", "s", applied=True, evidence="looked", result="short", signer=None)
    with keeper.run("order", id="1", signer=None) as run:
        assert run.do("s", made) == "short"
    assert len(made.calls) == 1


@pytest.mark.parametrize("result", [1, "x" * 1_500_000], ids=["in its record", "in pieces"])
@pytest.mark.parametrize("applied", [True, False])
def test_a_result_that_is_there_stays(keeper: Keeper, raw: RawEtcd, result: Any, applied: bool) -> None:
    """An operator cannot change what a step came to, nor have it called again: nothing is written."""
    with ends_with(KeyError), keeper.run("order", id="1", signer=None) as run:
        run.do("s", Effect(result))
        raise KeyError
    revision = raw.revision()
    with ends_with(Misuse, "nothing to resolve"):
        keeper.resolve("order/1", "s", applied=applied, evidence="looked", signer=None)
    assert raw.revision() == revision


def test_a_step_without_a_result_is_not_called_again(keeper: Keeper, raw: RawEtcd) -> None:
    """That it was not applied is no word on a step that is done."""
    with ends_with(NotSerialisable), keeper.run("order", id="1", signer=None) as run:
        run.do("s", Effect(object()))
    revision = raw.revision()
    with ends_with(Misuse, "nothing to resolve"):
        keeper.resolve("order/1", "s", applied=False, evidence="looked", signer=None)
    assert raw.revision() == revision
    keeper.resolve("order/1", "s", applied=True, evidence="looked", result=1, signer=None)
    with ends_with(Misuse, "nothing to resolve"):
        keeper.resolve("order/1", "s", applied=True, evidence="looked", result=2, signer=None)
