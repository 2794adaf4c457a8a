"""Files of runs whose writers are killed, and several at once: blobs are whole or not there, and anchors know what they said."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from leasekeeper.protocol.limits import VALUE_MAX
from leasekeeper.runs.anchor import FileAnchor, anchored_in
from leasekeeper.runs.blobs import UNFINISHED, DirectoryBlobs, digest_of
from tests.program import Program
from tests.support import until

TORN_MIN = 3
ROUNDS_MAX = 60


def unfinished(path: Path) -> list[Path]:
    """Files that somebody is writing, or was when they were killed."""
    return list(path.glob(f"*/*{UNFINISHED}"))


def caught_in_the_middle(path: Path, writer: Program) -> None:
    """Kill the writer at a moment at which it has a file half written."""
    before = set(unfinished(path))
    deadline = time.monotonic() + 30
    while set(unfinished(path)) <= before and time.monotonic() < deadline:
        pass  # no pause: the moment is short
    writer.kill()


def test_a_writer_killed_in_the_middle_leaves_no_half_blob(tmp_path: Path) -> None:
    """B13: However often writers are killed while they write, a blob under its name is whole, and what was put is there."""
    blobs = DirectoryBlobs(tmp_path)
    torn = 0
    put: set[str] = set()
    for seed in range(ROUNDS_MAX):
        with Program("blob_writer", path=str(tmp_path), seed=seed, size=VALUE_MAX) as writer:
            writer.wait_for("put")
            caught_in_the_middle(tmp_path, writer)
            writer.end()
            put |= {report["digest"] for report in writer.all("put")}
        torn = sum(file.stat().st_size < VALUE_MAX for file in unfinished(tmp_path))
        if torn >= TORN_MIN:
            break
    assert torn >= TORN_MIN
    named = {file.parent.name + file.name for file in tmp_path.glob("*/*") if file.suffix != UNFINISHED}
    assert put <= named
    for digest in named:
        assert len(blobs.get(digest)) == VALUE_MAX
    # What was being written is put again, beside what is left of it.
    data = Random(0).randbytes(VALUE_MAX)
    blobs.put(digest_of(data), data)
    assert blobs.get(digest_of(data)) == data


# ---------------------------------------------------------------- anchors


def writer_of(path: Path, run: str, *, count: int = 0, torn: int = -1) -> Program:
    """A process that appends to the anchor."""
    return Program("anchor_writer", path=str(path), run=run, count=count, torn=torn)


def remembered(path: Path) -> dict[str, list[int]]:
    """All numbers that the file remembers by run, each in order; the chain is checked on the way."""
    found: dict[str, list[int]] = {}
    with path.open("rb") as lines:
        for head in anchored_in(lines):
            found.setdefault(head.run, []).append(head.seq)
    return found


def test_several_processes_append_at_once(tmp_path: Path) -> None:
    """A5: Lines of several processes do not mix, none is lost, and they are one chain."""
    path = tmp_path / "anchor"
    runs = ["a/1", "b/1", "c/1"]
    with ExitStack() as stack:
        writers = [stack.enter_context(writer_of(path, run)) for run in runs]
        for writer in writers:
            writer.wait_for("told")
        # From here on all of them are at it.
        for writer in writers:
            writer.wait_for_more("told", len(writer.all("told")) + 50)
        for writer in writers:
            writer.kill()
            writer.end()
    found = remembered(path)
    for run, writer in zip(runs, writers, strict=True):
        told = len(writer.all("told"))
        assert found[run] == list(range(1, len(found[run]) + 1))
        assert len(found[run]) in (told, told + 1)


def test_an_anchor_knows_what_it_said_after_its_writer_was_killed(tmp_path: Path) -> None:
    """A5: Whenever a process is killed, what it was told is remembered, stands, and the next one goes on below it."""
    path = tmp_path / "anchor"
    told: dict[str, int] = {}
    for number in range(6):
        run = f"killed/{number}"
        with writer_of(path, run) as writer, writer_of(path, f"beside/{number}") as beside:
            writer.wait_for_more("told", 3 + number)
            size = path.stat().st_size
            until(lambda size=size: path.stat().st_size > size)  # type: ignore[misc]
            writer.kill()
            writer.end()
            beside.wait_for_more("told", len(beside.all("told")) + 2)
            beside.kill()
            beside.end()
        told |= {run: len(writer.all("told")), f"beside/{number}": len(beside.all("told"))}
    found = remembered(path)
    for run, count in told.items():
        assert found[run] == list(range(1, len(found[run]) + 1))
        # One more may have been written, of which nobody was told.
        assert len(found[run]) in (count, count + 1)
        last = FileAnchor(path).last(run, 1)
        assert last is not None
        assert last.seq == len(found[run])


@pytest.mark.parametrize("torn", [0, 1, 150, 250])
def test_a_writer_that_dies_in_the_middle_of_a_line_costs_that_line(tmp_path: Path, torn: int) -> None:
    """A5: A process that dies with half a line written holds up nobody, and only what it had not said is missing."""
    path = tmp_path / "anchor"
    with writer_of(path, "beside/1") as beside:
        beside.wait_for("told")
        with writer_of(path, "dies/1", count=4, torn=torn) as writer:
            assert writer.end() < 0, writer.errors
        assert [report["seq"] for report in writer.all("told")] == [1, 2, 3]
        beside.wait_for_more("told", len(beside.all("told")) + 3)
        beside.kill()
        beside.end()
    found = remembered(path)
    assert found["dies/1"] == [1, 2, 3]
    assert len(found["beside/1"]) in (len(beside.all("told")), len(beside.all("told")) + 1)
    FileAnchor(path).remember("dies/1", 1, 4, f"{4:064x}", round(time.time() * 1000))
    assert remembered(path)["dies/1"] == [1, 2, 3, 4]
