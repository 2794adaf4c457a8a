"""Files of runs after their writers were killed: blobs are whole or not there."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

from leasekeeper.protocol.limits import VALUE_MAX
from leasekeeper.runs.blobs import UNFINISHED, DirectoryBlobs, digest_of
from tests.program import Program

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
