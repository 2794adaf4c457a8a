"""A run as a file that something was done to: cut or changed nowhere unseen, and the first bad record is named."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest

from leasekeeper.canonical import canonical
from leasekeeper.protocol import bundle
from leasekeeper.protocol.receipt import digest, seal
from leasekeeper.run_errors import CorruptState
from leasekeeper.runs.export import Blob, Export, read_export, verify_export
from tests.chains import (
    Author,
    chain,
    rewritten,
    signing,
)
from tests.exports import (
    LENGTH,
    each_signature,
    exported,
    found,
    head_of,
    header_of,
    resealed,
    verdict_of,
)


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
