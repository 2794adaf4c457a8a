"""A run as a file: written whole or not at all, read back byte by byte, and verified without etcd."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import textwrap
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.canonical import canonical
from leasekeeper.errors import Misuse
from leasekeeper.protocol.key_text import public_text
from leasekeeper.protocol.receipt import digest
from leasekeeper.run_errors import CorruptState
from leasekeeper.runs.export import Blob, Record, read_export, verify_export, write_export
from leasekeeper.signing import Ed25519Key
from tests.chains import (
    NAMESPACE_ID,
    RUN,
    Author,
    chain,
    needs_cryptography,
    signing,
)
from tests.exports import (
    LENGTH,
    META,
    each_signature,
    exported,
    found,
    head_of,
    header_of,
    lines_of,
    verdict_of,
)

# ---------------------------------------------------------------- what is written can be read


@each_signature
def test_an_export_verifies_and_is_complete(kind: str) -> None:
    """A20: what was exported verifies by itself, up to its last record, and the footer shows that this is the end."""
    key = signing(kind)
    stored = chain(LENGTH, key)
    data = exported(stored, key, {2: b"large" * 1000})
    verdict = verdict_of(data, key, namespace_id=NAMESPACE_ID, run=RUN)
    assert verdict.ok
    assert (verdict.verified, verdict.hash, verdict.complete) == (LENGTH, digest(stored[-1]), True)
    assert "cut off" not in verdict.why
    assert verdict.signed is (key is not None)


def test_what_was_stored_is_read_back_byte_by_byte() -> None:
    """Header, records, values and footer come back as they were written; a record is a line of the file as it is."""
    key = signing("hmac")
    stored, value = chain(3, key), os.urandom(5000)
    data = exported(stored, key, {2: value})
    export = read_export(io.BytesIO(data))
    assert export.header == header_of(stored)
    assert list(export) == [
        Record(None, stored[0]),
        Record(None, stored[1]),
        Blob(digest(value), value),
        Record(None, stored[2]),
    ]
    assert (export.footer.seq, export.footer.hash, export.footer.count) == (3, digest(stored[-1]), 3)
    assert export.footer.sha256 == export.sha256
    lines = data.split(b"\n")
    assert lines[1:3] == stored[:2]
    assert lines[-1] == b""
    for line in lines[:-1]:
        assert canonical(json.loads(line), most=len(line)) == line


def test_an_empty_run_is_exported() -> None:
    """A run without a record has an export that says so."""
    data = exported([], signing("hmac"))
    assert found(data, signing("hmac")) == (0, None, None)
    assert found(exported([], None, head=b"")) == (0, None, None)


def test_a_footer_comes_last() -> None:
    """It is known once all lines were read; before that asking for it is Misuse, and in a file without one CorruptState."""
    export = read_export(io.BytesIO(exported(chain(2))))
    with pytest.raises(Misuse, match="iterate"):
        _ = export.footer
    for _ in export:
        pass
    assert export.footer.seq == 2
    cut = read_export(io.BytesIO(exported(chain(2)).rpartition(b'{"footer"')[0]))
    assert len(list(cut)) == 2
    with pytest.raises(CorruptState, match="cut off"):
        _ = cut.footer


def test_damage_is_exported_as_it_is() -> None:
    """Bytes that cannot stand in a line are kept, and named by the verdict as they would be in etcd."""
    key = signing("hmac")
    for junk in (b"", b"\xff\x00\n", b'{"body":\n', b'{"footer":{}}', b'{"blob":"', chain(1)[0] + b"\n"):
        stored = chain(3, key)
        head = head_of(stored)
        stored[1] = junk
        data = exported(stored, key, head=head)
        records = list(read_export(io.BytesIO(data)))
        assert [line.stored for line in records if isinstance(line, Record)] == stored
        assert found(data, key) == (1, 2, "corrupt")


def test_a_damaged_head_is_exported_as_it_is() -> None:
    """Stored bytes that are no text come back; the verdict says that the head cannot be trusted."""
    stored = chain(2)
    for head in (b"\xff\xfe", b"junk", META):
        data = exported(stored, head=head)
        assert read_export(io.BytesIO(data)).header.head == head
        assert found(data) == (2, None, "corrupt")
        assert "the head was damaged" in verdict_of(data).why
    assert found(exported(stored, head=b"")) == (2, None, "corrupt")


# ---------------------------------------------------------------- files


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """An export that fails half way leaves an older file as it was and nothing beside it."""
    path = tmp_path / "run.jsonl"
    stored = chain(LENGTH)
    write_export(path, header_of(stored), lines_of(stored))
    before = path.read_bytes()
    assert found(before) == (LENGTH, None, None)

    def failing() -> Iterator[Record | Blob]:
        yield Record(1, stored[0])
        raise RuntimeError("etcd went away")

    with pytest.raises(RuntimeError):
        write_export(path, header_of(stored), failing())
    with pytest.raises(RuntimeError):
        write_export(tmp_path / "other.jsonl", header_of(stored), failing())
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["run.jsonl"]
    longer = chain(LENGTH + 1)
    write_export(str(path), header_of(longer), lines_of(longer))
    assert found(path.read_bytes()) == (LENGTH + 1, None, None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_is_flushed_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are on the disk before the name is, and the name before the call returns."""
    from leasekeeper.runs import export as module

    done: list[str] = []
    path = tmp_path / "run.jsonl"
    monkeypatch.setattr(module, "flush", lambda fd: done.append(f"bytes {os.fstat(fd).st_size > 0} {path.exists()}"))
    monkeypatch.setattr(module, "flush_directory", lambda parent: done.append(f"name {path.exists()} {parent}"))
    write_export(path, header_of([]), [])
    assert done == ["bytes True False", f"name True {tmp_path}"]


