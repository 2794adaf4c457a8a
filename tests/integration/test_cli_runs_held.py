"""`runs verify --anchor FILE` without a run: all that an anchor knows, held against what etcd has."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import Keeper
from leasekeeper.runs.anchor import FileAnchor
from leasekeeper.runs.exporting import export_run
from leasekeeper.runs.operator import run_keys
from tests.raw import RawEtcd
from tests.told_runs import finished


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the anchor is."""
    return tmp_path / "heads.log"


def test_all_that_an_anchor_knows(
    cli: Any, keeper: Keeper, raw: RawEtcd, namespace: str, file: Path, tmp_path: Path
) -> None:
    """A21: Runs that are as remembered, behind, another, gone, pruned and given up: each is told as what it is."""
    anchor = FileAnchor(file)
    for name in ("good", "behind", "another", "gone", "pruned", "given-up"):
        finished(keeper, name, anchors=[anchor])
    heads = {name: anchor.last(f"order/{name}", 1) for name in ("behind", "another")}
    assert cli("runs", "verify", "--anchor", str(file)).code == 0
    now_ms = int(time.time() * 1000)
    assert heads["behind"] is not None
    assert heads["another"] is not None
    seq = heads["behind"].seq
    anchor.remember("order/behind", 1, seq + 2, "ab" * 32, now_ms)
    anchor.accept("order/another", 1, seq, "cd" * 32, now_ms, "test")
    for name in ("gone", "given-up"):
        for key in raw.keys(f"leasekeeper/{namespace}/run/order/{name}/"):
            raw.delete(key.key)
    keeper.resolve("order/given-up", evidence="looked", signer=None, accept_rewind=[anchor])
    export_run(keeper._core, run_keys(keeper._core.ctx.keys, "order/pruned"), tmp_path / "pruned.jsonl")
    keeper.prune("order/pruned", exported=tmp_path / "pruned.jsonl")
    done = cli("runs", "verify", "--anchor", str(file), "-o", "json")
    assert done.code == 1
    states = {one["run"]: (one["state"], one["have"], one["known"]) for one in done.json}
    assert states == {
        "order/good": ("good", seq, seq),
        "order/behind": ("behind", seq, seq + 2),
        "order/another": ("another", seq, seq),
        "order/gone": ("gone", 0, seq),
        "order/pruned": ("pruned", 0, seq),
    }
    told = cli("runs", "verify", "--anchor", str(file))
    assert (told.code, told.err) == (1, "")
    lines = told.out.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == ["order/behind", "order/another", "order/gone"]
    assert f"etcd ends with record {seq}, and {file} remembers record {seq + 2}" in lines[0]
    assert lines[0].endswith(f"; see: leasekeeper runs verify order/behind --anchor {file}")
    assert lines[-1] == "5 runs are remembered: good 1, BAD 3, pruned 1"


def test_the_way_on_is_told(cli: Any, keeper: Keeper, file: Path) -> None:
    """A run that is behind its anchor: `verify` of it ends in the command that gives up what was lost; else not."""
    anchor = FileAnchor(file)
    finished(keeper, anchors=[anchor])
    words = ("runs", "verify", "order/o-1", "--anchor", str(file))
    assert "to go on" not in cli(*words).out
    known = anchor.last("order/o-1", 1)
    assert known is not None
    anchor.remember("order/o-1", 1, known.seq + 2, "ab" * 32, known.at_ms)
    told = cli(*words)
    assert told.code == 1
    command = f"leasekeeper runs resolve order/o-1 --accept-rewind {file} --evidence TEXT"
    assert f"give it up: `{command}`" in told.out


def test_a_log_of_messages_takes_no_word(cli: Any, keeper: Keeper, file: Path) -> None:
    """What a syslog server has collected shows what was lost, and cannot be told to forget it, and is not called changed."""
    anchor = FileAnchor(file)
    finished(keeper, anchors=[anchor])
    known = anchor.last("order/o-1", 1)
    assert known is not None
    anchor.remember("order/o-1", 1, known.seq + 2, "ab" * 32, known.at_ms)
    log = file.with_name("syslog")
    log.write_text(
        "".join(f"Nov 30 host leasekeeper: leasekeeper anchor {line}\n" for line in file.read_text().splitlines())
    )
    assert cli("runs", "verify", "--anchor", str(log), "-o", "json").json[0]["state"] == "behind"
    refused = cli("runs", "resolve", "order/o-1", "--accept-rewind", str(log), "--evidence", "looked")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert f"--accept-rewind='{log}': expected a file that a FileAnchor keeps, not a log" in refused.err


@pytest.mark.parametrize("more", [("--keys", "k"), ("--export", "e")])
def test_what_is_about_one_run_wants_one(cli: Any, file: Path, more: tuple[str, str]) -> None:
    """Keys and exports say nothing of all runs."""
    refused = cli("runs", "verify", "--anchor", str(file), *more)
    assert (refused.code, refused.out) == (2, "")
    assert "are about one RUN" in refused.err
