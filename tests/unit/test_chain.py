"""A run's chain: each way to tamper with it is named, with the first record that cannot be believed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leasekeeper.canonical import canonical
from leasekeeper.protocol.chain import ChainCheck, Rotation, Verdict, attested_head, verify_chain
from leasekeeper.protocol.receipt import FIRST_PREV, digest, seal, signed_part
from leasekeeper.signing import Ed25519Key, Keyring, SigningKey
from tests.chains import (
    NAMESPACE_ID,
    RUN,
    Author,
    chain,
    has_cryptography,
    placed,
    rewritten,
    ring_of,
    signing,
    unplaced,
)

LENGTH = 6
ORDERS = {"in etcd": placed, "in a file": unplaced}
needs_cryptography = pytest.mark.skipif(not has_cryptography(), reason="needs the extra leasekeeper[signing]")
each_signature = pytest.mark.parametrize(
    "kind", ["unsigned", "hmac", pytest.param("ed25519", marks=needs_cryptography)]
)
each_order = pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)


def found(verdict: Verdict) -> tuple[int, int | None, str | None]:
    """The part of a verdict that a program acts on."""
    return verdict.verified, verdict.bad, verdict.kind


def change(body: dict[str, Any]) -> None:
    """What a forger might want."""
    body["data"] = {"amount": 1_000_000}


@each_signature
@each_order
def test_a_chain_as_written_verifies(kind: str, order: Any) -> None:
    """Every record of an untouched chain is verified, and the verdict tells the last one's hash and the key."""
    key = signing(kind)
    stored = chain(LENGTH, key)
    verdict = verify_chain(order(stored), ring=ring_of(key), namespace_id=NAMESPACE_ID, run=RUN)
    assert verdict.ok
    assert found(verdict) == (LENGTH, None, None)
    assert verdict.hash == digest(stored[-1])
    assert verdict.keys == (("k1",) if key else ())
    assert verdict.signed is (key is not None)


def test_a_chain_alone_does_not_claim_to_have_its_end() -> None:
    """A cut chain is a good chain: the verdict says that nothing shows the end, until a head or an anchor does."""
    key = signing("hmac")
    stored = chain(LENGTH, key)
    cut = verify_chain(placed(stored[:4]), ring=ring_of(key))
    assert cut.ok
    assert not cut.complete
    assert "nothing here shows whether later ones were cut off" in cut.why
    for known in ({"head": (4, digest(stored[3]))}, {"anchors": [(4, digest(stored[3])), (2, digest(stored[1]))]}):
        whole = verify_chain(placed(stored[:4]), ring=ring_of(key), **known)
        assert whole.ok
        assert whole.complete
        assert "cut off" not in whole.why
    anchored = verify_chain(placed(stored), anchors=[(3, digest(stored[2]))])
    assert (anchored.anchored, anchored.complete) == (3, False)


def test_without_keys_it_says_what_hashes_are_worth() -> None:
    """A verdict that looked at no signature says so."""
    verdict = verify_chain(placed(chain(2, signing("hmac"))))
    assert verdict.ok
    assert not verdict.signed
    assert "no key was given" in verdict.why


def test_no_record_is_no_fault_unless_one_is_known() -> None:
    """An empty run verifies nothing; where a head knows a record the first one is missing."""
    assert found(verify_chain([])) == (0, None, None)
    assert verify_chain([]).hash == FIRST_PREV
    assert found(verify_chain([], head=(2, "ab" * 32))) == (0, 1, "truncated")
    assert found(verify_chain([], anchors=[(2, "ab" * 32)])) == (0, 1, "truncated")


# ---------------------------------------------------------------- A5: each single tampering, at each place


@each_signature
@each_order
@pytest.mark.parametrize("at", range(1, LENGTH + 1))
def test_a_changed_byte_is_named(kind: str, order: Any, at: int) -> None:
    """A3, A5: damage of a record's bytes is found by its own hash: corrupt, and verified is all before it."""
    key = signing(kind)
    stored = chain(LENGTH, key)
    stored[at - 1] = stored[at - 1].replace(b'"number"', b'"numbes"')
    assert found(verify_chain(order(stored), ring=ring_of(key))) == (at - 1, at, "corrupt")


@each_signature
@each_order
@pytest.mark.parametrize("at", range(1, LENGTH + 1))
def test_a_record_written_anew_is_named(kind: str, order: Any, at: int) -> None:
    """A5: a record overwritten with its hash made right is forged by its signature, or changed by what the next one tells."""
    key = signing(kind)
    stored = chain(LENGTH, key)
    head = (LENGTH, digest(stored[-1]))
    stored[at - 1] = rewritten(stored[at - 1], change)
    expected = "changed" if key is None else "forged"
    assert found(verify_chain(order(stored), ring=ring_of(key), head=head)) == (at - 1, at, expected)
    without_ring = verify_chain(order(stored), head=head)
    assert found(without_ring) == (at - 1, at, "changed")
    assert without_ring.hash == (digest(stored[at - 2]) if at > 1 else FIRST_PREV)


