"""A run as a file: written whole or not at all, verified without etcd, and cut or changed nowhere unseen."""

from __future__ import annotations

import base64
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
from leasekeeper.errors import ConfigError, Misuse
from leasekeeper.protocol import bundle
from leasekeeper.protocol.head import Head
from leasekeeper.protocol.key_text import public_text
from leasekeeper.protocol.receipt import FIRST_PREV, digest, seal
from leasekeeper.protocol.verdict import Verdict
from leasekeeper.run_errors import CorruptState
from leasekeeper.runs.export import Blob, Export, Header, Record, read_export, state_at, verify_export, write_export
from leasekeeper.signing import Ed25519Key, SigningKey
from tests.chains import NAMESPACE_ID, RUN, Author, chain, has_cryptography, rewritten, ring_of, signing

LENGTH = 5
META = b'{"body":{"v":1},"hash":"","key":"","sig":""}'
needs_cryptography = pytest.mark.skipif(not has_cryptography(), reason="needs the extra leasekeeper[signing]")
each_signature = pytest.mark.parametrize("kind", ["unsigned", "hmac"])


def head_of(stored: list[bytes]) -> bytes:
    """The head of a run with these records."""
    return Head(seq=len(stored), hash=digest(stored[-1]) if stored else FIRST_PREV).stored()


def header_of(stored: list[bytes], **fields: Any) -> Header:
    """The header of an export of these records."""
    known: dict[str, Any] = {
        "workflow": RUN[0],
        "id": RUN[1],
        "namespace_id": NAMESPACE_ID,
        "gen": 1,
        "exported_at_ms": 1_700_000_000_000,
        "meta": META,
        "head": head_of(stored),
    }
    return Header(**{**known, **fields})


def lines_of(stored: list[bytes], blobs: dict[int, bytes] | None = None) -> Iterator[Record | Blob]:
    """The records, with the large values behind those of some numbers."""
    for seq, each in enumerate(stored, 1):
        yield Record(seq, each)
        if blobs and seq in blobs:
            yield Blob(digest(blobs[seq]), blobs[seq])


def exported(
    stored: list[bytes], key: SigningKey | None = None, blobs: dict[int, bytes] | None = None, **fields: Any
) -> bytes:
    """The bytes of an export."""
    stream = io.BytesIO()
    write_export(stream, header_of(stored, **fields), lines_of(stored, blobs), key)
    return stream.getvalue()


def verdict_of(data: bytes, key: SigningKey | None = None, **known: Any) -> Verdict:
    """What is said of an export."""
    return verify_export(io.BytesIO(data), ring_of(key), **known)


def found(data: bytes, key: SigningKey | None = None, **known: Any) -> tuple[int, int | None, str | None]:
    """The part of a verdict that a program acts on."""
    verdict = verdict_of(data, key, **known)
    assert verdict.why
    assert verdict.kind is None or not verdict.complete
    return verdict.verified, verdict.bad, verdict.kind


def resealed(lines: list[bytes], key: SigningKey | None) -> bytes:
    """These lines with a footer that fits them, as one forges who has this key."""
    stream = io.BytesIO()
    before = b"".join(lines)
    records = [line[:-1] for line in lines if line.startswith(b'{"body":')]
    footer = bundle.Footer(len(records), digest(records[-1]) if records else FIRST_PREV, len(records), digest(before))
    stream.write(before + footer.line(key))
    return stream.getvalue()


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


# ---------------------------------------------------------------- what was done to it


@each_signature
@pytest.mark.parametrize("at", range(1, LENGTH + 1))
def test_a_record_that_was_changed_removed_or_swapped_is_named(kind: str, at: int) -> None:
    """A20: the first bad record is named, also where somebody without a key made a new footer to fit."""
    key = signing(kind)
    data = exported(chain(LENGTH, key), key)
    lines = data.splitlines(keepends=True)
    forged = [*lines[:-1]]
    forged[at] = rewritten(forged[at][:-1], lambda body: body.update(data={"amount": 5})) + b"\n"
    removed = [line for number, line in enumerate(lines[:-1]) if number != at]
    swapped = [*lines[:-1]]
    if at < LENGTH:
        swapped[at], swapped[at + 1] = swapped[at + 1], swapped[at]
    for make_new in (False, True):

        def named(left: list[bytes], make_new: bool = make_new) -> tuple[int, int | None, str | None]:
            return found(resealed(left, None) if make_new else b"".join([*left, lines[-1]]), key)

        assert named(forged) == (at - 1, at, "forged" if key else "changed")
        if at < LENGTH:
            assert named(removed) == (at - 1, at, "removed")
            assert named(swapped) == (at - 1, at, "swapped")
        elif key is None or not make_new:
            assert named(removed) == (at - 1, at, "truncated")


