"""Pruning: only what was exported goes, it can end anywhere and be begun again, and an id is never used again in silence."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import AsyncKeeper, ConfigError, CorruptState, Keeper, Misuse, RunPruned
from leasekeeper.protocol import prune as pruning
from leasekeeper.protocol.etcd_pb2 import TxnRequest
from leasekeeper.protocol.plan import Call
from leasekeeper.protocol.prune import Exported, prune
from leasekeeper.protocol.run_keys import RunKeys, RunName
from leasekeeper.runs.effect import effect
from leasekeeper.runs.exported import read_exported
from leasekeeper.testing import EtcdServer
from tests.raw import RawEtcd
from tests.told_runs import RUN, Boom, Hands, breaks, fine, finished, in_doubt


@pytest.fixture
def exported(cli: Any, tmp_path: Path) -> Any:
    """Exports a run, and tells the file."""

    def export(run: str = RUN, name: str = "o-1.jsonl") -> str:
        out = str(tmp_path / name)
        assert cli("runs", "export", run, "--out", out).code == 0
        return out

    return export


def left(hands: Hands) -> list[str]:
    """The keys of the run that are still there."""
    return [key.key.removeprefix(hands.root) for key in hands.raw.keys(hands.root)]


def tomb(hands: Hands) -> dict[str, Any]:
    """What the tombstone says."""
    (key,) = hands.raw.keys(f"leasekeeper/{hands.namespace}/tomb/{hands.run}")
    body: dict[str, Any] = json.loads(key.value)["body"]
    return body


@effect(dedupes=True, key_ttl="24h")
def charge(step: Any) -> str:
    """An effect whose callee remembers its key for a day."""
    return str(step.key)


# ---------------------------------------------------------------- what goes, and what is left


def test_a_pruned_run_is_gone_but_for_its_tombstone(cli: Any, keeper: Keeper, hands: Hands, exported: Any) -> None:
    """Every key goes; the tombstone names generation, last record and hash, and is kept for the longest key_ttl."""
    with keeper.run("order", id="o-1", ttl=5) as run:
        run.do("charge", charge)
        run.do("large", lambda: "x" * 700_000)
    head = json.loads(hands.value("head"))["body"]
    assert any(name.startswith("blob/") for name in left(hands))
    done = cli("runs", "prune", RUN, "--exported", exported(), "-o", "json")
    (pruned,) = done.json["pruned"]
    assert (done.code, pruned["run"], pruned["seq"], pruned["generation"]) == (0, RUN, head["seq"], 1)
    assert left(hands) == []
    assert not hands.raw.keys(f"leasekeeper/{hands.namespace}/unfinished/")
    found = tomb(hands)
    assert (found["gen"], found["seq"], found["hash"]) == (1, head["seq"], head["hash"])
    assert found["keep_until"] - found["at"] == 24 * 3600 * 1000


def test_a_pruned_id_is_not_used_again_in_silence(cli: Any, keeper: Keeper, exported: Any) -> None:
    """RunPruned, also for the same generation; generation=2 begins anew, and can be pruned as well."""
    finished(keeper)
    assert cli("runs", "prune", RUN, "--exported", exported()).code == 0
    for asked in ({}, {"generation": 1}):
        with pytest.raises(RunPruned), keeper.run("order", id="o-1", ttl=5, **asked):  # type: ignore[arg-type]
            pass
    with keeper.run("order", id="o-1", ttl=5, generation=2) as run:
        assert not run.resumed
        run.do("step-0", fine, 0)
    assert cli("runs", "verify", RUN).code == 0
    assert cli("runs", "prune", RUN, "--exported", exported(name="second.jsonl")).code == 0
    with pytest.raises(RunPruned), keeper.run("order", id="o-1", ttl=5, generation=2):
        pass
    with keeper.run("order", id="o-1", ttl=5, generation=3):
        pass


def test_other_runs_are_left_alone(cli: Any, keeper: Keeper, raw: RawEtcd, namespace: str, exported: Any) -> None:
    """A run whose name begins with the pruned one's stays as it is, and so does everything else."""
    finished(keeper)
    finished(keeper, "o-11")
    keeper.halt("mail/*", "x")
    before = {key.key: key.value for key in raw.keys(f"leasekeeper/{namespace}/") if "/order/o-1/" not in key.key}
    assert cli("runs", "prune", RUN, "--exported", exported()).code == 0
    after = {key.key: key.value for key in raw.keys(f"leasekeeper/{namespace}/") if "/tomb/" not in key.key}
    assert after == before


