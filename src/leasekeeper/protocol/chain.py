"""The chain of a run's records: how far it can be believed, and which record is the first that cannot.

Theory of operation
===================

Each record says by its hash what its own bytes are, by its ``prev`` what the record before it was, and by its signature who wrote
it. From these alone, in one pass and with one record at a time in memory:

=====================  ================================================================================================
what is found          what is said of it
=====================  ================================================================================================
bytes that were not    ``corrupt``: this record; ``newer`` for one of a format that a later program writes
sealed so
other run, namespace   ``other run``, ``other environment``: this record
no signature, a wrong  ``unsigned``, ``forged``, ``unknown key``: this record; a change of the key must be announced by a
or an unexpected one   ``rotated`` record, of the old key or of the new one
another record than    ``swapped`` when the expected one turns up at another place (the rest is looked through for it), else
the next one           ``removed``: the expected number
``prev`` is not the    with a ring of keys both are known to be written by a key's owner: ``forked``, the later of the two.
hash of the record     Without one the record before may just as well have been written anew, hash and all: ``changed``,
before it              the earlier, of which the later one has told what it was
=====================  ================================================================================================

What the chain cannot show is that its end was cut off: a shorter chain is a good chain. Something that remembers more shows it:
the head, an export's footer, an anchor. Where one of these knows a later record, that is ``truncated``: the first one missing.
Where one remembers other bytes for a record, that record is ``forked``, or ``changed`` if neither a key nor the next record
speaks for it.

A key hands over to the next one in a ``rotated`` record: ``{from, to, public}``. Signed with the old key it also says, by the
new one's raw public key in hex, which key that is: whoever believes the old one then needs no other. Signed with the new key, by
whoever has no other any more, it is believed only if the ring knows that key.

Everything before the first bad record is verified, and nothing after it: ``verified`` is ``bad - 1`` whenever a record is bad.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Protocol

from leasekeeper.canonical import DEPTH_MAX, canonical
from leasekeeper.errors import AuthError, ConfigError
from leasekeeper.protocol.receipt import DOMAIN, FIRST_PREV, read_receipt, signature_bytes, signed_part
from leasekeeper.protocol.verdict import BadKind, Fault, Rotation, Verdict, is_said, sentence
from leasekeeper.run_errors import CorruptState
from leasekeeper.run_records import Receipt
from leasekeeper.schema_errors import SchemaTooNew
from leasekeeper.signing import Ed25519PublicKey, VerifyingKey

__all__ = ["BadKind", "ChainCheck", "Point", "Ring", "Rotation", "Verdict", "attested_head", "verify_chain"]

Point = tuple[int, str]
"""A number and the hash of the record that has it: what a head or an anchor remembers."""

# So many keys and rotations are told of; more than that are still verified.
TOLD_MAX = 64
# A value of as many levels as may be recorded, and what is around it.
LEVELS_MAX = DEPTH_MAX + 8
ROTATED = "rotated"


class Ring(Protocol):
    """The keys to believe: a `leasekeeper.signing.Keyring`."""

    def __contains__(self, key_id: str) -> bool:
        """Whether there is a key of this id."""
        ...

    def verify(self, key_id: str, message: bytes, signature: bytes) -> None:
        """Return if the key of this id signed just this message, else AuthError."""
        ...


class ChainCheck:
    """Verifies a chain record by record: `feed` each in the order in which they stand, then `close`.

    Args:
        head: where the run stands, read no later than the records; a record beyond it is bad.
        anchors: what is remembered outside of etcd, in any order.
        ring: the keys to believe. None: signatures are not looked at, only which key is named.
        namespace_id: the namespace that the records must come from; None: that of the first record.
        run: ``(workflow, id)``; None: those of the first record.
        gen: the run's generation; None: that of the first record.
    """

    def __init__(
        self,
        *,
        head: Point | None = None,
        anchors: Iterable[Point] = (),
        ring: Ring | None = None,
        namespace_id: str | None = None,
        run: tuple[str, str] | None = None,
        gen: int | None = None,
    ) -> None:
        self._head = head
        self._anchors = _by_number(anchors)
        self._ring = ring
        self._namespace_id = namespace_id
        self._run = run
        self._gen = gen
        self._last: Receipt | None = None
        self._before = FIRST_PREV
        self._fault: Fault | None = None
        self._key_id: str | None = None
        self._public = ""
        self._keys: dict[str, int] = {}
        self._rotations: list[Rotation] = []

    @property
    def last(self) -> Receipt | None:
        """The last record that could follow those before it; the next one may yet tell that it was changed."""
        return self._last

    @property
    def fault_found(self) -> bool:
        """Whether the first bad record is known; more records can only tell "removed" from "swapped"."""
        return self._fault is not None

    def feed(self, seq: int | None, stored: bytes) -> None:
        """Take the record that stands next. ``seq`` is the number of its place; None: it has none but what it says itself."""
        receipt, kind, why = _read(stored, f"record {seq or self._next}")
        if self._fault is not None:
            self._look_for_the_missing(receipt)
            return
        self._fault = self._doubt_of_last(receipt) or self._misplaced(seq, receipt)
        if self._fault is None:
            self._fault = self._wrong(receipt) if receipt is not None else self._bad(kind, why)
        if self._fault is None and receipt is not None:
            self._accept(receipt)

    def accuse_last(self, why: str) -> None:
        """What belongs to the last record is damaged, so that it cannot be believed; for what the record itself does not show."""
        if self._fault is None and self._last is not None:
            self._fault = Fault(self._last.seq, "corrupt", f"record {self._last.seq} {is_said('corrupt')}: {why}")

    def close(self, **known: Point) -> Verdict:
        """There are no more records: how far those that were there can be believed.

        ``known`` is what else remembers a last record, by a name for people, of what could be read only after the records.
        """
        remembered = [(f"the {name}", point) for name, point in known.items()]
        fault = self._fault or self._doubt_of_last(None, remembered) or self._cut(remembered)
        verified = fault.bad - 1 if fault else self._next - 1
        anchored = max((seq for seq in self._anchors if seq <= verified), default=0)
        ends = [anchored, *(seq for _, (seq, _) in (*self._heads(), *remembered))]
        complete = fault is None and verified > 0 and verified == max(ends)
        return Verdict(
            verified=verified,
            hash=self._hash_of(verified),
            bad=fault.bad if fault else None,
            kind=fault.kind if fault else None,
            why=sentence(verified, fault, signed=self._ring is not None, complete=complete),
            signed=self._ring is not None,
            complete=complete,
            anchored=anchored,
            keys=tuple(key_id for key_id, seq in self._keys.items() if seq <= verified),
            rotations=tuple(rotation for rotation in self._rotations if rotation.seq <= verified),
        )

    def signature_fault(self, message: bytes, key_id: str, signature: str) -> tuple[BadKind, str] | None:
        """What is wrong with a signature by the keys that are believed here; None: nothing, or there is no ring."""
        if self._ring is None:
            return None
        if not key_id:
            return "unsigned", "it names no key"
        try:
            raw = signature_bytes(signature)
            if key_id in self._ring:
                self._ring.verify(key_id, message, raw)
                return None
        except (AuthError, ValueError):
            return "forged", f"its signature is not that of key {key_id!r}"
        announced = self._announced()
        if announced is None or announced.key_id != key_id:
            return "unknown key", f"key {key_id!r} is not known here"
        return None if announced.verifies(message, raw) else ("forged", f"its signature is not that of key {key_id!r}")

    def _announced(self) -> VerifyingKey | None:
        """The key that the last rotation has handed over to, if it told its public key."""
        try:
            return Ed25519PublicKey(self._key_id or "", bytes.fromhex(self._public)) if self._public else None
        except (ConfigError, ValueError):
            return None

    @property
    def _next(self) -> int:
        return self._last.seq + 1 if self._last is not None else 1

    @property
    def _link(self) -> str:
        return self._last.hash if self._last is not None else FIRST_PREV

    def _hash_of(self, seq: int) -> str:
        return self._link if seq == self._next - 1 else self._before

    def _bad(self, kind: BadKind, why: str) -> Fault:
        return Fault(self._next, kind, f"record {self._next} {is_said(kind)}: {why}")

    # ---------------------------------------------------------------- of the record before

    def _doubt_of_last(self, following: Receipt | None, known: Iterable[tuple[str, Point]] = ()) -> Fault | None:
        """What the record that came last is accused of, now that it is known what follows it."""
        last = self._last
        if last is None:
            return None
        follows = following is not None and following.prev == last.hash
        for name, (seq, remembered) in (*self._anchor(last.seq), *self._heads(), *known):
            if seq == last.seq and remembered != last.hash:
                kind: BadKind = "forked" if follows or self._ring is not None else "changed"
                return Fault(last.seq, kind, f"record {seq} {is_said(kind)}: {name} remembers another one")
        # With a ring the record before is known to be its writer's; without one nothing but the next record speaks for it.
        if self._ring is None and following is not None and not follows and self._fits_here(following):
            why = f"record {self._next} tells of another one before it"
            return Fault(last.seq, "changed", f"record {last.seq} {is_said('changed')}: {why}")
        return None

    def _fits_here(self, receipt: Receipt) -> bool:
        return receipt.seq == self._next and self._unfit(receipt) is None

    def _anchor(self, seq: int) -> Iterable[tuple[str, Point]]:
        return [("an anchor", (seq, self._anchors[seq]))] if seq in self._anchors else []

    def _heads(self) -> Iterable[tuple[str, Point]]:
        return [("the head", self._head)] if self._head is not None else []

    def _cut(self, remembered: Iterable[tuple[str, Point]]) -> Fault | None:
        """Whether something remembers more than there is."""
        for name, (seq, _) in (*self._anchor(max(self._anchors, default=0)), *self._heads(), *remembered):
            if seq >= self._next:
                return self._bad("truncated", f"{name} knows record {seq}")
        return None

    # ---------------------------------------------------------------- of its place

    def _misplaced(self, seq: int | None, receipt: Receipt | None) -> Fault | None:
        own = receipt.seq if receipt is not None else self._next
        place = own if seq is None else seq
        if place == own == self._next:
            return None
        if place < self._next:
            return self._second(receipt) or self._bad("swapped", f"record {own} stands once more in its place")
        if self._is_missing(receipt, self._next):
            return self._bad("swapped", f"it stands at the place of record {place}")
        return self._bad("removed", f"record {own} stands in its place" if place == self._next else "it is not there")

    def _second(self, receipt: Receipt | None) -> Fault | None:
        """Whether it is another record of the last one's number, and as good as that."""
        last = self._last
        if receipt is None or last is None or receipt.seq != last.seq or receipt.stored == last.stored:
            return None
        if self._unfit(receipt) is not None or receipt.prev != self._before:
            return None
        return Fault(last.seq, "forked", f"record {last.seq} {is_said('forked')}: two records have this number")

    def _look_for_the_missing(self, receipt: Receipt | None) -> None:
        fault = self._fault
        if fault is not None and fault.kind == "removed" and self._is_missing(receipt, fault.bad):
            self._fault = self._bad("swapped", "it stands at another place")

    def _is_missing(self, receipt: Receipt | None, seq: int) -> bool:
        return receipt is not None and receipt.seq == seq and receipt.prev == self._link

    # ---------------------------------------------------------------- of the record itself

    def _wrong(self, receipt: Receipt) -> Fault | None:
        """What is wrong with a record that stands where it says."""
        found = self._unfit(receipt)
        if found is not None:
            return self._bad(*found)
        if receipt.prev != self._link:
            kind: BadKind = "forked" if self._ring is not None else "changed"
            return self._bad(
                kind, f"it does not follow from record {receipt.seq - 1}" if self._last else "it is not the first"
            )
        if self._head is not None and receipt.seq > self._head[0]:
            return self._bad("truncated", f"the head was set back: it ends at record {self._head[0]}")
        return None

    def _unfit(self, receipt: Receipt) -> tuple[BadKind, str] | None:
        """What is wrong with it, whatever it follows."""
        return self._of_another(receipt) or self._unsigned_or_forged(receipt) or self._unannounced(receipt)

    def _of_another(self, receipt: Receipt) -> tuple[BadKind, str] | None:
        if self._namespace_id not in (None, receipt.namespace_id):
            return "other environment", f"it was written in namespace {receipt.namespace_id!r}"
        if self._run not in (None, (receipt.workflow, receipt.id)):
            return "other run", f"it belongs to {receipt.run}"
        if self._gen not in (None, receipt.gen):
            return "other run", f"it belongs to generation {receipt.gen} of {receipt.run}, not {self._gen}"
        return None

    def _unsigned_or_forged(self, receipt: Receipt) -> tuple[BadKind, str] | None:
        message = DOMAIN + signed_part(receipt.stored)
        return self.signature_fault(message, receipt.key_id, receipt.signature)

    def _unannounced(self, receipt: Receipt) -> tuple[BadKind, str] | None:
        """A key that nothing before it led one to expect."""
        if receipt.key_id and not receipt.signature:
            return "unsigned", "it names a key and is not signed"
        expected = receipt.key_id if self._key_id is None else self._key_id
        if receipt.kind == ROTATED:
            old, new = receipt.data.get("from"), receipt.data.get("to")
            if old == expected and isinstance(new, str) and receipt.key_id in (old, new):
                return None
            return "unknown key", f"it does not hand over from key {expected!r}, or another key than the two signed it"
        if receipt.key_id == expected:
            return None
        if not receipt.key_id:
            return "unsigned", f"key {expected!r} signed those before it and should have signed this one"
        return "unknown key", f"key {receipt.key_id!r} signed it, and {expected or 'none'!r} should have"

    def _accept(self, receipt: Receipt) -> None:
        self._before, self._last = self._link, receipt
        self._namespace_id = receipt.namespace_id
        self._run, self._gen = (receipt.workflow, receipt.id), receipt.gen
        if receipt.key_id and len(self._keys) < TOLD_MAX:
            self._keys.setdefault(receipt.key_id, receipt.seq)
        self._key_id = receipt.key_id
        if receipt.kind == ROTATED:
            self._rotate(receipt, receipt.data["from"], receipt.data["to"])

    def _rotate(self, receipt: Receipt, old: str, new: str) -> None:
        """From here on the new key signs; a key that is believed has said which one that is."""
        public = receipt.data.get("public")
        self._key_id = new
        self._public = public if isinstance(public, str) else ""
        if len(self._rotations) < TOLD_MAX:
            self._rotations.append(Rotation(receipt.seq, old, new))