@each_signature
def test_a_file_that_was_cut_is_named_wherever_it_was_cut(kind: str) -> None:
    """Every prefix of an export is known to be one: cut off inside of a line or between two, no shorter file passes."""
    key = signing(kind)
    data = exported(chain(3, key), key, {2: b"large"})
    ends = [index for index, byte in enumerate(data) if byte == ord("\n")]
    for length in range(len(data)):
        verified, bad, cut = found(data[:length], key)
        whole_records = max(0, sum(length > end for end in ends[:3]) - 1) + (length > ends[4])
        assert cut == ("corrupt" if length < ends[0] else "truncated"), length
        assert (verified, bad) == (0, None) if length < ends[0] else (whole_records, whole_records + 1), length


def test_a_cut_tail_is_named_by_the_footer_and_by_the_head() -> None:
    """A5: records cut off the end are missed by the signed footer; with a new unsigned one it is not believed, nor complete."""
    key = signing("hmac")
    lines = exported(chain(LENGTH, key), key).splitlines(keepends=True)
    assert found(b"".join(lines[:4] + lines[-1:]), key) == (3, 4, "truncated")
    assert found(resealed(lines[:4], None), key) == (3, None, "unsigned")
    assert found(resealed(lines[:4], signing("hmac", "k2")), key) == (3, None, "unknown key")
    # Who has the key may sign a shorter one; then the head and the anchors are left to miss the rest.
    assert found(resealed(lines[:4], key), key) == (3, 4, "truncated")
    short = exported(chain(3, key), key)
    assert found(short, key) == (3, None, None)
    assert found(short, key, anchors=[(5, "ab" * 32)]) == (3, 4, "truncated")


def test_a_run_that_had_lost_records_when_exported_is_told_from_a_whole_one() -> None:
    """An honest export of a run whose tail was cut, or whose head was set back, verifies up to where both agree."""
    key = signing("hmac")
    stored = chain(LENGTH, key)
    assert found(exported(stored[:3], key, head=head_of(stored)), key) == (3, 4, "truncated")
    back = exported(stored, key, head=head_of(stored[:2]))
    assert found(back, key) == (2, 3, "truncated")
    assert verdict_of(back, key).hash == digest(stored[1])
    other = Author(key)
    for _ in range(LENGTH):
        other.write(data={"another": "history"})
    assert found(exported(stored, key, head=head_of(other.stored)), key) == (LENGTH - 1, LENGTH, "forked")
    assert found(exported(chain(3), head=head_of(other.stored[:3]))) == (2, 3, "changed")


@pytest.mark.parametrize("signed", [True, False])
def test_a_changed_header_accuses_no_record(signed: bool) -> None:
    """A20: a header with another time, input or head is known by the footer, and every record is still verified."""
    key = signing("hmac") if signed else None
    stored = chain(3, key)
    lines = exported(stored, key).splitlines(keepends=True)
    for fields in ({"exported_at_ms": 1}, {"meta": b"{}"}, {"head": head_of(stored[:2])}, {"id": "other"}, {"gen": 2}):
        changed = header_of(stored, **fields).line()
        assert found(b"".join([changed, *lines[1:]]), key) == (3, None, "changed")
    if key is None:
        for other in ({"id": "other"}, {"workflow": "other"}, {"gen": 2}):
            named = header_of(stored, **other).line()
            assert found(resealed([named, *lines[1:-1]], None)) == (3, None, "other run")
        elsewhere = header_of(stored, namespace_id="0c" * 16).line()
        assert found(resealed([elsewhere, *lines[1:-1]], None)) == (3, None, "other environment")


def test_an_expected_run_and_namespace_are_asked_of_the_records() -> None:
    """A22: an export of another run or namespace, in itself perfect, is not taken for this one's."""
    data = exported(chain(3))
    assert found(data, namespace_id="0c" * 16) == (0, 1, "other environment")
    assert found(data, run=("order", "other")) == (0, 1, "other run")
    assert found(data, gen=2) == (0, 1, "other run")