@each_signature
@each_order
@pytest.mark.parametrize("at", range(1, LENGTH))
def test_a_removed_record_is_named(kind: str, order: Any, at: int) -> None:
    """A5: a record that is missing in the middle is the first bad one, by its number."""
    key = signing(kind)
    rest = [pair for pair in placed(chain(LENGTH, key)) if pair[0] != at]
    records = rest if order is placed else unplaced([stored for _, stored in rest])
    assert found(verify_chain(records, ring=ring_of(key))) == (at - 1, at, "removed")


@pytest.mark.parametrize("at", range(1, LENGTH))
def test_a_gap_that_was_closed_is_named(at: int) -> None:
    """A5: when the records after a removed one moved up to fill its place, it is still missing."""
    stored = chain(LENGTH, signing("hmac"))
    del stored[at - 1]
    assert found(verify_chain(placed(stored), ring=ring_of(signing("hmac")))) == (at - 1, at, "removed")


@each_signature
@each_order
@pytest.mark.parametrize(("first", "second"), [(a, b) for b in range(2, LENGTH + 1) for a in range(1, b)])
def test_swapped_records_are_named(kind: str, order: Any, first: int, second: int) -> None:
    """A5: two records that changed places, however far apart, are told from a missing one."""
    key = signing(kind)
    stored = chain(LENGTH, key)
    stored[first - 1], stored[second - 1] = stored[second - 1], stored[first - 1]
    assert found(verify_chain(order(stored), ring=ring_of(key))) == (first - 1, first, "swapped")


def test_only_the_missing_record_itself_is_out_of_its_place() -> None:
    """A removed record that turns up at another place is out of its place; another one of its number is not it."""
    key = signing("hmac")
    stored, other = chain(LENGTH, key), Author(key, prev="ab" * 32)
    lookalike = other.write(seq=3)
    ring = ring_of(key)
    assert found(verify_chain(unplaced([*stored[:2], *stored[3:], lookalike]), ring=ring)) == (2, 3, "removed")
    assert found(verify_chain(unplaced([*stored[:2], *stored[3:], stored[2]]), ring=ring)) == (2, 3, "swapped")
    assert found(verify_chain([*placed(stored[:2]), (9, stored[2])], ring=ring)) == (2, 3, "swapped")
    assert found(verify_chain([*placed(stored[:2]), (9, lookalike)], ring=ring)) == (2, 3, "removed")
    assert found(verify_chain([*placed(stored[:2]), (9, b"junk")], ring=ring)) == (2, 3, "removed")
    astray = Author(key, prev=digest(stored[1])).write(seq=5)
    assert found(verify_chain([*unplaced(stored[:2]), (None, astray)], ring=ring)) == (2, 3, "removed")


@each_order
@pytest.mark.parametrize("at", range(2, LENGTH + 1))
def test_a_fork_is_named(order: Any, at: int) -> None:
    """A5: a record that is well signed and follows from another history than the one before it is forked."""
    key = signing("hmac")
    ours, theirs = chain(LENGTH, key), Author(key)
    for _ in range(LENGTH):
        theirs.write(data={"another": "history"})
    mixed = ours[: at - 1] + theirs.stored[at - 1 :]
    assert found(verify_chain(order(mixed), ring=ring_of(key))) == (at - 1, at, "forked")
    # Without a key it cannot be told which of the two was there first: the earlier one has nothing that speaks for it.
    assert found(verify_chain(order(mixed))) == (at - 2, at - 1, "changed")


def test_a_history_that_begins_elsewhere_is_no_beginning() -> None:
    """A first record that follows from something is not the first."""
    key = signing("hmac")
    author = Author(key, prev="ab" * 32)
    author.write()
    assert found(verify_chain(placed(author.stored), ring=ring_of(key))) == (0, 1, "forked")
    assert found(verify_chain(placed(author.stored))) == (0, 1, "changed")


@each_signature
def test_two_records_of_one_number_are_a_fork(kind: str) -> None:
    """A5: in a file with two good records of one number neither is verified; the very same one twice is out of its place."""
    key = signing(kind)
    ours, other = chain(LENGTH, key), Author(key)
    other.write()
    other.write()
    other.write(data={"another": "history"})
    both = [*ours[:3], other.stored[2], *ours[3:]]
    assert found(verify_chain(unplaced(both), ring=ring_of(key))) == (2, 3, "forked")
    # What is not as good as the record itself does not cast doubt on it.
    astray = Author(key, prev="ab" * 32).write(seq=3)
    forged = rewritten(ours[2], lambda body: body.update(wf="other"))
    for worse in (astray, forged):
        mixed = [*ours[:3], worse, *ours[3:]]
        assert found(verify_chain(unplaced(mixed), ring=ring_of(key))) == (3, 4, "swapped")
    twice = [*ours[:3], ours[2], *ours[3:]]
    assert found(verify_chain(unplaced(twice), ring=ring_of(key))) == (3, 4, "swapped")


