"""Random chains and exports, tampered with once at a random place: it is always named, and nothing behind it is verified."""

from __future__ import annotations

import io
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.canonical import canonical
from leasekeeper.protocol.chain import verify_chain
from leasekeeper.protocol.receipt import FIRST_PREV, digest
from leasekeeper.runs.export import Blob, Header, Record, state_at, verify_export, write_export
from leasekeeper.signing import SigningKey
from tests.chains import NAMESPACE_ID, RUN, Author, flipped, placed, rewritten, ring_of, signing, unplaced

texts = st.text(st.characters(codec="utf-8"), max_size=20)
whole = st.integers(-(2**53) + 1, 2**53 - 1)
values = st.recursive(
    st.none() | st.booleans() | whole | st.floats(-1e15, 1e15) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
contents = st.dictionaries(texts, values, max_size=3)
kinds = st.sampled_from(["unsigned", "hmac"])
orders = st.sampled_from([placed, unplaced])
KEYS = ("k1", "k2", "k3")


@st.composite
def chains(draw: Any, least: int = 1) -> tuple[list[bytes], list[SigningKey | None]]:
    """A chain of random records, signed or not, with a rotation here and there; and the keys that sign it."""
    kind = draw(kinds)
    keys = [signing(kind, key_id) for key_id in KEYS]
    author, at = Author(keys[0]), 0
    for content in draw(st.lists(contents, min_size=least, max_size=8)):
        if author.stored and keys[0] is not None and at < len(keys) - 1 and draw(st.integers(0, 3)) == 0:
            at += 1
            author.rotate(keys[at], by=draw(st.sampled_from(["old", "new"])))
        else:
            author.write(data=content)
    return author.stored, keys


def head_of(stored: list[bytes]) -> tuple[int, str]:
    """What a head remembers of these."""
    return len(stored), digest(stored[-1]) if stored else FIRST_PREV


@given(chains(), orders)
def test_what_was_written_verifies(made: tuple[list[bytes], list[SigningKey | None]], order: Any) -> None:
    """No chain as it was written is ever suspected, with any contents and rotations, and each prefix is one."""
    stored, keys = made
    for length in range(len(stored) + 1):
        verdict = verify_chain(order(stored[:length]), ring=ring_of(*keys), head=head_of(stored[:length]))
        assert verdict.ok, verdict.why
        assert verdict.verified == length


@given(chains(), orders, st.data())
def test_one_changed_bit_is_named(
    made: tuple[list[bytes], list[SigningKey | None]], order: Any, data: st.DataObject
) -> None:
    """A20: whichever bit of whichever record is another one, that record is the first bad one."""
    stored, keys = made
    at = data.draw(st.integers(1, len(stored)))
    bit = data.draw(st.integers(0, 8 * len(stored[at - 1]) - 1))
    head = head_of(stored)
    tampered = [*stored]
    tampered[at - 1] = flipped(stored[at - 1], bit)
    verdict = verify_chain(order(tampered), ring=ring_of(*keys), head=head)
    assert (verdict.verified, verdict.bad) == (at - 1, at), verdict.why
    assert verdict.hash == head_of(stored[: at - 1])[1]


@given(chains(least=3), orders, st.data())
def test_each_tampering_is_named(
    made: tuple[list[bytes], list[SigningKey | None]], order: Any, data: st.DataObject
) -> None:
    """A5: one record removed, two swapped, one written anew, one repeated, the tail cut: the first bad record and the kind."""
    stored, keys = made
    ring, head = ring_of(*keys), head_of(stored)
    first = data.draw(st.integers(1, len(stored) - 1))
    second = data.draw(st.integers(first + 1, len(stored)))
    swapped = [*stored]
    swapped[first - 1], swapped[second - 1] = stored[second - 1], stored[first - 1]
    anew = [*stored]
    anew[first - 1] = rewritten(stored[first - 1], lambda body: body.update(nonce="another"))
    removed = [pair for pair in placed(stored) if pair[0] != first]
    if order is unplaced:
        removed = unplaced([each for _, each in removed])
    for records, kind in (
        (order(swapped), "swapped"),
        (removed, "removed"),
        (order(anew), "changed" if ring is None else "forged"),
    ):
        verdict = verify_chain(records, ring=ring, head=head)
        assert (verdict.verified, verdict.bad, verdict.kind) == (first - 1, first, kind), verdict.why
    cut = verify_chain(order(stored[:first]), ring=ring, head=head)
    assert (cut.verified, cut.bad, cut.kind) == (first, first + 1, "truncated"), cut.why
    again = verify_chain(unplaced([*stored[:second], stored[first - 1], *stored[second:]]), ring=ring, head=head)
    assert (again.verified, again.bad, again.kind) == (second, second + 1, "swapped"), again.why


@given(st.lists(contents, min_size=2, max_size=6), kinds, orders, st.data())
def test_two_histories_do_not_make_one(story: list[dict[str, Any]], kind: str, order: Any, data: st.DataObject) -> None:
    """A5: whatever is taken from another history of the same run, from any record on, is not verified."""
    key = signing(kind)
    ours, theirs = Author(key), Author(key)
    apart = data.draw(st.integers(1, len(story)))
    for seq, content in enumerate(story, 1):
        ours.write(data=content)
        theirs.write(data=content if seq < apart else {"other": content})
    joint = data.draw(st.integers(apart, len(story)))
    mixed = ours.stored[:joint] + theirs.stored[joint:]
    verdict = verify_chain(order(mixed), ring=ring_of(key), head=head_of(theirs.stored))
    assert verdict.kind in ("forked", "changed")
    assert verdict.bad is not None
    # With keys it is the first that does not follow; without, or at the end, the one that the next one or the head disowns.
    expected = joint + 1 if key is not None and joint < len(story) else joint
    assert (verdict.verified, verdict.bad) == (expected - 1, expected), verdict.why


@given(st.lists(st.tuples(st.none() | st.integers(0, 9), st.binary(max_size=200)), max_size=5), st.booleans())
def test_junk_is_never_verified(records: list[tuple[int | None, bytes]], signed: bool) -> None:
    """Whatever stands where records should be makes a verdict, not an exception, and none of it is verified."""
    verdict = verify_chain(records, ring=ring_of(signing("hmac")) if signed else None)
    assert verdict.verified == 0
    assert verdict.ok is (not records)


# ---------------------------------------------------------------- exports


def exported(stored: list[bytes], key: SigningKey | None, blobs: dict[int, bytes]) -> bytes:
    """An export with large values behind some records."""
    from leasekeeper.protocol.head import Head

    head = Head(seq=len(stored), hash=digest(stored[-1])).stored()
    header = Header(
        workflow=RUN[0], id=RUN[1], namespace_id=NAMESPACE_ID, gen=1, exported_at_ms=1, meta=b"{}", head=head
    )
    lines: list[Record | Blob] = []
    for seq, each in enumerate(stored, 1):
        lines.append(Record(seq, each))
        if seq in blobs:
            lines.append(Blob(digest(blobs[seq]), blobs[seq]))
    stream = io.BytesIO()
    write_export(stream, header, lines, key)
    return stream.getvalue()


def last_key(stored: list[bytes], keys: list[SigningKey | None]) -> SigningKey | None:
    """The key that signs after these records."""
    rotations = verify_chain(placed(stored)).rotations
    return next((key for key in keys if rotations and key is not None and key.key_id == rotations[-1].new), keys[0])


@given(chains(), st.dictionaries(st.integers(1, 8), st.binary(max_size=50), max_size=2), st.data())
def test_one_changed_bit_of_an_export_is_named(
    made: tuple[list[bytes], list[SigningKey | None]], blobs: dict[int, bytes], data: st.DataObject
) -> None:
    """A20: one bit anywhere in the file fails it; nothing from the record on in which that bit stands is verified."""
    stored, keys = made
    written = exported(stored, last_key(stored, keys), blobs)
    whole_file = verify_export(io.BytesIO(written), ring_of(*keys))
    assert whole_file.ok, whole_file.why
    assert whole_file.complete
    bit = data.draw(st.integers(0, 8 * len(written) - 1))
    verdict = verify_export(io.BytesIO(flipped(written, bit)), ring_of(*keys))
    assert not verdict.ok
    assert not verdict.complete
    before = written[: bit // 8]
    lines = before.split(b"\n")[1:]
    touched = sum(line.startswith(b'{"body":') for line in lines[:-1]) + 1
    in_record = any(each.startswith(lines[-1]) for each in stored[touched - 1 : touched]) if lines else False
    if in_record and lines[-1].startswith(b'{"body":'):
        assert (verdict.verified, verdict.bad) == (touched - 1, touched), verdict.why


@given(chains(), st.dictionaries(st.integers(1, 8), st.binary(max_size=50), max_size=2), st.data())
def test_every_cut_of_an_export_is_named(
    made: tuple[list[bytes], list[SigningKey | None]], blobs: dict[int, bytes], data: st.DataObject
) -> None:
    """A5: an export without its end, or without any one of its lines, is not whole."""
    stored, keys = made
    ring = ring_of(*keys)
    written = exported(stored, last_key(stored, keys), blobs)
    length = data.draw(st.integers(0, len(written) - 1))
    assert not verify_export(io.BytesIO(written[:length]), ring).ok
    lines = written.splitlines(keepends=True)
    gone = data.draw(st.integers(0, len(lines) - 1))
    assert not verify_export(io.BytesIO(b"".join(lines[:gone] + lines[gone + 1 :])), ring).ok


@given(st.lists(st.binary(max_size=100), max_size=6), chains())
def test_junk_makes_a_verdict(junk: list[bytes], made: tuple[list[bytes], list[SigningKey | None]]) -> None:
    """Whatever a file holds, the verdict comes without an exception, and is not good."""
    stored, keys = made
    good = exported(stored, keys[0], {}).splitlines(keepends=True)
    joined = b"\n".join(junk)
    for data in (joined, good[0] + joined, good[0] + joined + b"\n" + good[-1], b"".join(good) + joined + b"x"):
        assert not verify_export(io.BytesIO(data), ring_of(*keys)).ok


@given(st.lists(st.tuples(st.sampled_from(["state", "other"]), contents), max_size=8))
def test_replayed_checkpoints_are_those_that_were_committed(commits: list[tuple[str, dict[str, Any]]]) -> None:
    """The state at each record has the last data committed up to it, byte by byte."""
    author, counts = Author(), {"state": 0, "other": 0}
    for name, data in commits:
        counts[name] += 1
        told = {"data": data, "min_reader": 1, "n": counts[name], "name": name, "schema": "S", "version": 1}
        author.write("checkpoint", told)
    author.write()
    written = exported(author.stored, None, {})
    for seq in range(len(commits) + 1):
        expected = dict(commits[:seq])
        assert canonical(state_at(io.BytesIO(written), seq)["checkpoints"]) == canonical(expected)