def respelled(line: bytes) -> bytes:
    """The line of a value, with other unused bits in the last character of its base64: the same bytes, spelled otherwise."""
    before, _, after = line.rpartition(b"=")
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = before[:-1] + alphabet[alphabet.index(before[-1]) ^ 1 :][:1] + b"=" + after
    assert base64.b64decode(json.loads(other)["data"]) == base64.b64decode(json.loads(line)["data"])
    return other


@pytest.mark.parametrize("signed", [True, False])
def test_a_changed_value_is_named_with_its_record(signed: bool) -> None:
    """A large value that is not what its digest says, or is no value at all, spoils the record that it belongs to."""
    key = signing("hmac") if signed else None
    stored = chain(3, key)
    value = b"large" * 100
    assert len(value) % 3 == 2
    lines = exported(stored, key, {2: value}).splitlines(keepends=True)
    name = digest(value)
    for line in (
        Blob(name, value + b"!").line(),
        Blob("ab" * 32, value).line(),
        lines[3].replace(b'"data"', b'"date"'),
        lines[3].replace(b'="}', b'"}'),
        respelled(lines[3]),
        b'{"blob":"\n',
        b'{"blob":"\\ud800","data":""}\n',
        b'{"blob":"' + b"a" * 64 + b'","data":5}\n',
    ):
        if line != lines[3]:
            assert found(b"".join([*lines[:3], line, *lines[4:]]), key) == (1, 2, "corrupt")
            assert found(resealed([*lines[:3], line, *lines[4:-1]], key), key) == (1, 2, "corrupt")
    # One that is gone, or whole and another one, is missed by the footer.
    assert found(b"".join([*lines[:3], *lines[4:]]), key) == (3, None, "changed")
    assert found(b"".join([*lines[:3], Blob(digest(b"x"), b"x").line(), *lines[4:]]), key) == (3, None, "changed")


def test_a_forged_footer_is_not_believed() -> None:
    """A footer is signed for this purpose with a key that is believed; anything else is named, and accuses no record."""
    key = signing("hmac")
    stored = chain(3, key)
    lines = exported(stored, key).splitlines(keepends=True)
    good = json.loads(lines[-1])["footer"]
    with_other_signature = lines[-1].replace(good["sig"].encode(), json.loads(stored[0])["sig"].encode())
    for footer, kind in (
        (with_other_signature, "forged"),
        (lines[-1].replace(b'"count":3', b'"count":2'), "corrupt"),
        (lines[-1].replace(b'"v":1', b'"v":2'), "corrupt"),
        (b'{"footer":%b}\n' % seal(canonical({**good["body"], "v": 2}), key, bundle.DOMAIN), "newer"),
        (b'{"footer":%b}\n' % seal(canonical({**good["body"], "more": 1}), key, bundle.DOMAIN), "corrupt"),
        (b'{"footer":%b}\n' % seal(canonical({**good["body"], "seq": "3"}), key, bundle.DOMAIN), "corrupt"),
        (b'{"footer":%b}\n' % seal(canonical({**good["body"], "hash": 3}), key, bundle.DOMAIN), "corrupt"),
        (b'{"footer":%b}\n' % seal(canonical(good["body"]), key), "forged"),
        (b'{"footer":{}}\n', "corrupt"),
        (b'{"footer":' + stored[0] + b"}\n", "corrupt"),
        (b'{"footer":\n', "corrupt"),
        (lines[-1].replace(b'"key":"k1"', b'"key":"k9"'), "unknown key"),
    ):
        assert found(b"".join([*lines[:-1], footer]), key) == (3, None, kind)
    assert found(b"".join([*lines, lines[1]]), key) == (3, None, "corrupt")
    assert found(b"".join([*lines, lines[-1]]), key) == (3, None, "corrupt")