@each_signature
@pytest.mark.parametrize("at", range(1, LENGTH + 1))
def test_another_history_than_an_anchor_knows_is_a_fork(kind: str, at: int) -> None:
    """A5: a whole chain written anew from some record on is found by an anchor of any record after that."""
    key = signing(kind)
    ours, theirs = chain(LENGTH, key), Author(key)
    for _ in range(LENGTH):
        theirs.write(data={"another": "history"})
    anchors = [(at, digest(ours[at - 1]))]
    last_of_unsigned = key is None and at == LENGTH
    expected = "changed" if last_of_unsigned else "forked"
    verdict = verify_chain(placed(theirs.stored), ring=ring_of(key), anchors=anchors)
    assert found(verdict) == (at - 1, at, expected)
    assert "an anchor remembers another one" in verdict.why
    head = (LENGTH, digest(ours[-1]))
    kind_by_head = "changed" if key is None else "forked"
    by_head = verify_chain(placed(theirs.stored), ring=ring_of(key), head=head)
    assert found(by_head) == (LENGTH - 1, LENGTH, kind_by_head)


def test_anchors_that_disagree_confirm_nothing() -> None:
    """Two anchors with different hashes for one record: that record is not verified, in whichever order they come."""
    stored = chain(3, signing("hmac"))
    pair = [(2, digest(stored[1])), (2, "ab" * 32)]
    for anchors in (pair, pair[::-1], [*pair, pair[0]]):
        assert found(verify_chain(placed(stored), ring=ring_of(signing("hmac")), anchors=anchors)) == (1, 2, "forked")


@each_signature
@each_order
@pytest.mark.parametrize("left", range(LENGTH))
def test_a_cut_tail_is_named_by_what_remembers_it(kind: str, order: Any, left: int) -> None:
    """A5: with a head or an anchor that knows a later record, the first one missing is named."""
    key = signing(kind)
    stored = chain(LENGTH, key)
    known = (LENGTH, digest(stored[-1]))
    for given in ({"head": known}, {"anchors": [known, (1, digest(stored[0]))]}):
        verdict = verify_chain(order(stored[:left]), ring=ring_of(key), **given)
        assert found(verdict) == (left, left + 1, "truncated")
        assert f"knows record {LENGTH}" in verdict.why


@pytest.mark.parametrize("at", range(LENGTH))
def test_a_head_that_was_set_back_is_named(at: int) -> None:
    """A5: records beyond the head are not verified, and the verdict's hash is that of the head's record."""
    key = signing("hmac")
    stored = chain(LENGTH, key)
    known = digest(stored[at - 1]) if at else FIRST_PREV
    verdict = verify_chain(placed(stored), ring=ring_of(key), head=(at, known))
    assert found(verdict) == (at, at + 1, "truncated")
    assert verdict.hash == known


# ---------------------------------------------------------------- who signed, and for what


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


# ---------------------------------------------------------------- rotation


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


# ---------------------------------------------------------------- what is made of it


def test_the_attested_head_is_the_last_before_what_was_tampered_with() -> None:
    """A22: a record tampered with at n makes it n - 1; so does an anchor or a namespace that speaks against n."""
    key = signing("hmac")
    ring = ring_of(key)
    assert ring is not None
    stored = chain(LENGTH, key)
    assert attested_head(placed(stored), ring=ring, namespace_id=NAMESPACE_ID) == LENGTH
    for at in range(1, LENGTH + 1):
        tampered = [*stored]
        tampered[at - 1] = rewritten(tampered[at - 1], change)
        assert attested_head(placed(tampered), ring=ring, namespace_id=NAMESPACE_ID) == at - 1
        anchors = [(at, "ab" * 32)]
        assert attested_head(placed(stored), ring=ring, namespace_id=NAMESPACE_ID, anchors=anchors) == at - 1
    assert attested_head(placed(stored), ring=ring, namespace_id="0c" * 16) == 0
    assert attested_head(placed(stored), ring=ring, namespace_id=NAMESPACE_ID, gen=2) == 0
    assert attested_head(placed(chain(3)), ring=ring, namespace_id=NAMESPACE_ID) == 0


def test_it_is_known_at_once_when_to_stop_reading() -> None:
    """Record by record: the fault is known with the record that shows it."""
    check = ChainCheck()
    stored = chain(3)
    check.feed(1, stored[0])
    assert check.last is not None
    assert (check.last.seq, check.fault_found) == (1, False)
    check.feed(3, stored[2])
    assert check.fault_found
    assert check.close().kind == "removed"


def test_a_verdict_is_a_sentence_for_people() -> None:
    """It names the last verified record, the first bad one and what is wrong with that."""
    key = signing("hmac")
    stored = chain(LENGTH, key)
    stored[3] = rewritten(stored[3], change)
    verdict = verify_chain(placed(stored), ring=ring_of(key))
    assert verdict.why == (
        "records 1 to 3 verify; record 4 is forged or changed: its signature is not that of key 'k1'"
    )
    assert json.loads(canonical(verdict.why)) == verdict.why


def test_a_ring_may_be_of_many_keys() -> None:
    """Only the key that the record names is asked."""
    key = signing("hmac")
    ring = ring_of(signing("hmac", "k3"), key, signing("hmac", "k2"))
    assert isinstance(ring, Keyring)
    assert verify_chain(placed(chain(2, key)), ring=ring).ok