def test_at_most_100_keys_a_transaction(cli: Any, keeper: Keeper, hands: Hands, exported: Any) -> None:
    """A long run goes in several transactions, none with more than 100 deletes."""
    with keeper.run("order", id="o-1", ttl=5) as run:
        for number in range(120):
            run.memo(f"m-{number}", fine, number)
    file = exported()
    keys = RunKeys(keeper._core.ctx.keys, RunName("order", "o-1"))
    sent: list[int] = []

    def counted() -> Any:
        plan = prune(keeper._core.ctx, keys, read_exported(file), keeper._core.until())
        operation = next(plan)
        while True:
            if isinstance(operation, Call) and isinstance(operation.request, TxnRequest):
                sent.append(sum(each.HasField("request_delete_range") for each in operation.request.success))
            result = yield operation
            try:
                operation = plan.send(result)
            except StopIteration as done:
                return done.value

    pruned = keeper._core.run(counted())
    assert pruned.deleted == 2 + 120 * 3 + 2
    assert max(sent) == 100
    assert left(hands) == []


# ---------------------------------------------------------------- what is refused


def test_only_finished_runs(cli: Any, keeper: Keeper, hands: Hands, exported: Any) -> None:
    """A run that is in doubt, or has an owner, is left whole, whatever was exported."""
    in_doubt(keeper, "o-1")
    done = cli("runs", "prune", RUN, "--exported", exported())
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "is in_doubt, not finished" in done.err
    assert "head" in left(hands)
    finished(keeper, "o-2")
    file = exported("order/o-2", "o-2.jsonl")
    with keeper.run("order", id="o-2", ttl=5), pytest.raises(Misuse, match="has an owner"):
        keeper.prune("order/o-2", exported=file)
    assert cli("runs", "verify", "order/o-2").code == 0


def test_only_an_export_of_just_this_head(
    cli: Any, keeper: Keeper, hands: Hands, exported: Any, tmp_path: Path
) -> None:
    """Another run's export, an older one, a cut or touched one, or none at all: nothing is deleted, and it is said why."""
    with pytest.raises(RuntimeError), keeper.run("order", id="o-1", ttl=5):
        raise RuntimeError
    old = exported(name="old.jsonl")
    finished(keeper)
    finished(keeper, "o-2")
    other, good = exported("order/o-2", "other.jsonl"), Path(exported())
    cut, touched = tmp_path / "cut.jsonl", tmp_path / "touched.jsonl"
    cut.write_bytes(b"".join(good.read_bytes().splitlines(keepends=True)[:-2]))
    touched.write_bytes(good.read_bytes().replace(b'"value":1', b'"value":2'))
    before = left(hands)
    for file, code in ((old, 1), (other, 1), (str(cut), 2), (str(touched), 2), (str(tmp_path / "none"), 2)):
        done = cli("runs", "prune", RUN, "--exported", file)
        assert (done.code, done.err.count("\n")) == (code, 1), file
        assert left(hands) == before
    for path in (old, other, str(cut), str(touched)):
        with pytest.raises(ConfigError):
            keeper.prune(RUN, exported=path)
    with pytest.raises(ConfigError, match="a run that is there"):
        keeper.prune("order/none", exported=str(good))
    assert left(hands) == before


def test_a_value_that_only_etcd_has_is_not_thrown_away(keeper: Keeper, hands: Hands, exported: Any) -> None:
    """An export without the large value that a record names, and that is kept in etcd, is no ground to delete it."""
    with keeper.run("order", id="o-1", ttl=5) as run:
        run.do("large", lambda: "x" * 100_000)
    held = read_exported(exported())
    (name,) = {name.split("/")[1] for name in left(hands) if name.startswith("blob/")}
    keys = RunKeys(keeper._core.ctx.keys, RunName("order", "o-1"))
    without = Exported(run=held.run, gen=held.gen, seq=held.seq, hash=held.hash, left_out=frozenset((name,)))
    core = keeper._core
    with pytest.raises(ConfigError, match=name):
        core.run(prune(core.ctx, keys, without, core.until()))
    assert "head" in left(hands)
    assert core.run(prune(core.ctx, keys, held, core.until())).deleted > 0


def test_what_was_damaged_in_etcd_is_not_removed_without_a_word(
    cli: Any, keeper: Keeper, hands: Hands, exported: Any
) -> None:
    """An older good export is no ground to remove what shows that somebody was there; who has looked says --damaged."""
    finished(keeper)
    file = exported()
    hands.raw.put(hands.key(3), "no receipt")
    before = left(hands)
    done = cli("runs", "prune", RUN, "--exported", file)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "record 3 is corrupt" in done.err
    with pytest.raises(CorruptState, match="record 3 is corrupt"):
        keeper.prune(RUN, exported=file)
    assert left(hands) == before
    assert cli("runs", "prune", "--finished-before", "0", "--exported", file, "--damaged").code == 2
    assert cli("runs", "prune", RUN, "--exported", file, "--damaged").code == 0
    assert left(hands) == []