def test_a_footer_that_miscounts_is_not_believed() -> None:
    """Each thing that the footer says is held against the file, whoever signed it."""
    key = signing("hmac")
    stored = chain(3, key)
    before = b"".join(exported(stored, key).splitlines(keepends=True)[:-1])
    right: dict[str, Any] = {"seq": 3, "hash": digest(stored[-1]), "count": 3, "sha256": digest(before)}
    for wrong, expected in (
        ({}, (3, None, None)),
        ({"count": 4}, (3, None, "changed")),
        ({"sha256": "ab" * 32}, (3, None, "changed")),
        ({"seq": 2, "hash": digest(stored[1])}, (3, None, "changed")),
        ({"hash": "ab" * 32}, (2, 3, "forked")),
        ({"seq": 4}, (3, 4, "truncated")),
    ):
        footer = bundle.Footer(**{**right, **wrong})
        assert found(before + footer.line(key), key) == expected


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\n",
        b"{}\n",
        b"[1]\n",
        b"null\n",
        b'{"leasekeeper":"export","format":1}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
    ],
)
def test_junk_is_no_export(junk: bytes) -> None:
    """What does not begin with a header is said to be none; reading it raises CorruptState."""
    assert found(junk) == (0, None, "corrupt")
    if junk:
        assert found(junk + exported(chain(1))) == (0, None, "corrupt")
    with pytest.raises(CorruptState, match="the header cannot be trusted"):
        read_export(io.BytesIO(junk))


def test_a_header_has_one_spelling() -> None:
    """Another order, format, type or white space in the header is not taken."""
    line = header_of(chain(1)).line()
    good = json.loads(line)
    wrong: list[dict[str, Any]] = [
        {"format": 0},
        {"format": "2"},
        {"leasekeeper": "other"},
        {"gen": "1"},
        {"gen": -1},
        {"gen": True},
        {"gen": 2**60},
        {"ns": 5},
        {"ns": "\ud800"},
        {"run": []},
        {"run": {"id": 1, "wf": "x"}},
        {"meta": 5},
        {"meta": {"base64": "?"}},
        {"meta": {"base64": base64.b64encode(b"text").decode()}},
        {"more": 1},
    ]
    for fields in wrong:
        spelled = json.dumps({**good, **fields}, separators=(",", ":"), sort_keys=True).encode()
        with pytest.raises(CorruptState, match="the header"):
            bundle.read_header(spelled)
    with pytest.raises(CorruptState):
        bundle.read_header(json.dumps(good, sort_keys=True).encode())
    assert bundle.read_header(line[:-1]) == header_of(chain(1))


