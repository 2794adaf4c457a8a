"""Every record of a run reads back as it was written, and with any byte changed not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasekeeper.canonical import canonical
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.halt import halts
from leasekeeper.protocol.head import Head, read_head
from leasekeeper.protocol.identity import Identity, idempotency_key, read_identity
from leasekeeper.protocol.meta import read_meta
from leasekeeper.protocol.pointer import Pointer, read_pointer
from leasekeeper.protocol.receipt import (
    DOMAIN,
    Draft,
    Writer,
    link,
    read_receipt,
    seal,
    signature_bytes,
    signed_part,
    step_text,
    text_of,
)
from leasekeeper.protocol.run_keys import RunName
from leasekeeper.run_errors import CorruptState
from leasekeeper.schema_errors import SchemaTooNew
from leasekeeper.signing import HmacKey

KEY = HmacKey("k1", b"s" * 32)
names = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=20)
hexes = st.text("0123456789abcdef", min_size=32, max_size=32)
hashes = st.text("0123456789abcdef", min_size=64, max_size=64)
numbers = st.integers(0, 2**53 - 1)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
heads = st.builds(
    Head,
    gen=st.integers(1, 9),
    seq=numbers,
    hash=hashes,
    status=st.sampled_from(["running", "in_doubt", "quarantined", "finished"]),
    token=st.integers(0, 2**63 - 1),
    holder=names,
    life=hexes,
    at_ms=numbers,
    done=numbers,
    restarts=numbers,
    doubts=st.lists(names, max_size=3).map(tuple),
    due=st.lists(names, max_size=3).map(tuple),
    key_id=st.sampled_from(["", "k1"]),
    size=numbers,
)
pointers = st.builds(
    Pointer,
    kind=st.sampled_from(["do", "memo"]),
    state=st.sampled_from(["intent", "done", "in_doubt", "cleared", "conflict"]),
    args=hashes,
    idem=hexes,
    effect=names,
    at_ms=numbers,
    intent=numbers,
    outcome=numbers,
    attempts=numbers,
)


@st.composite
def receipts(draw: st.DrawFn, key: HmacKey | None = None) -> bytes:
    """Stored records."""
    writer = Writer(
        workflow=draw(names),
        id=draw(names),
        gen=draw(st.integers(1, 9)),
        namespace_id=draw(hexes),
        token=draw(st.integers(0, 2**63 - 1)),
        claim=draw(hexes),
        holder=draw(names),
        life=draw(hexes),
        key=key,
    )
    data = canonical(draw(st.dictionaries(names, values, max_size=4)))
    made = Draft(draw(st.sampled_from(["intent", "outcome", "note"])), draw(names | st.just("")), data, draw(hexes))
    return writer.seal(made, seq=draw(st.integers(1, 10_000)), prev=draw(hashes), at_ms=draw(numbers))


def of_pointer(stored: bytes) -> Pointer:
    """A pointer from its bytes."""
    return read_pointer(pb.KeyValue(key=b"step", value=stored))


identities = st.builds(
    lambda uuid, secret: seal(f'{{"secret":"{secret}","uuid":"{uuid}","v":1}}'.encode(), None), hexes, hashes
)
metas = st.builds(
    lambda by, life, given: seal(
        b'{"at":1,"by":%b,"gen":1,"id":"i","input":%b,"life":"%b","v":1,"wf":"w"}'
        % (text_of(by).encode(), canonical(given), life.encode()),
        None,
    ),
    names,
    hexes,
    values,
)
CASES: dict[str, tuple[st.SearchStrategy[bytes], Callable[[bytes], Any]]] = {
    "receipt": (receipts(), lambda stored: read_receipt(stored, "here")),
    "head": (heads.map(Head.stored), lambda stored: read_head(stored, "here")),
    "pointer": (pointers.map(Pointer.stored), of_pointer),
    "identity": (identities, lambda stored: read_identity(stored, "here")),
    "meta": (metas, lambda stored: read_meta(stored, "here")),
}


@pytest.mark.parametrize("kind", sorted(CASES))
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_byte_that_is_changed_shows(kind: str, data: st.DataObject) -> None:
    """A3: with any one byte replaced, taken out, put in or repeated, it is CorruptState, and nothing else is ever raised."""
    strategy, read = CASES[kind]
    stored = data.draw(strategy)
    read(stored)
    at = data.draw(st.integers(0, len(stored) - 1))
    byte = bytes([data.draw(st.integers(0, 255))])
    changed = data.draw(
        st.sampled_from(
            [
                stored[:at] + byte + stored[at + 1 :],
                stored[:at] + stored[at + 1 :],
                stored[:at] + byte + stored[at:],
                stored[:at],
                stored + byte,
                stored[at:] + stored[:at],
            ]
        )
    )
    if changed != stored:
        with pytest.raises(CorruptState):
            read(changed)


@pytest.mark.parametrize("kind", sorted(CASES))
@given(junk=st.binary(max_size=300) | values.map(canonical))
def test_what_was_never_written_by_us_is_corrupt(kind: str, junk: bytes) -> None:
    """A3: whatever else stands in a key, also JSON, is CorruptState."""
    with pytest.raises(CorruptState):
        CASES[kind][1](junk)


@pytest.mark.parametrize("kind", sorted(CASES))
@given(body=st.dictionaries(names, values, max_size=4).map(canonical) | values.map(canonical))
def test_what_is_sealed_and_is_something_else_is_corrupt(kind: str, body: bytes) -> None:
    """A3: a seal that is right around something that is no such record, as one of another kind, is CorruptState."""
    with pytest.raises(CorruptState):
        CASES[kind][1](seal(body, None))


@pytest.mark.parametrize("kind", sorted(CASES))
@given(data=st.data())
def test_a_newer_format_is_not_guessed_at(kind: str, data: st.DataObject) -> None:
    """B17: the same record in format 2 is refused as newer, not read as far as it is known, nor called damaged."""
    strategy, read = CASES[kind]
    body = signed_part(data.draw(strategy))
    at = body.rindex(b'"v":1')
    with pytest.raises(SchemaTooNew) as told:
        read(seal(body[:at] + b'"v":2' + body[at + 5 :], None))
    assert (told.value.version, told.value.reads, told.value.where != "") == (2, 1, True)


@given(heads)
def test_a_head_reads_back(head: Head) -> None:
    """What is read is what was written."""
    assert read_head(head.stored(), "here") == head


@given(pointers)
def test_a_pointer_reads_back(pointer: Pointer) -> None:
    """What is read is what was written."""
    assert of_pointer(pointer.stored()) == pointer


@given(receipts(KEY))
def test_a_receipt_reads_back(stored: bytes) -> None:
    """What a record says of itself, also where it is read without being parsed, and its signature, are what was written."""
    receipt = read_receipt(stored, "here")
    assert link(stored) == (receipt.prev, receipt.seq)
    assert step_text(stored).decode() == text_of(receipt.step)
    assert KEY.verifies(DOMAIN + signed_part(stored), signature_bytes(receipt.signature))
    assert receipt.run == RunName(receipt.workflow, receipt.id).text


@settings(max_examples=150)
@given(receipts(KEY), st.data())
def test_any_byte_of_a_signed_receipt_that_is_changed_shows(stored: bytes, data: st.DataObject) -> None:
    """A3, A20: also in its signature: it does not read, or does not verify."""
    at = data.draw(st.integers(0, len(stored) - 1))
    byte = data.draw(st.integers(0, 255))
    changed = stored[:at] + bytes([byte]) + stored[at + 1 :]
    if changed == stored:
        return
    try:
        receipt = read_receipt(changed, "here")
        raw = signature_bytes(receipt.signature)
    except (CorruptState, ValueError):
        return
    assert receipt.key_id != KEY.key_id or not KEY.verifies(DOMAIN + signed_part(changed), raw)


@given(st.binary(max_size=200), names)
def test_a_halt_whose_record_is_anything_halts_its_scope(value: bytes, scope: str) -> None:
    """B15: what a halt covers is told by its key alone; its record can hold anything."""
    from leasekeeper.protocol.keys import escape

    (found,) = halts([pb.KeyValue(key=b"halt/" + escape(scope).encode(), value=value, mod_revision=7)], b"halt/")
    assert (found.scope, found.revision) == (scope, 7)


@given(names, names, names, names, st.integers(1, 9), names)
def test_idempotency_keys_differ_wherever_anything_does(
    wf: str, one: str, other: str, step: str, gen: int, step2: str
) -> None:
    """A18: the key of a step is a function of run, generation and step, and of nothing else; no two of them share one."""
    secret = b"s" * 32
    key = idempotency_key(secret, RunName(wf[:20], one[:20]), gen, step)
    assert key == idempotency_key(secret, RunName(wf[:20], one[:20]), gen, step)
    for another in (
        (wf[:20], other[:20], gen, step),
        (wf[:20], one[:20], gen + 1, step),
        (wf[:20], one[:20], gen, step2),
    ):
        same = another == (wf[:20], one[:20], gen, step)
        assert (idempotency_key(secret, RunName(*another[:2]), another[2], another[3]) == key) is same


def test_an_identity_does_not_show_its_secret() -> None:
    """The secret of a namespace stands in no repr."""
    identity = Identity("a" * 32, b"very secret bytes", b"stored with very secret bytes")
    assert "secret" not in repr(identity)