def verify_chain(
    records: Iterable[tuple[int | None, bytes]],
    *,
    head: Point | None = None,
    anchors: Iterable[Point] = (),
    ring: Ring | None = None,
    namespace_id: str | None = None,
    run: tuple[str, str] | None = None,
    gen: int | None = None,
) -> Verdict:
    """How far a chain can be believed; the arguments are those of `ChainCheck`."""
    check = ChainCheck(head=head, anchors=anchors, ring=ring, namespace_id=namespace_id, run=run, gen=gen)
    for seq, stored in records:
        check.feed(seq, stored)
    return check.close()


def attested_head(
    records: Iterable[tuple[int | None, bytes]],
    *,
    ring: Ring,
    namespace_id: str,
    head: Point | None = None,
    anchors: Iterable[Point] = (),
    run: tuple[str, str] | None = None,
    gen: int | None = None,
) -> int:
    """The number of the last record up to which everything speaks for the run, in this environment; 0: none.

    Chain, signatures, namespace and, where they are given, head and anchors: with a record tampered with at n it is n - 1.
    """
    verdict = verify_chain(records, ring=ring, namespace_id=namespace_id, head=head, anchors=anchors, run=run, gen=gen)
    return verdict.verified


def _read(stored: bytes, where: str) -> tuple[Receipt | None, BadKind, str]:
    """The record, or what is wrong with its bytes."""
    try:
        receipt = read_receipt(stored, where)
        body = signed_part(stored)
        if canonical(json.loads(body), "body", most=len(body), depth_max=LEVELS_MAX) != body:
            return None, "corrupt", "it is not canonical JSON"
    except SchemaTooNew as error:
        return None, "newer", error.why
    except CorruptState as error:
        return None, "corrupt", error.why
    except ConfigError:
        return None, "corrupt", "it is not canonical JSON"
    return receipt, "corrupt", ""


def _by_number(anchors: Iterable[Point]) -> dict[int, str]:
    """The anchors by number; where two of one number disagree, a hash that no record has."""
    found: dict[int, str] = {}
    for seq, known in anchors:
        found[seq] = known if found.get(seq, known) == known else ""
    return found