def test_a_huge_line_is_not_read() -> None:
    """A line longer than any can be is refused after so many bytes, wherever it stands."""

    class Endless(io.RawIOBase):
        """A file that goes on without a line feed."""

        def __init__(self, before: bytes) -> None:
            self.before = io.BytesIO(before)
            self.asked = 0

        def readable(self) -> bool:
            return True

        def readline(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert 0 < size <= bundle.LINE_MAX + 1
            self.asked += 1
            return self.before.readline(size) or b"x" * size

    stored = chain(2)
    before = b"".join(exported(stored).splitlines(keepends=True)[:2])
    endless: Any = Endless(before)
    verdict = verify_export(endless)
    assert (verdict.verified, verdict.bad, verdict.kind) == (1, None, "corrupt")
    assert "line 3" in verdict.why
    assert endless.asked == 3
    nothing: Any = Endless(b"")
    with pytest.raises(CorruptState, match="longer than"):
        Export(nothing)


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


# ---------------------------------------------------------------- time travel


def story(key: SigningKey | None = None) -> list[bytes]:
    """A run with a bit of everything."""
    author = Author(key)
    checkpoint = {"min_reader": 1, "name": "state", "schema": "OrderState", "version": 1}
    author.write("opened", {"restarts": 0})
    author.write("intent", {"attempt": 1}, step="charge")
    author.write("outcome", {"checkpoint": {**checkpoint, "data": {"paid": 1}, "n": 1}, "result": 1}, step="charge")
    author.write("phase", {"from": "staged", "n": 1, "name": "ca", "to": "distributed"})
    author.write("before", {"attempt": 1}, step="plan")
    author.write("raised", {"applied": None}, step="plan")
    author.write("in_doubt", {"why": "nobody can tell"}, step="plan")
    author.write("resolved", {"applied": False}, step="plan")
    author.write("before", {"attempt": 2}, step="plan")
    author.write("raised", {"applied": False}, step="plan")
    author.write("conflict", {"pre": None}, step="ship")
    author.write("checkpoint", {**checkpoint, "data": {"paid": 2}, "n": 2})
    author.write("finished", {})
    return author.stored


def test_a_run_is_seen_as_it_was_at_any_record() -> None:
    """State at a record is what the records up to it say, and nothing of those after it."""
    data = exported(story())
    seen = [state_at(io.BytesIO(data), seq) for seq in range(14)]
    assert seen[0] == {"status": "running", "steps": {}, "checkpoints": {}, "phases": {}}
    assert [state["steps"].get("charge") for state in seen] == [None, None, "intent", *["done"] * 11]
    plan = [None] * 5 + ["intent", "intent", "in_doubt", "cleared", "intent", *["cleared"] * 4]
    assert [state["steps"].get("plan") for state in seen] == plan
    assert [state["status"] for state in seen] == ["running"] * 7 + ["in_doubt"] + ["running"] * 5 + ["finished"]
    paid = [state["checkpoints"].get("state", {}).get("paid") for state in seen]
    assert paid == [None] * 3 + [1] * 9 + [2] * 2
    assert [state["phases"].get("ca") for state in seen] == [None] * 4 + ["distributed"] * 10
    assert seen[-1]["steps"] == {"charge": "done", "plan": "cleared", "ship": "conflict"}


def test_an_error_that_says_nothing_settles_nothing() -> None:
    """Only an effect that surely did not happen clears its step."""
    for applied, state in ((None, "intent"), (True, "intent"), (False, "cleared")):
        author = Author()
        author.write("intent", {}, step="step")
        author.write("raised", {"applied": applied}, step="step")
        assert state_at(io.BytesIO(exported(author.stored)), 2)["steps"] == {"step": state}


def test_a_quarantine_and_a_doubt_end_by_an_operators_word() -> None:
    """Lifting a quarantine leaves a run in doubt as long as a step is, and a word on that step ends it."""
    author = Author()
    author.write("opened", {})
    for step in ("one", "two"):
        author.write("intent", {}, step=step)
        author.write("in_doubt", {}, step=step)
    author.write("quarantined", {"restarts": 11})
    author.write("resolved", {"applied": False})
    author.write("resolved", {"applied": True}, step="one")
    author.write("resolved", {"applied": False}, step="two")
    data = exported(author.stored)
    seen = [state_at(io.BytesIO(data), seq) for seq in range(5, 10)]
    assert [state["status"] for state in seen] == ["in_doubt", "quarantined", "in_doubt", "in_doubt", "running"]
    assert [state["steps"]["one"] for state in seen] == ["in_doubt"] * 3 + ["done"] * 2
    assert seen[-1]["steps"] == {"one": "done", "two": "cleared"}


def test_there_is_no_state_beyond_what_is_recorded_or_believed() -> None:
    """A number that there is not is a ConfigError; one from the first bad record on is CorruptState, though it could be read."""
    key = signing("hmac")
    stored = story(key)
    data = exported(stored, key)
    for seq in (14, -1, True, "1"):
        with pytest.raises(ConfigError, match="seq"):
            state_at(io.BytesIO(data), seq, ring_of(key))  # type: ignore[arg-type]
    stored[5] = rewritten(stored[5], lambda body: body.update(data={"applied": True}))
    tampered = exported(stored, key)
    assert state_at(io.BytesIO(tampered), 5, ring_of(key))["steps"] == {"charge": "done", "plan": "intent"}
    for seq in (6, 13):
        with pytest.raises(CorruptState, match="record 6 is forged"):
            state_at(io.BytesIO(tampered), seq, ring_of(key))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("checkpoint", {}),
        ("checkpoint", {"name": 5, "schema": "S", "version": 1, "min_reader": 1, "n": 1, "data": {}}),
        ("checkpoint", {"name": "n", "schema": "S", "version": 1, "min_reader": 1, "n": 1, "data": None}),
        ("outcome", {"checkpoint": []}),
        ("phase", {"name": "x"}),
        ("raised", {}),
        ("raised", {"applied": "no"}),
        ("resolved", {}),
        ("resolved", {"applied": None}),
    ],
)
def test_a_record_that_its_kind_does_not_allow_is_corrupt(kind: str, data: dict[str, Any]) -> None:
    """What cannot be understood has no state, rather than a part of one."""
    author = Author()
    author.write()
    author.write(kind, data, step="step")
    stream = io.BytesIO(exported(author.stored))
    with pytest.raises(CorruptState, match=f"no record of kind '{kind}'"):
        state_at(stream, 2)