# ---------------------------------------------------------------- ends anywhere


class Killed(BaseException):
    """The process is gone."""


def stopped_after(plan: Any, calls: int) -> Any:
    """A plan whose process is killed once so many of its calls were answered."""
    operation = next(plan)
    for _ in range(calls):
        result = yield operation
        try:
            operation = plan.send(result)
        except StopIteration as done:
            return done.value
    raise Killed


def test_killed_between_any_two_calls(
    cli: Any, keeper: Keeper, hands: Hands, exported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is killed, nobody opens what is left, the head stays until all else is gone, and the next one ends it."""
    monkeypatch.setattr(pruning, "DELETES_MAX", 4)
    core = keeper._core
    for calls in range(1, 40):
        run_id = f"k-{calls}"
        mine = Hands(hands.raw, hands.namespace, f"order/{run_id}")
        finished(keeper, run_id)
        file = exported(mine.run, f"{run_id}.jsonl")
        plan = prune(core.ctx, RunKeys(core.ctx.keys, RunName("order", run_id)), read_exported(file), core.until())
        try:
            core.run(stopped_after(plan, calls))
        except Killed:
            pass
        else:
            break
        there = left(mine)
        assert not there or {"head", "meta"} <= set(there)
        if hands.raw.keys(f"leasekeeper/{hands.namespace}/tomb/{mine.run}"):
            for asked in ({}, {"generation": 2}) if there else ({},):
                with pytest.raises(RunPruned), keeper.run("order", id=run_id, ttl=5, **asked):  # type: ignore[arg-type]
                    pass
        else:
            assert cli("runs", "verify", mine.run).code == 0
        assert cli("runs", "prune", mine.run, "--exported", file).code == 0
        assert left(mine) == []
    else:
        pytest.fail("it never came to its end")
    assert calls > 8


def test_no_word_is_added_to_what_is_being_removed(cli: Any, keeper: Keeper, hands: Hands, exported: Any) -> None:
    """A step that nobody knows the outcome of cannot be resolved any more once the tombstone of its run stands."""
    with keeper.run("order", id="o-1", ttl=5) as run, pytest.raises(Boom):
        run.memo("charge", breaks)
    file = exported()
    core = keeper._core
    plan = prune(core.ctx, RunKeys(core.ctx.keys, RunName("order", "o-1")), read_exported(file), core.until())
    with pytest.raises(Killed):
        core.run(stopped_after(plan, 5))
    assert tomb(hands)
    there = left(hands)
    with pytest.raises(RunPruned):
        keeper.resolve(RUN, "charge", applied=True, evidence="looked")
    assert left(hands) == there
    assert cli("runs", "prune", RUN, "--exported", file).code == 0


@pytest.mark.parametrize("last", [False, True], ids=["first delete", "last delete"])
def test_nothing_of_the_next_generation_is_deleted(keeper: Keeper, hands: Hands, exported: Any, last: bool) -> None:
    """A pruner that was frozen before a transaction, while another ended it and the id was used again, deletes nothing."""
    finished(keeper)
    file = exported()
    core = keeper._core
    keys = RunKeys(core.ctx.keys, RunName("order", "o-1"))

    def is_it(operation: Any) -> bool:
        gone = [each.request_delete_range.key for each in getattr(operation.request, "success", ())]
        return any(gone) and (keys.head in gone) == last

    def frozen() -> Any:
        plan = prune(core.ctx, keys, read_exported(file), core.until())
        operation = next(plan)
        while not is_it(operation):
            operation = plan.send((yield operation))
        keeper.prune(RUN, exported=file)
        finished(keeper, generation=2)
        there.extend(left(hands))
        while True:
            operation = plan.send((yield operation))

    there: list[str] = []
    with pytest.raises(ConfigError, match="generation 2"):
        core.run(frozen())
    assert left(hands) == there
    assert core.run(_steps(core.ctx, keys, core.until())) == ["step-0", "step-1"]


def _steps(ctx: Any, keys: RunKeys, until: float) -> Any:
    from leasekeeper.protocol.steps import step_page

    found, _ = yield from step_page(ctx, keys, None, until)
    return [each.key for each in found]


# ---------------------------------------------------------------- many, and tombstones


def test_all_that_finished_long_enough_ago(cli: Any, keeper: Keeper, exported: Any, tmp_path: Path) -> None:
    """--finished-before takes those that are old enough and exported, and names those that are not."""
    for name in ("o-1", "o-2", "o-3"):
        finished(keeper, name)
    in_doubt(keeper, "o-4")
    for name in ("o-1", "o-2"):
        exported(f"order/{name}", f"{name}.jsonl")
    young = cli("runs", "prune", "--finished-before", "1h", "--exported", str(tmp_path), "-o", "json")
    assert (young.code, young.json["pruned"], young.json["left"]) == (0, [], [])
    done = cli("runs", "prune", "--finished-before", "0", "--exported", str(tmp_path), "-o", "json")
    assert done.code == 1
    assert [one["run"] for one in done.json["pruned"]] == ["order/o-1", "order/o-2"]
    assert [one["run"] for one in done.json["left"]] == ["order/o-3"]
    assert [one["run"] for one in cli("runs", "ls", "-o", "json").json] == ["order/o-3", "order/o-4"]


def test_a_bad_file_beside_good_exports_is_told_and_passed_over(
    cli: Any, keeper: Keeper, exported: Any, tmp_path: Path
) -> None:
    """One damaged export in the directory keeps no other run from being pruned; a file that was named has to be good."""
    for name in ("o-1", "o-2"):
        finished(keeper, name)
        exported(f"order/{name}", f"{name}.jsonl")
    bad = tmp_path / "o-1.jsonl"
    bad.write_bytes(bad.read_bytes()[:-40])
    done = cli("runs", "prune", "--finished-before", "0", "--exported", str(tmp_path), "-o", "json")
    assert done.code == 1
    assert [one["run"] for one in done.json["pruned"]] == ["order/o-2"]
    assert [one["run"] for one in done.json["left"]] == ["order/o-1"]
    assert [one["file"] for one in done.json["unusable"]] == [str(bad)]
    assert "o-1.jsonl is passed over" in done.err
    assert cli("runs", "prune", "order/o-1", "--exported", str(bad)).code == 2


def test_tombstones_go_only_when_their_time_is_over(cli: Any, keeper: Keeper, hands: Hands, exported: Any) -> None:
    """--tombs removes what no callee remembers any more; one of a day, and one that cannot be read, stay."""
    finished(keeper)
    with keeper.run("order", id="o-2", ttl=5) as run:
        run.do("charge", charge)
    for run_id in ("o-1", "o-2"):
        assert (
            cli("runs", "prune", f"order/{run_id}", "--exported", exported(f"order/{run_id}", f"{run_id}.jsonl")).code
            == 0
        )
    hands.raw.put(f"leasekeeper/{hands.namespace}/tomb/order/o-3", "no tombstone")
    assert len(hands.raw.keys(f"leasekeeper/{hands.namespace}/tomb/")) == 3
    done = cli("runs", "prune", "--tombs", "-o", "json")
    assert (done.code, done.json["tombs_removed"], done.json["tombs_kept"]) == (0, 1, 2)
    finished(keeper)
    with pytest.raises(RunPruned), keeper.run("order", id="o-2", ttl=5):
        pass


def test_a_run_is_pruned_under_asyncio(
    etcd: EtcdServer, namespace: str, keeper: Keeper, hands: Hands, exported: Any
) -> None:
    """AsyncKeeper.prune does the same, and leaves no thread behind."""
    finished(keeper)
    file = exported()

    async def main() -> int:
        async with AsyncKeeper(etcd.endpoint, namespace=namespace) as other:
            with pytest.raises(ConfigError):
                await other.prune(RUN, exported="/nonexistent")
            return (await other.prune(RUN, exported=file)).seq

    assert asyncio.run(main()) == 8
    assert left(hands) == []
    assert not [thread for thread in threading.enumerate() if thread.name == "leasekeeper-export"]


@pytest.mark.parametrize("piece", [0, 3])
def test_a_result_that_was_lost_and_given_anew(
    cli: Any, keeper: Keeper, hands: Hands, exported: Any, raw: RawEtcd, piece: int
) -> None:
    """What is left of the lost one hinders nobody: the run is exported, found good, and pruned with all its keys."""
    with suppress(Boom), keeper.run("order", id="o-1", ttl=5) as run:
        run.do("s", lambda: "x" * 1_500_000)
        raise Boom
    raw.delete(raw.keys(f"{hands.root}blob/")[piece].key)
    keeper.resolve(RUN, "s", applied=True, evidence="looked", result="short")
    with keeper.run("order", id="o-1", ttl=5) as run:
        assert run.do("s", lambda: "x") == "short"
    file = exported()
    assert cli("runs", "verify", "--file", file).code == 0
    assert cli("runs", "prune", RUN, "--exported", file).code == 0
    assert left(hands) == []
