"""A run's chain: who signed each record and for what, and what is no record of this run at all."""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper.protocol.chain import verify_chain
from leasekeeper.protocol.receipt import seal, signed_part
from leasekeeper.signing import Keyring
from tests.chains import (
    NAMESPACE_ID,
    RUN,
    Author,
    chain,
    found,
    placed,
    rewritten,
    ring_of,
    signing,
    unplaced,
)


def test_a_record_without_a_signature_is_named() -> None:
    """In a signed chain, and wherever a ring is given, a record that is not signed is not believed."""
    key = signing("hmac")
    author = Author(key)
    author.write()
    author.key = None
    author.write()
    for ring in (ring_of(key), None):
        assert found(verify_chain(placed(author.stored), ring=ring)) == (1, 2, "unsigned")
    assert found(verify_chain(placed(chain(3)), ring=ring_of(key))) == (0, 1, "unsigned")


def test_a_stripped_signature_is_named() -> None:
    """A record that names its key and lost its signature is not signed, also where no ring is given."""
    key = signing("hmac")
    stored = chain(3, key)
    head, _, _ = stored[1].rpartition(b'"sig":"')
    stored[1] = head + b'"sig":""}'
    assert found(verify_chain(placed(stored))) == (1, 2, "unsigned")
    assert found(verify_chain(placed(stored), ring=ring_of(key))) == (1, 2, "forged")


def test_a_key_that_the_ring_does_not_have_is_named() -> None:
    """A chain signed throughout with a key that is not believed here has no verified record."""
    verdict = verify_chain(placed(chain(3, signing("hmac", "k2"))), ring=ring_of(signing("hmac", "k1")))
    assert found(verdict) == (0, 1, "unknown key")
    assert verdict.keys == ()


def test_a_signature_has_one_spelling() -> None:
    """A signature with other unused bits in its last character, or with padding, is not taken: bytes are what is believed."""
    key = signing("hmac")
    assert key is not None
    stored = chain(1, key)
    body = signed_part(stored[0])
    sealed = seal(body, key)
    assert verify_chain(placed([sealed]), ring=ring_of(key)).ok
    last = sealed[-3:-2]
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    twin = alphabet[alphabet.index(last) ^ 1]
    for spelled in (sealed[:-3] + bytes((twin,)) + b'"}', sealed[:-2] + b'="}', sealed[:-2] + b'\xc3\xa4"}'):
        assert found(verify_chain(placed([spelled]), ring=ring_of(key)))[:2] == (0, 1)


def test_what_was_signed_for_another_purpose_is_no_record() -> None:
    """A signature of the same body under another prefix is not believed."""
    key = signing("hmac")
    body = signed_part(chain(1, key)[0])
    other = seal(body, key, b"leasekeeper export v1\n")
    assert found(verify_chain(placed([other]), ring=ring_of(key))) == (0, 1, "forged")


def test_records_from_elsewhere_are_named() -> None:
    """A22: a record of another namespace, run or generation is bad, however well signed, and spoils nothing before it."""
    for signed in ("unsigned", "hmac"):
        for name, value, kind in (
            ("namespace_id", "0c" * 16, "other environment"),
            ("run", ("order", "order-43"), "other run"),
            ("run", ("orders", "order-42"), "other run"),
            ("gen", 2, "other run"),
        ):
            key = signing(signed)
            author = Author(key)
            author.write()
            author.write()
            setattr(author, name, value)
            author.write()
            assert found(verify_chain(placed(author.stored), ring=ring_of(key))) == (2, 3, kind)
            # A whole chain from elsewhere is told by what was expected.
            elsewhere = Author(key)
            setattr(elsewhere, name, value)
            elsewhere.write()
            verdict = verify_chain(
                placed(elsewhere.stored), ring=ring_of(key), namespace_id=NAMESPACE_ID, run=RUN, gen=1
            )
            assert found(verdict) == (0, 1, kind)
            # One that does not even follow accuses nothing but itself.
            author.stored[2] = rewritten(author.stored[2], lambda body: body.update(prev="ab" * 32), key)
            assert found(verify_chain(placed(author.stored), ring=ring_of(key))) == (2, 3, kind)


def test_bytes_that_are_not_canonical_are_corrupt() -> None:
    """Text that others may read otherwise, such as one with a key twice, is not taken, however well it is sealed."""
    key = signing("hmac")
    body = signed_part(chain(1, key)[0])
    for twisted in (
        body.replace(b'{"number":1}', b'{"number": 1}'),
        body.replace(b'{"number":1}', b'{"number":2,"number":1}'),
        body.replace(b'{"number":1}', b'{"z":1,"a":1}'),
        body.replace(b'{"number":1}', b'{"number":1.0}'),
        body.replace(b'{"number":1}', b'{"number":NaN}'),
        body.replace(b'{"number":1}', b'{"number":9007199254740993}'),
        body.replace(b'{"number":1}', b'{"number":"\\ud800"}'),
    ):
        assert twisted != body
        assert found(verify_chain(placed([seal(twisted, key)]), ring=ring_of(key))) == (0, 1, "corrupt")


@pytest.mark.parametrize(
    "junk", [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"body":{},"hash":"","key":"","sig":""}', b"[" * 100_000]
)
def test_junk_is_corrupt(junk: bytes) -> None:
    """Whatever stands where a record should be is named, and nothing else is said of it."""
    stored = chain(3, signing("hmac"))
    stored[1] = junk
    for order in (placed, unplaced):
        assert found(verify_chain(order(stored), ring=ring_of(signing("hmac")))) == (1, 2, "corrupt")


@pytest.mark.parametrize("tail", [b'"key":5,"sig":""}', b'"key":"","sig":null}', b'"key":["a"],"sig":{}}'])
def test_a_key_id_that_is_no_text_is_corrupt(tail: bytes) -> None:
    """The parts around the body have their types, too."""
    stored = chain(2)
    stored[1] = stored[1].replace(b'"key":"","sig":""}', tail)
    assert found(verify_chain(placed(stored))) == (1, 2, "corrupt")
    assert found(verify_chain(placed(stored), ring=ring_of(signing("hmac"))))[1] == 1


def test_the_largest_record_verifies() -> None:
    """A record may be as large and as deep as what is written; the check has no smaller bound of its own."""
    key = signing("hmac")
    deep: Any = 1
    for _ in range(31):
        deep = [deep]
    author = Author(key)
    author.write(data={"deep": deep})
    author.write(data={"large": "x" * 65_000})
    assert verify_chain(placed(author.stored), ring=ring_of(key)).ok


def test_a_ring_may_be_of_many_keys() -> None:
    """Only the key that the record names is asked."""
    key = signing("hmac")
    ring = ring_of(signing("hmac", "k3"), key, signing("hmac", "k2"))
    assert isinstance(ring, Keyring)
    assert verify_chain(placed(chain(2, key)), ring=ring).ok