def test_a_stream_stays_open() -> None:
    """Who gives a stream closes it."""
    stream = io.BytesIO()
    write_export(stream, header_of([]), [])
    assert not stream.closed


def test_memory_does_not_grow_with_the_run() -> None:
    """Writing and verifying an export of some megabytes takes a small part of that at once."""

    class Sink(io.RawIOBase):
        """Counts what is written."""

        size = 0

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            Sink.size += len(data)
            return len(data)

    author = Author()
    stored = author.write(data={"large": "x" * 60_000})
    sink: Any = Sink()
    tracemalloc.start()
    try:
        write_export(sink, header_of([]), (Record(seq, stored) for seq in range(1, 200)))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert Sink.size > 10_000_000
    several = chain(40)
    for number in range(len(several)):
        several[number] = author.write(data={"large": "y" * 60_000, "number": number})
    data = exported(author.stored)
    assert len(data) > 2_000_000
    tracemalloc.start()
    try:
        stream = io.BytesIO(data)
        assert verify_export(stream).verified == len(author.stored)
        assert tracemalloc.get_traced_memory()[1] < 1_500_000
    finally:
        tracemalloc.stop()


def test_the_largest_value_fits() -> None:
    """A value of the size that may be recorded is exported and read back."""
    value = b"\xff" * (8 * 1024 * 1024)
    data = exported(chain(1), None, {1: value})
    assert found(data) == (1, None, None)


# ---------------------------------------------------------------- offline, with public keys only


@needs_cryptography
def test_it_verifies_in_a_process_without_etcd_or_private_key(tmp_path: Path) -> None:
    """A20: another process that has the file and the public key, and cannot import grpc, gives the verdict; one bit fails it."""
    key = signing("ed25519")
    assert isinstance(key, Ed25519Key)
    author = Author(key)
    author.write()
    successor = signing("ed25519", "k2")
    author.rotate(successor)
    author.write()
    data = exported(author.stored, successor)
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_bytes(data)
    place = data.index(author.stored[2]) + 30
    bad.write_bytes(data[:place] + bytes((data[place] ^ 1,)) + data[place + 1 :])
    program = textwrap.dedent(
        """
        import sys
        sys.modules["grpc"] = None
        from leasekeeper.runs.export import verify_export
        from leasekeeper.runs.signer import verifying_ring
        for path in sys.argv[2:]:
            with open(path, "rb") as stream:
                verdict = verify_export(stream, verifying_ring([sys.argv[1]]))
            print(verdict.verified, verdict.bad, verdict.kind, verdict.complete)
        """
    )
    run = subprocess.run(
        [sys.executable, "-c", program, public_text(key.public), str(good), str(bad)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert run.stderr == ""
    assert run.stdout.splitlines() == ["3 None None True", "2 3 corrupt False"]
