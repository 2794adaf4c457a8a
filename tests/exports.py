"""Exports of runs for tests: written into memory, judged, and forged with a footer that fits."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest

from leasekeeper.protocol import bundle
from leasekeeper.protocol.head import Head
from leasekeeper.protocol.receipt import FIRST_PREV, digest
from leasekeeper.protocol.verdict import Verdict
from leasekeeper.runs.export import Blob, Header, Record, verify_export, write_export
from leasekeeper.signing import SigningKey
from tests.chains import (
    NAMESPACE_ID,
    RUN,
    ring_of,
)

LENGTH = 5
META = b'{"body":{"v":1},"hash":"","key":"","sig":""}'
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
