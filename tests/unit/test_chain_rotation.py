"""A run's chain: a key hands over to its successor by a record that one of the two has signed, and in no other way."""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper.protocol.chain import Rotation, verify_chain
from leasekeeper.protocol.receipt import digest
from leasekeeper.signing import Ed25519Key, SigningKey
from tests.chains import (
    Author,
    found,
    needs_cryptography,
    placed,
    ring_of,
    signing,
    unplaced,
)


@pytest.mark.parametrize("by", ["old", "new"])
@pytest.mark.parametrize("kind", ["hmac", pytest.param("ed25519", marks=needs_cryptography)])
def test_keys_are_handed_over(kind: str, by: str) -> None:
    """After a rotated record the new key signs; the verdict tells which keys signed and where they changed."""
    first, second = signing(kind, "k1"), signing(kind, "k2")
    author = Author(first)
    author.write()
    author.rotate(second, by=by)
    author.write()
    author.write()
    for ring in (ring_of(first, second), None):
        verdict = verify_chain(placed(author.stored), ring=ring)
        assert verdict.ok
        assert verdict.keys == ("k1", "k2")
        assert verdict.rotations == (Rotation(2, "k1", "k2"),)


@needs_cryptography
def test_a_key_vouches_for_its_successor() -> None:
    """With the first public key alone a rotated chain verifies: the old key signed what the new one is."""
    first, second, third = (signing("ed25519", key_id) for key_id in ("k1", "k2", "k3"))
    author = Author(first)
    author.rotate(second)
    author.write()
    author.rotate(third)
    author.write()
    assert verify_chain(placed(author.stored), ring=ring_of(first)).ok
    # Nor is any other key believed because that one is.
    author = Author(first)
    author.rotate(second)
    author.write()
    author.key = third
    author.write()
    assert found(verify_chain(placed(author.stored), ring=ring_of(first))) == (2, 3, "unknown key")
    # A new key does not vouch for itself.
    author = Author(first)
    author.write()
    author.rotate(second, by="new")
    author.write()
    assert found(verify_chain(placed(author.stored), ring=ring_of(first))) == (1, 2, "unknown key")
    # Of the wrong public key the signature is not right, and without one the key is unknown.
    for told, kind in ((False, "unknown key"), (True, "forged")):
        author = Author(first)
        author.rotate(second, public=told)
        assert second is not None
        author.key = second if kind == "unknown key" else _renamed(third, "k2")
        author.write()
        assert found(verify_chain(placed(author.stored), ring=ring_of(first))) == (1, 2, kind)


def _renamed(key: SigningKey | None, key_id: str) -> SigningKey:
    """Another key under this id."""
    assert isinstance(key, Ed25519Key)
    return Ed25519Key(key_id, b"another key's 32 bytes, just so.")


def test_a_verdict_tells_only_of_what_is_verified() -> None:
    """A key, a rotation or an anchor of a record that is not verified is not told."""
    first, second = signing("hmac", "k1"), signing("hmac", "k2")
    author = Author(first)
    author.write()
    author.write()
    author.rotate(second, by="new")
    anchors = [(1, digest(author.stored[0])), (3, "ab" * 32)]
    verdict = verify_chain(placed(author.stored), ring=ring_of(first, second), anchors=anchors)
    assert found(verdict) == (2, 3, "forked")
    assert (verdict.keys, verdict.rotations, verdict.anchored) == (("k1",), (), 1)
    assert verdict.hash == digest(author.stored[1])


@pytest.mark.parametrize("signed", [True, False])
def test_a_key_that_was_not_announced_is_named(signed: bool) -> None:
    """A change of the key without a rotated record just before is bad, though the ring knows both keys."""
    first, second = signing("hmac", "k1"), signing("hmac", "k2")
    ring = ring_of(first, second) if signed else None
    author = Author(first)
    author.write()
    author.key = second
    author.write()
    assert found(verify_chain(placed(author.stored), ring=ring)) == (1, 2, "unknown key")
    # The old key does not sign after it has handed over, and not one record later either.
    author = Author(first)
    author.rotate(second)
    author.key = first
    author.write()
    assert found(verify_chain(placed(author.stored), ring=ring)) == (1, 2, "unknown key")


@pytest.mark.parametrize(
    "data", [{"from": "k2", "to": "k1", "public": ""}, {"from": "k1", "to": 5}, {"from": "k1"}, {"to": "k2"}, {}]
)
def test_a_handover_is_from_the_key_that_signed_so_far(data: dict[str, Any]) -> None:
    """A rotated record that names another key than that as the old one, or none as the new one, is bad."""
    key = signing("hmac")
    author = Author(key)
    author.write()
    author.write("rotated", data)
    author.write()
    assert found(verify_chain(placed(author.stored), ring=ring_of(key))) == (1, 2, "unknown key")


@pytest.mark.parametrize("signed", [True, False])
def test_a_third_key_does_not_hand_over(signed: bool) -> None:
    """A rotated record that neither the old nor the new key has signed is bad, though the ring knows all three."""
    first, second, third = (signing("hmac", key_id) for key_id in ("k1", "k2", "k3"))
    author = Author(first)
    author.write()
    author.key = third
    author.write("rotated", {"from": "k1", "to": "k2", "public": ""})
    ring = ring_of(first, second, third) if signed else None
    assert found(verify_chain(placed(author.stored), ring=ring)) == (1, 2, "unknown key")


def test_signing_may_begin_and_end_announced() -> None:
    """Without a ring a chain may go from unsigned to signed by a rotated record, and not otherwise."""
    key = signing("hmac")
    author = Author(None)
    author.rotate(key)
    author.write()
    assert verify_chain(placed(author.stored)).ok
    author = Author(None)
    author.write()
    author.key = key
    author.write()
    assert found(verify_chain(placed(author.stored))) == (1, 2, "unknown key")


@pytest.mark.parametrize("gone", [2, 3])
def test_a_missing_handover_is_missing_rather_than_a_strange_key(gone: int) -> None:
    """A removed or displaced record is named as such where the key changes, too."""
    first, second = signing("hmac", "k1"), signing("hmac", "k2")
    author = Author(first)
    author.write()
    author.rotate(second)
    author.write()
    author.write()
    ring = ring_of(first, second)
    rest = [pair for pair in placed(author.stored) if pair[0] != gone]
    assert found(verify_chain(rest, ring=ring)) == (gone - 1, gone, "removed")
    swapped = [author.stored[0], author.stored[2], author.stored[1], author.stored[3]]
    for order in (placed, unplaced):
        assert found(verify_chain(order(swapped), ring=ring)) == (1, 2, "swapped")
