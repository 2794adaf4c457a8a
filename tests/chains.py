"""Chains of records for tests: written as a run writes them, then tampered with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from leasekeeper.canonical import canonical
from leasekeeper.protocol.receipt import FIRST_PREV, Draft, Writer, digest, read_receipt, seal, signed_part
from leasekeeper.protocol.verdict import Verdict
from leasekeeper.signing import Ed25519Key, HmacKey, Keyring, SigningKey, VerifyingKey

NAMESPACE_ID = "0b" * 16
RUN = ("order", "order-42")
SECRETS = {key_id: key_id.encode() * 16 for key_id in ("k1", "k2", "k3")}


def has_cryptography() -> bool:
    """Whether the extra for signatures is installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        return False
    return True


needs_cryptography = pytest.mark.skipif(not has_cryptography(), reason="needs the extra leasekeeper[signing]")


def signing(kind: str, key_id: str = "k1") -> SigningKey | None:
    """A key of this kind: ``ed25519``, ``hmac``, or none for ``unsigned``."""
    if kind == "ed25519":
        return Ed25519Key(key_id, SECRETS[key_id])
    return HmacKey(key_id, SECRETS[key_id]) if kind == "hmac" else None


def verifying(key: SigningKey) -> VerifyingKey:
    """What verifies the signatures of a key."""
    if isinstance(key, Ed25519Key):
        return key.public
    assert isinstance(key, HmacKey)
    return key


def ring_of(*keys: SigningKey | None) -> Keyring | None:
    """The keys to believe; None when nothing is signed."""
    given = [verifying(key) for key in keys if key is not None]
    return Keyring(*given) if given else None


@dataclass
class Author:
    """Writes records of one run, one after the other; whatever of it is changed in between holds for the next record."""

    key: SigningKey | None = None
    namespace_id: str = NAMESPACE_ID
    run: tuple[str, str] = RUN
    gen: int = 1
    stored: list[bytes] = field(default_factory=list)
    prev: str = FIRST_PREV

    def write(self, kind: str = "note", data: dict[str, Any] | None = None, *, step: str = "", seq: int = 0) -> bytes:
        """The next record, or one of another number."""
        seq = seq or len(self.stored) + 1
        writer = Writer(
            workflow=self.run[0],
            id=self.run[1],
            gen=self.gen,
            namespace_id=self.namespace_id,
            token=7,
            claim="c" * 32,
            holder="test",
            life="1f" * 16,
            key=self.key,
        )
        content = canonical({"number": seq} if data is None else data)
        draft = Draft(kind=kind, step=step, data=content, nonce=f"{seq:032x}")
        stored = writer.seal(draft, seq=seq, prev=self.prev, at_ms=1_700_000_000_000 + seq)
        self.stored.append(stored)
        self.prev = digest(stored)
        return stored

    def rotate(self, key: SigningKey | None, *, public: bool = True, by: str = "old") -> bytes:
        """Hand over to another key, by a record that the old or the new one signs."""
        told = key.public.raw.hex() if public and isinstance(key, Ed25519Key) else ""
        old, new = (each.key_id if each is not None else "" for each in (self.key, key))
        if by == "new":
            self.key = key
        stored = self.write("rotated", {"from": old, "to": new, "public": told})
        self.key = key
        return stored


def chain(length: int, key: SigningKey | None = None) -> list[bytes]:
    """The stored bytes of a run of so many records."""
    author = Author(key)
    for _ in range(length):
        author.write()
    return author.stored


def placed(stored: Sequence[bytes]) -> list[tuple[int | None, bytes]]:
    """As they stand in etcd: each at the place of its turn."""
    return [(seq, each) for seq, each in enumerate(stored, 1)]


def unplaced(stored: Sequence[bytes]) -> list[tuple[int | None, bytes]]:
    """As they stand in a file: one after the other."""
    return [(None, each) for each in stored]


def found(verdict: Verdict) -> tuple[int, int | None, str | None]:
    """The part of a verdict that a program acts on."""
    return verdict.verified, verdict.bad, verdict.kind


def rewritten(stored: bytes, change: Callable[[dict[str, Any]], None], key: SigningKey | None = None) -> bytes:
    """A record written anew with something changed, its hash made right, and signed with ``key`` (None: with what it had)."""
    body = json.loads(signed_part(stored))
    change(body)
    if key is not None:
        return seal(canonical(body), key)
    receipt = read_receipt(stored, "it")
    unsigned = seal(canonical(body), None)
    tail = f'"key":"{receipt.key_id}","sig":"{receipt.signature}"}}'.encode()
    return unsigned[: -len(b'"key":"","sig":""}')] + tail


def flipped(data: bytes, bit: int) -> bytes:
    """With one bit changed."""
    at, shift = divmod(bit, 8)
    return data[:at] + bytes((data[at] ^ (1 << shift),)) + data[at + 1 :]
