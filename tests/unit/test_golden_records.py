"""Formats of runs that were released: read to the same values, written as the same bytes; newer ones are refused by name."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leasekeeper._version import __version__
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.bundle import Footer, parse_line
from leasekeeper.protocol.chain import verify_chain
from leasekeeper.protocol.halt import halts
from leasekeeper.protocol.history import Walk
from leasekeeper.protocol.receipt import DOMAIN, read_receipt, seal, signed_part
from leasekeeper.protocol.run_keys import RunKeys
from leasekeeper.protocol.schema import FORMAT, read_envelope
from leasekeeper.run_errors import CorruptState
from leasekeeper.run_records import Kind
from leasekeeper.runs.anchored import anchored_in
from leasekeeper.runs.anchored import parse_line as parse_anchor
from leasekeeper.runs.export import read_export, verify_export
from leasekeeper.schema_errors import SchemaTooNew
from leasekeeper.signing import HmacKey, SigningKey
from tests.chains import has_cryptography, ring_of
from tests.golden import records
from tests.golden.formats import HERE, stored
from tests.golden.write import RELEASE, files

SIGNED = ["unsigned", "hmac", pytest.param("ed25519", marks=pytest.mark.skipif(not has_cryptography(), reason="extra"))]
SEALED = [name for name in records.FORMATS if name != "phase"]

# Of all files, in order of their names: neither they nor the code can change alone. A released one is never touched again.
SHA256 = "b625343947aca4707eef4c654827184681b8f59ab1e5c753f5cd8ec43559b8ed"


def key_of(kind: str) -> SigningKey | None:
    """A key of the fixtures."""
    return records.keys()[kind]


def lines_of(name: str) -> list[bytes]:
    """The lines of a file."""
    return (HERE / RELEASE / name).read_bytes().splitlines()


def newer(sealed: bytes, key: SigningKey | None = None, domain: bytes = DOMAIN) -> bytes:
    """The same in format 2, sealed as it should be."""
    body = json.loads(signed_part(sealed))
    return seal(
        json.dumps({**body, "v": 2}, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode(), key, domain
    )


# ---------------------------------------------------------------- as they were released


def test_the_files_are_those_that_were_released() -> None:
    """A file of a release never changes; a new format is a new number and a new directory."""
    names = sorted(path.name for path in (HERE / RELEASE).iterdir() if path.name != "checkpoint.json")
    assert names == sorted(files())
    whole = b"".join(hashlib.sha256((HERE / RELEASE / name).read_bytes()).digest() for name in names)
    assert hashlib.sha256(whole).hexdigest() == SHA256
    assert __version__ == RELEASE  # a next release adds a directory, and keeps this one


@pytest.mark.parametrize("name", sorted(records.FORMATS))
def test_a_stored_value_is_read_and_written_alike(name: str) -> None:
    """B20: what the first release stored is read to the same value, and the value is written as the same bytes."""
    one, then = records.FORMATS[name], stored(RELEASE, name)
    assert one.read(then) == one.value
    assert one.write() == then


@pytest.mark.parametrize("kind", SIGNED)
def test_each_kind_of_record_is_read_and_written_alike(kind: str) -> None:
    """B20: records of every kind, unsigned and signed by either kind of key, with the same values, bytes and signatures."""
    key, then = key_of(kind), lines_of(f"records-{kind}.jsonl")
    assert records.receipts(key) == then
    for seq, line in enumerate(then, 1):
        records.check_receipt(seq, read_receipt(line, "it"), key)
    found = verify_chain(list(enumerate(then, 1)), ring=ring_of(key))
    # The rotation in the chain names no keys: that it tells of another than signs is the first thing that is wrong.
    rotated = next(seq for seq, (_, what, _) in enumerate(records.RECORDS, 1) if what == "rotated")
    assert found.verified == (len(then) if key is None else rotated - 1)
    assert {what for _, what, _ in records.RECORDS} == set(Kind.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", SIGNED)
def test_an_export_is_read_and_written_alike(kind: str) -> None:
    """B14, B20: header, records, values and footer."""
    key, then = key_of(kind), (HERE / RELEASE / f"export-{kind}.jsonl").read_bytes()
    assert records.export(key) == then
    header, lines, count = records.read_back(then)
    assert (header.workflow, header.id, header.gen) == (records.RUN.workflow, records.RUN.id, 2)
    assert (header.meta, count, len(lines)) == (stored(RELEASE, "meta"), len(records.RECORDS), count + 1)
    if key is None:
        assert verify_export(io.BytesIO(then)).verified == count


def test_an_anchor_is_read_and_written_alike() -> None:
    """B20: the lines of an anchor's file, the sums over them, and what an operator gave up for lost."""
    then = (HERE / RELEASE / "anchor.jsonl").read_bytes()
    assert records.anchor() == then
    assert tuple(anchored_in(then.splitlines())) == records.ANCHORED


def test_keys_are_spelled_alike() -> None:
    """B20: how keys are spelled, where idempotency keys come from, and how long a piece of a large value is."""
    assert records.names() == (HERE / RELEASE / "names.json").read_bytes().removesuffix(b"\n")


def test_writing_them_again_changes_nothing(tmp_path: Path) -> None:
    """The files come from their script alone: the same bytes in another process, with another seed of hashes."""
    made = {name: make() for name, make in files().items() if "ed25519" not in name or has_cryptography()}
    assert made == {name: (HERE / RELEASE / name).read_bytes() for name in made}
    code = "import hashlib;from tests.golden import records as r;print(hashlib.sha256(r.anchor()+r.export(None)).hexdigest())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == hashlib.sha256(made["anchor.jsonl"] + made["export-unsigned.jsonl"]).hexdigest()


