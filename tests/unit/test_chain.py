"""A run's chain: each way to tamper with it is named, with the first record that cannot be believed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leasekeeper.canonical import canonical
from leasekeeper.protocol.chain import ChainCheck, attested_head, verify_chain
from leasekeeper.protocol.receipt import FIRST_PREV, digest
from tests.chains import (
    NAMESPACE_ID,
    RUN,
    Author,
    chain,
    found,
    needs_cryptography,
    placed,
    rewritten,
    ring_of,
    signing,
    unplaced,
)

LENGTH = 6
ORDERS = {"in etcd": placed, "in a file": unplaced}
each_signature = pytest.mark.parametrize(
    "kind", ["unsigned", "hmac", pytest.param("ed25519", marks=needs_cryptography)]
)
each_order = pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)


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
