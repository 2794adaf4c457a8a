"""What an export's file may be replaced by: a good export of the same run that has all that it has, and by nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.errors import ConfigError
from leasekeeper.run_errors import ExportKept
from leasekeeper.runs.export import write_export
from tests.chains import Author, chain, signing
from tests.exports import exported, header_of, lines_of

STORED = chain(5)
LARGE = {2: b"large" * 1000}


def other_history() -> list[bytes]:
    """As many records of the same run, which differ from the second one on."""
    author = Author()
    author.write()
    for _ in range(4):
        author.write(data={"other": True})
    return author.stored


def put(path: Path, stored: list[bytes], kind: str = "unsigned", **more: Any) -> None:
    """Export these records into the file."""
    blobs = more.pop("blobs", None)
    write_export(path, header_of(stored, **more), lines_of(stored, blobs), signing(kind))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the exports go."""
    return tmp_path / "o.jsonl"


def test_the_same_run_again_and_a_longer_one_take_the_place(path: Path) -> None:
    """A timer may write the same name every night."""
    put(path, STORED[:3], blobs=LARGE)
    put(path, STORED[:3], blobs=LARGE, exported_at_ms=2)
    put(path, STORED, "hmac", blobs=LARGE)
    assert path.read_bytes() == exported(STORED, signing("hmac"), LARGE)


@pytest.mark.parametrize("before", [b"", exported(STORED)[:-30], exported(STORED).replace(b'"seq":5', b'"seq":6')])
def test_what_is_empty_or_damaged_is_replaced_by_what_is_good(path: Path, before: bytes) -> None:
    """A file that was cut off or changed is no reason to keep it from being made good."""
    path.write_bytes(before)
    put(path, STORED)
    assert path.read_bytes() == exported(STORED)


@pytest.mark.parametrize(
    ("stored", "more", "why"),
    [
        (STORED[:4], {}, "verifies up to record 5"),
        ([*STORED[:2], b'{"body":{}}', *STORED[3:]], {}, "record 3 is corrupt"),
        (STORED, {"head": b"damaged"}, "the head was damaged"),
        (other_history(), {}, ": what is there remembers another one"),
        (STORED, {"id": "other"}, "is an export of"),
        (STORED, {"gen": 2}, "of generation 1"),
    ],
    ids=["cut", "changed", "head", "another history", "another run", "another generation"],
)
def test_a_good_export_is_kept(path: Path, stored: list[bytes], more: dict[str, Any], why: str) -> None:
    """What the new one lacks, or has otherwise, is not lost with the old one; no draft is left."""
    put(path, STORED)
    with pytest.raises(ExportKept, match=why):
        put(path, stored, **more)
    assert path.read_bytes() == exported(STORED)
    assert os.listdir(path.parent) == [path.name]


def test_values_and_signatures_are_kept(path: Path) -> None:
    """An export without the large values, or without the signature, does not take the place of one that has them."""
    put(path, STORED, blobs=LARGE)
    with pytest.raises(ExportKept, match="1 large value"):
        put(path, STORED)
    put(path, STORED, "hmac", blobs=LARGE)
    with pytest.raises(ExportKept, match="would not be signed"):
        put(path, STORED, blobs=LARGE)
    assert path.read_bytes() == exported(STORED, signing("hmac"), LARGE)


def test_what_is_no_export_is_kept(path: Path) -> None:
    """A file of another kind is not taken for an older export, and what is no file is not replaced by one."""
    path.write_bytes(b"hmac:k1:secret\n")
    with pytest.raises(ExportKept, match="no export"):
        put(path, STORED)
    assert path.read_bytes() == b"hmac:k1:secret\n"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="a regular file"):
        put(path, STORED)
    assert path.is_fifo()