# ---------------------------------------------------------------- newer ones


@pytest.mark.parametrize("name", [name for name in SEALED if name != "halt"])
def test_a_newer_value_is_refused_by_name(name: str) -> None:
    """B17, B20: format 2 of each value is SchemaTooNew, with record and number; it is not called damaged."""
    with pytest.raises(SchemaTooNew, match="newer leasekeeper") as told:
        records.FORMATS[name].read(newer(stored(RELEASE, name)))
    assert (told.value.version, told.value.reads, told.value.where) == (2, 1, "it")
    assert not isinstance(told.value, CorruptState)


def test_a_newer_halt_halts_and_says_so() -> None:
    """B15, B17: a halt of a newer format halts its scope all the same."""
    kv = pb.KeyValue(key=b"halt/*", value=newer(stored(RELEASE, "halt")), mod_revision=7)
    (found,) = halts([kv], b"halt/")
    assert found.scope == "*"
    assert "newer leasekeeper" in found.reason


def test_a_newer_envelope_is_refused_by_name() -> None:
    """B17: so is a checkpoint's or a phase's envelope."""
    from leasekeeper.canonical import canonical

    for name in ("phase", "checkpoint"):
        fields = {**json.loads(stored(RELEASE, name)), "v": FORMAT + 1}
        del fields["digest"]
        later = canonical({**fields, "digest": hashlib.sha256(canonical(fields)).hexdigest()})
        with pytest.raises(SchemaTooNew, match="newer leasekeeper") as told:
            read_envelope(later, "ck/x")
        assert (told.value.version, told.value.where) == (2, "ck/x")


@pytest.mark.parametrize("at", [1, 5, len(records.RECORDS)])
def test_a_newer_record_in_a_chain_is_named(at: int) -> None:
    """B17, A5: a chain verifies up to a record of a newer format, which is told as that."""
    then = lines_of("records-unsigned.jsonl")
    kept = [*then[: at - 1], newer(then[at - 1])]
    found = verify_chain(list(enumerate(kept, 1)))
    assert (found.verified, found.bad, found.kind) == (at - 1, at, "newer")
    assert "newer leasekeeper" in found.why


def test_a_newer_record_is_told_where_its_place_cannot_be() -> None:
    """B17: a later format may tie records to each other in another way; it is not called a broken chain."""
    walk = Walk(RunKeys(records.KEYS.keys, records.RUN))
    body = {"after": "0" * 64, "v": 2}
    with pytest.raises(SchemaTooNew):
        walk._take_in([(1, seal(json.dumps(body, separators=(",", ":")).encode(), None))])


def test_newer_lines_of_an_export_are_named() -> None:
    """B14, B17: a header, a record or a footer of a newer format; `verify_export` never raises for what a file holds."""
    lines = lines_of("export-unsigned.jsonl")
    header = json.dumps(
        {**json.loads(lines[0]), "format": 2}, separators=(",", ":"), sort_keys=True, ensure_ascii=False
    )
    footer = parse_line(lines[-1], "the footer")
    assert isinstance(footer, Footer)
    sealed = lines[-1].removeprefix(b'{"footer":')[:-1]
    for changed in (
        [header.encode(), *lines[1:]],
        [lines[0], newer(lines[1]), *lines[2:]],
        [*lines[:-1], b'{"footer":' + newer(sealed, None) + b"}"],
    ):
        found = verify_export(io.BytesIO(b"".join(line + b"\n" for line in changed)))
        assert found.kind == "newer"
        assert "newer leasekeeper" in found.why
    with pytest.raises(SchemaTooNew):
        read_export(io.BytesIO(header.encode() + b"\n"))


def test_a_newer_line_of_an_anchor_is_named() -> None:
    """B17: one line of a later format stops the reading of the file, with its number."""
    lines = lines_of("anchor.jsonl")
    body = lines[2].partition(b',"sum":')[0].replace(b'"v":1', b'"v":2')
    total = hashlib.sha256(b"leasekeeper anchor v1\n" + body).hexdigest()
    line = body + b',"sum":"%b"}' % total.encode()
    with pytest.raises(SchemaTooNew, match=r"anchor line 3.*newer leasekeeper"):
        list(anchored_in([*lines[:2], line]))
    with pytest.raises(SchemaTooNew):
        parse_anchor(line)


def test_an_older_or_no_number_is_no_newer_one() -> None:
    """A3: format 0, or none, was never written: that is CorruptState."""
    for name in SEALED:
        if name == "halt":
            continue
        body: dict[str, Any] = json.loads(signed_part(stored(RELEASE, name)))
        for number in (0, -1, True, "2", 1.5, None):
            changed = json.dumps({**body, "v": number}, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
            with pytest.raises(CorruptState):
                records.FORMATS[name].read(seal(changed.encode(), None))


def test_a_signature_of_the_first_release_is_checked() -> None:
    """A20: a record of the first release with one bit of its signature changed is not believed."""
    key = key_of("hmac")
    assert isinstance(key, HmacKey)
    then = lines_of("records-hmac.jsonl")
    forged = then[0].replace(b'"sig":"', b'"sig":"A', 1)
    assert verify_chain([(1, then[0])], ring=ring_of(key)).verified == 1
    assert verify_chain([(1, forged)], ring=ring_of(key)).verified == 0
