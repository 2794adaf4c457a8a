"""`runs resolve` and `runs verify` for a run of which an anchor knows and etcd has nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leasekeeper import Keeper, RunRewound
from leasekeeper.runs.anchor import FileAnchor
from tests.commands import Ended
from tests.told_runs import Hands, finished

RUN = "order/o-1"
LAST = 8
WHY = "the backup of Monday was restored"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the anchor is."""
    return tmp_path / "heads.log"


@pytest.fixture
def anchor(file: Path) -> FileAnchor:
    """What remembers heads outside of etcd."""
    return FileAnchor(file)


def erase(hands: Hands, *kept: str) -> None:
    """Delete the run, but some of its keys."""
    for key in hands.raw.keys(hands.root):
        if key.key.removeprefix(hands.root) not in kept:
            hands.raw.delete(key.key)


def accept(cli: Any, *files: Path, words: tuple[str, ...] = ()) -> Ended:
    """The operator's command."""
    options = [word for file in files for word in ("--accept-rewind", str(file))]
    done: Ended = cli("runs", "resolve", RUN, *options, "--evidence", WHY, *words)
    return done


def test_a_run_that_is_gone_is_begun_again(
    cli: Any, keeper: Keeper, hands: Hands, file: Path, anchor: FileAnchor, tmp_path: Path
) -> None:
    """A21: One sentence says what holds and what to do; the run begins again and verifies with the anchor, as its export does."""
    finished(keeper, anchors=[anchor])
    old, new = (str(tmp_path / name) for name in ("old.jsonl", "new.jsonl"))
    assert cli("runs", "export", RUN, "--out", old).code == 0
    erase(hands)
    cut = cli("runs", "verify", RUN, "--anchor", str(file), "-o", "json")
    assert (cut.code, cut.json["kind"]) == (1, "truncated")
    with pytest.raises(RunRewound):
        finished(keeper, anchors=[anchor])
    done = accept(cli, file)
    assert (done.code, done.err) == (0, "")
    number = cli("doctor", "-o", "json").json["identity"]
    assert done.out == (
        f"{RUN} is not in etcd, and what was remembered of it, up to record {LAST}, is given up for lost: begin it again with its"
        f" input; its steps get the idempotency keys that they had, if the namespace's identity, {number}, is that of then: the"
        " `ns` of its records in an export\n"
    )
    assert hands.raw.keys(hands.root) == []
    none = cli("runs", "verify", RUN, "--anchor", str(file), "-o", "json")
    assert (none.code, none.json["bad"], none.json["anchored"]) == (1, None, None)
    kept = cli("runs", "verify", "--file", old, "--anchor", str(file), "-o", "json")
    assert (kept.code, kept.json["verified"], kept.json["anchored"]) == (0, LAST, None)
    finished(keeper, anchors=[anchor])
    good = cli("runs", "verify", RUN, "--anchor", str(file), "-o", "json")
    assert (good.code, good.json["verified"], good.json["anchored"]) == (0, LAST, LAST)
    assert cli("runs", "export", RUN, "--out", new).code == 0
    assert cli("runs", "verify", "--file", new, "--anchor", str(file), "-o", "json").json["anchored"] == LAST
    # The life that was given up is now another history than the one that the anchor remembers.
    assert cli("runs", "verify", "--file", old, "--anchor", str(file)).code == 1


def test_a_namespace_without_its_identity(
    cli: Any, keeper: Keeper, hands: Hands, file: Path, anchor: FileAnchor
) -> None:
    """A22: all of the namespace is lost: that its identity has to be put back first is said by the word that gives up a run."""
    finished(keeper, anchors=[anchor])
    for key in hands.raw.keys(f"leasekeeper/{hands.namespace}/"):
        hands.raw.delete(key.key)
    done = accept(cli, file)
    assert done.code == 0
    assert (
        "the namespace has no identity any more: put that back from a backup before the run is begun again" in done.out
    )
    assert "begin it again with its input" not in done.out


def test_as_json(cli: Any, keeper: Keeper, hands: Hands, file: Path, anchor: FileAnchor) -> None:
    """There is no record of it in etcd: number 0, no hash; both anchors of the command are told, with the evidence."""
    other = FileAnchor(file.with_name("other"))
    finished(keeper, anchors=[anchor, other])
    erase(hands)
    done = accept(cli, file, file.with_name("other"), words=("-o", "json"))
    assert done.code == 0
    assert done.json == {"run": RUN, "step": None, "applied": None, "seq": 0, "hash": None}
    assert anchor.last(RUN, 1) is other.last(RUN, 1) is None
    assert f'"why":"{WHY}"' in file.read_text().splitlines()[-1]


def test_what_is_no_run_that_is_gone(cli: Any, keeper: Keeper, hands: Hands, file: Path, anchor: FileAnchor) -> None:
    """A21: No such run, pieces of one, and one that is there: each is one line, and no anchor forgets anything."""
    anchor.remember("order/other", 1, 3, "ab" * 32, 0)
    unknown = accept(cli, file)
    assert (unknown.code, unknown.out, unknown.err.count("\n")) == (2, "", 1)
    assert "expected a run that was begun" in unknown.err
    finished(keeper, anchors=[anchor])
    before = file.read_bytes()
    erase(hands, "step/step-0")
    pieces = accept(cli, file)
    assert (pieces.code, pieces.out, pieces.err.count("\n")) == (2, "", 1)
    assert "it is not there, and" in pieces.err
    assert file.read_bytes() == before
