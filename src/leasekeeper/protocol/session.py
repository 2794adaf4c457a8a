"""A session: one etcd lease with its heartbeat, shared by every claim of a keeper that asked for the same TTL.

Heartbeats do not grow with claims, and a second acquire pays no grant. A session without claims is not renewed: its lease
runs out by itself and is revoked when its TTL is over, so that a process that only ever tries now and then leaves nothing
behind. A claim that asks for a fresh session and finds an old proof proves it first.

Slots are a session's keys on one name. The lowest free one is used again, because etcd's ranges walk over deleted keys. A
slot whose put may still be on its way somewhere is **haunted**: it is not used again, and its key is read along with the
held ones and removed if it appears.
"""

from __future__ import annotations

import weakref
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Protocol

from leasekeeper.fencing import TOKEN_MAX
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.authority import NEVER, proof_of, revives
from leasekeeper.protocol.plan import (
    CALL_TIMEOUT_S,
    GRANT,
    KEEP_ALIVE,
    REVOKE,
    Cause,
    Detach,
    Fault,
    Kind,
    Plan,
    Signal,
    Sleep,
    ask,
    persist,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasekeeper.protocol.authority import Authority
    from leasekeeper.protocol.prepared import Prepared
    from leasekeeper.timing import Timing

__all__ = ["Session", "Slot", "Tending", "grant", "renew", "revoke"]

# So many slots may be haunted before a session takes no new claims; each costs a read per TTL.
HAUNTED_MAX = 64
# So many names without a claim may be remembered before they are forgotten together.
NAMES_SPARE = 64
# Of so many free keys the requests are kept.
PREPARED_MAX = 256
# How often a lease id may turn out to be taken before something else must be wrong.
GRANT_TRIES = 5


class Closable(Protocol):
    """Something to end without waiting."""

    def close(self) -> None:
        """End it; may be called twice."""
        ...


class Tending:
    """Kept by a plan for as long as it is at work on something. Once it is gone the work has ended, in whichever way.

    A plan cleans up behind itself, but Ctrl-C may strike where no clean-up can be: before it begins, or in its midst. What is
    referred to weakly here is seen to be nobody's work any more.
    """

    __slots__ = ("__weakref__",)


class Slot:
    """One key of a session on one name, from the first put that may have been sent until it is surely gone.

    The authority over it is referred to weakly: it belongs to whoever acquired it, and when they drop it without releasing
    it the claim is given up (renewing what nobody can release any more would block the name for ever).
    """

    __slots__ = (
        "__weakref__",
        "_authority",
        "_tending",
        "create_revision",
        "haunted",
        "key",
        "leaving",
        "name",
        "nonce",
        "number",
        "prepared",
        "record",
        "session",
        "watching",
    )

    def __init__(self, session: Session, name: str, number: int, key: bytes) -> None:
        self.session = session
        self.name = name
        self.number = number
        self.key = key
        # The stored bytes of the claim; empty until a put may have been sent.
        self.record = b""
        self.nonce = ""
        self.create_revision = 0
        self._authority: weakref.ref[Authority] | None = None
        self._tending: weakref.ref[Tending] | None = None
        self.leaving = False
        self.haunted = False
        self.prepared: Prepared | None = None
        # The watch on an owned key; closed by whoever ends the claim.
        self.watching: Closable | None = None

    @property
    def authority(self) -> Authority | None:
        """The authority over this claim, once it is owned and as long as somebody keeps it."""
        return self._authority() if self._authority is not None else None

    @authority.setter
    def authority(self, authority: Authority | None) -> None:
        self._authority = weakref.ref(authority) if authority is not None else None

    def tend(self, tending: Tending | None = None) -> Tending:
        """Say that a plan is at work on the claim: until nobody keeps what is returned."""
        tending = tending or Tending()
        self._tending = weakref.ref(tending)
        return tending

    @property
    def tended(self) -> bool:
        """Whether a plan is at work on the claim: nobody else removes it, and that plan hears what becomes of it."""
        return self._tending is not None and self._tending() is not None

    @property
    def deserted(self) -> bool:
        """Whether nobody has the claim any more, and nobody is about to remove it: its plan was struck by Ctrl-C."""
        if self.leaving or self._tending is None or self._tending() is not None:
            return False
        authority = self.authority
        return authority is None or authority.shown.final


class Session:
    """One etcd lease: its proof, and the slots of its claims."""

    __slots__ = (
        "__weakref__",
        "by_name",
        "changed",
        "doubtful",
        "ended",
        "gone",
        "lapses",
        "lease_id",
        "pending_s",
        "pending_sent_s",
        "prepared",
        "proof_s",
        "read_s",
        "reading_s",
        "ready_s",
        "retired",
        "slots",
        "timing",
    )

    def __init__(
        self,
        lease_id: int,
        timing: Timing,
        proof_s: float,
        *,
        ended: Signal,
        changed: Signal,
    ) -> None:
        self.lease_id = lease_id
        self.timing = timing
        self.proof_s = proof_s
        # A beat confirmed after authority had lapsed, waiting for the keys to be read back: its proof, and when it was sent.
        self.pending_s = self.pending_sent_s = NEVER
        # When the read-back under way was begun, and the best proof of a beat sent before, for which it will count.
        self.reading_s = self.ready_s = NEVER
        # When the held keys were last asked for and found. A beat speaks of the lease; only reading speaks of them.
        self.read_s = proof_s
        # How often authority has lapsed and had to be proven again.
        self.lapses = 0
        self.gone = False
        self.retired = False
        # Etcd was restored from a backup, it seems: what was given back since then may stand there again.
        self.doubtful = False
        self.slots: dict[bytes, Slot] = {}
        # The same by name and slot number, for whoever looks for a free one or for all of a name.
        self.by_name: dict[str, dict[int, Slot]] = {}
        # Of keys that are free now, for the next claim on them.
        self.prepared: dict[bytes, Prepared] = {}
        self.ended = ended
        self.changed = changed

    def age(self, now_s: float) -> float:
        """How old the proof is."""
        return now_s - self.proof_s

    def fresh(self, now_s: float) -> bool:
        """Whether a new claim can rely on the proof without a beat of its own: the next beat comes before the pause."""
        return not self.gone and self.age(now_s) <= self.timing.pause_s - self.timing.beat_s

    def usable(self, now_s: float) -> bool:
        """Whether the lease may be expected to exist still."""
        return not (self.gone or self.retired) and revives(self.age(now_s), self.timing)

    def confirm(self, sent_s: float, ttl: int, now_s: float) -> bool:
        """A beat was confirmed with this TTL: whether the proof may move by itself.

        It may not when authority has lapsed, nor when no held key could be read for a TTL: the confirmation is then kept
        until the keys have been read back.
        """
        proof_s = proof_of(sent_s, ttl, self.timing)
        if revives(self.age(now_s), self.timing) and self._keys_known(sent_s):
            self.proof_s = max(self.proof_s, proof_s)
            return True
        if proof_s > self.pending_s:
            self.pending_s, self.pending_sent_s = proof_s, sent_s
        if sent_s <= self.reading_s:
            self.ready_s = max(self.ready_s, proof_s)
        return False

    def _keys_known(self, at_s: float) -> bool:
        return at_s - self.read_s < self.timing.ttl or not self.authorities()

    def begin_reading(self, now_s: float) -> None:
        """The held keys are about to be read: it will count for what was confirmed of beats sent until now."""
        self.reading_s, self.ready_s = now_s, self.pending_s

    def served(self, now_s: float) -> bool:
        """Whether the read-back under way will let a confirmation count, if one waits."""
        return self.pending_s == NEVER or revives(now_s - self.ready_s, self.timing)

    def reprove(self, now_s: float) -> bool:
        """The keys have been read back: let the confirmation that waited for it count, unless it has lapsed in turn.

        One of a beat that was sent later waits for the next read-back, or counts at once like any other after this one.
        """
        proof_s, sent_s = self.pending_s, self.pending_sent_s
        ready_s, self.ready_s = self.ready_s, NEVER
        if sent_s <= self.reading_s or not revives(now_s - proof_s, self.timing):
            self.pending_s = self.pending_sent_s = NEVER
        if self.gone or not revives(now_s - ready_s, self.timing):
            return False
        if not revives(self.age(now_s), self.timing):
            self.lapses += 1
        self.proof_s = max(self.proof_s, ready_s)
        if self.pending_s > NEVER and self._keys_known(sent_s):
            self.proof_s = max(self.proof_s, proof_s)
            self.pending_s = self.pending_sent_s = NEVER
        return True

    def shut(self) -> None:
        """No beat of this session proves anything any more."""
        self.gone = True
        self.proof_s = NEVER

    def doubt(self) -> None:
        """Take no more claims, and have the keys of the lease looked at."""
        self.retired = self.doubtful = True

    def claims(self) -> list[Slot]:
        """The slots that need the lease: waiting or owned, not those on their way out."""
        return [slot for slot in list(self.slots.values()) if not slot.leaving]

    def in_use(self) -> bool:
        """Whether somebody needs the lease, or still waits to hear how a claim left: a revocation would remove it first."""
        return any(not slot.leaving or slot.tended for slot in list(self.slots.values()))

    def authorities(self) -> list[Authority]:
        """The owned claims that are not over."""
        owned = [s.authority for s in list(self.slots.values()) if s.authority is not None]
        return [authority for authority in owned if not authority.shown.final]

    def named(self, name: str) -> list[Slot]:
        """The slots on one name."""
        return list(self.by_name.get(name, {}).values())

    def lowest_free(self, name: str) -> int:
        """The lowest slot number that is free on a name."""
        taken = self.by_name.get(name, {})
        return next(number for number in count() if number not in taken)

    def occupy(self, name: str, number: int, key: bytes, tending: Tending | None = None) -> Slot:
        """Take a free key, for the plan that keeps ``tending``."""
        if len(self.by_name) > 2 * len(self.slots) + NAMES_SPARE:
            self.by_name = {name: numbers for name, numbers in self.by_name.items() if numbers}
        slot = Slot(self, name, number, key)
        if tending is not None:
            slot.tend(tending)
        # In this order here and in `free`: what was struck halfway is written over by the next claim on the key.
        self.slots[key] = slot
        self.by_name.setdefault(name, {})[number] = slot
        slot.prepared = self.prepared.pop(key, None)
        return slot

    def haunt(self, slot: Slot) -> None:
        """A put to this slot may still arrive: never use it again, look after it."""
        slot.haunted = True
        if sum(s.haunted for s in list(self.slots.values())) >= HAUNTED_MAX:
            self.retired = True

    def free(self, slot: Slot) -> None:
        """The slot's key is surely gone; keep the slot only if a put may still arrive. Under the lock of `occupy` only."""
        slot.leaving = True
        if slot.haunted or self.slots.get(slot.key) is not slot:
            return
        # The name's own entry is left for `occupy` to tidy up: it may be filling it in another thread just now.
        self.by_name.get(slot.name, {}).pop(slot.number, None)
        del self.slots[slot.key]
        if slot.prepared is not None and len(self.prepared) < PREPARED_MAX:
            self.prepared[slot.key], slot.prepared = slot.prepared, None


def grant(
    timing: Timing,
    *,
    now: Callable[[], float],
    until: float,
    new_id: Callable[[], int],
) -> Plan[tuple[int, Timing, float]]:
    """A new etcd lease: its id, the timing for what was granted, and its first proof.

    The id is chosen here, so that a grant whose reply was lost is recognised when it is repeated. Whatever ends this plan
    early, a lease that may have been granted is revoked in the background.
    """
    for _ in range(GRANT_TRIES):
        lease_id = new_id() & TOKEN_MAX or 1
        # Whether the lease may be there although no reply has said so.
        unseen: list[None] = []
        maybe_granted = partial(unseen.append, None)
        try:
            granted = yield from _grant(lease_id, timing, now, until, maybe_granted)
            if granted is None and unseen:
                # Ours, from an attempt whose reply was lost: a beat tells its TTL.
                sent_s, ttl = yield from renew(lease_id, now=now, until=until)
                granted = (ttl, sent_s) if ttl > 0 else None
            if granted is not None:
                maybe_granted()
                ttl, sent_s = granted
                return lease_id, timing.granted(ttl), sent_s
        except BaseException:
            if unseen:
                yield Detach(partial(revoke, lease_id))
            raise
    raise Fault(Kind.RETRY, Cause.LEASE_EXISTS, "every lease id was taken", operation="LeaseGrant")


def _grant(
    lease_id: int, timing: Timing, now: Callable[[], float], until: float, maybe_granted: Callable[[], None]
) -> Plan[tuple[int, float] | None]:
    """The TTL that was granted, and when it was asked for; None when there is such a lease already."""
    request = pb.LeaseGrantRequest(TTL=timing.ask_s, ID=lease_id)
    sent_s = now()
    try:
        reply: pb.LeaseGrantResponse = yield from persist(
            GRANT, request, now=now, until=until, on_unknown=maybe_granted
        )
    except Fault as fault:
        if fault.cause is Cause.LEASE_EXISTS:
            return None
        raise
    if reply.TTL <= 0 or lease_id != reply.ID:
        maybe_granted()
        raise Fault(Kind.RETRY, Cause.MALFORMED, f"granted TTL {reply.TTL}", operation="LeaseGrant")
    return reply.TTL, sent_s


def renew(lease_id: int, *, now: Callable[[], float], until: float) -> Plan[tuple[float, int]]:
    """One confirmed beat: when it was sent, and the TTL that etcd gave (0: the lease is gone)."""
    while True:
        sent_s = now()
        left_s = max(0.05, min(CALL_TIMEOUT_S, until - sent_s))
        try:
            reply: pb.LeaseKeepAliveResponse = yield from ask(KEEP_ALIVE, pb.LeaseKeepAliveRequest(ID=lease_id), left_s)
        except Fault as fault:
            if fault.cause is Cause.LEASE_NOT_FOUND:
                return sent_s, 0
            if fault.lasting or now() + 0.05 >= until:
                raise
        else:
            return sent_s, reply.TTL
        yield Sleep(0.05)


def revoke(lease_id: int, timeout_s: float = CALL_TIMEOUT_S) -> Plan[bool]:
    """Revoke a lease; one that is gone already is as good."""
    try:
        yield from ask(REVOKE, pb.LeaseRevokeRequest(ID=lease_id), timeout_s)
    except Fault as fault:
        if fault.cause is not Cause.LEASE_NOT_FOUND:
            raise
    return True
