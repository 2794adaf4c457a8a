"""The heartbeat's arithmetic for many sessions: who beats next, when to wake, what a late, missing or zero-TTL reply means.

Pure: the heart thread asks `Heartbeat.due` what to do now, does it, and reports back what came of it. Nothing here waits.

Rules:

- Each beat is an exchange of its own. One that is not answered within ``beat_late_s`` is *late*: the next one goes out at
  once, to the next endpoint if there is one. A late answer still counts, from the moment its beat was sent.
- An answer with TTL 0, or "lease not found", means that the lease is gone. One member saying so is enough: to be told
  "lost" wrongly costs a new acquire, to go on wrongly costs the promise. LOST is final.
- A confirmed beat alone proves nothing about a key: every held key is read back at least once per TTL, watched in between,
  and read back before authority is believed again after it had lapsed. Where they cannot be read for a TTL, beats count no
  more.
- Where etcd refuses beats or reads in a way that only a person can mend (no login, no rights), a lease is not waited for
  beyond its TTL.
- What a read-back shows counts for the claims that it was begun for: a key may have gone to another claim meanwhile. It
  proves what all of its keys prove, from when it was begun. Keys that could not be read are asked for again, the others not.
- A key that seems gone shuts its gate at once; the next confirmed beat, sent for it, then tells ``deleted`` from
  ``revoked``. One beat asks for all keys that went together.
- A session with nobody claiming through it does not beat; after a TTL of that it is revoked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.actions import (
    Action,
    Beat,
    Changed,
    Deserted,
    Ended,
    Missed,
    Proven,
    ReadBack,
    Remove,
    Revoke,
    Sweep,
    Vacate,
)
from leasekeeper.protocol.authority import NEVER, Input, State, is_own
from leasekeeper.protocol.plan import Cause, Fault

if TYPE_CHECKING:
    from leasekeeper.protocol.authority import Authority, Reason
    from leasekeeper.protocol.session import Session, Slot

__all__ = ["Heartbeat"]

# Beats of one session in the air at once: enough to try every member of a large cluster while the first still hangs. They are
# sent so far apart that none is forgotten before it could not be answered in time any more.
FLYING_MAX = 12
# Held keys are read back this often, as a share of the TTL; "at least once per TTL" with room for one failure.
READ_BACK_SHARE = 0.45
# A beat that failed at once (connection refused) is not repeated faster than this.
MISS_PAUSE_S = 0.05
# How often to look at the clock while claims are held, so that a pause is announced soon and new claims get their watch.
TICK_S = 0.5


@dataclass(slots=True)
class _Pulse:
    """One session's schedule."""

    session: Session
    next_at: float
    read_back_at: float
    late_at: float = math.inf
    sent_at: float = -math.inf
    misses: int = 0
    # Etcd refuses what would prove it, and waiting does not help.
    refused: bool = False
    idle_since: float | None = None
    # When the read-back under way was begun, whether an answer is awaited, whether another one is wanted after it, and for
    # which slots its keys are still to be read; True for those that were owned then.
    reading_since: float = NEVER
    asking: bool = False
    wanted: bool = False
    reading: dict[bytes, tuple[Slot, bool]] = field(default_factory=dict)
    flying: dict[int, float] = field(default_factory=dict)
    # Claims whose key seems gone, with the number of the first beat whose answer will tell why.
    questions: dict[Authority, int] = field(default_factory=dict)


class Heartbeat:
    """The schedule of all sessions of one keeper."""

    def __init__(self) -> None:
        self._pulses: dict[int, _Pulse] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._pulses)

    def add(self, session: Session, now_s: float) -> list[Action]:
        """Begin with a session whose proof is fresh."""
        beat_s = session.timing.beat_s
        self._pulses[session.lease_id] = _Pulse(
            session,
            next_at=session.proof_s + beat_s,
            read_back_at=now_s + session.timing.ttl * READ_BACK_SHARE,
        )
        return []

    def discard(self, session: Session) -> None:
        """Forget a session; answers still in the air are ignored."""
        self._pulses.pop(session.lease_id, None)

    def wake_at(self, now_s: float) -> float:
        """When `due` has something to do next; infinity when there is no session."""
        return min((self._wake_of(p, now_s) for p in list(self._pulses.values())), default=math.inf)

    def _wake_of(self, pulse: _Pulse, now_s: float) -> float:
        tick = min(TICK_S, pulse.session.timing.beat_s / 2)
        return min(pulse.next_at, pulse.late_at, now_s + tick)

    # ------------------------------------------------------------ what to do now

    def due(self, now_s: float) -> list[Action]:
        """Everything that has to be done at this moment, most urgent first."""
        actions: list[Action] = []
        for pulse in list(self._pulses.values()):
            actions += self._pauses(pulse, now_s)
            actions += [Deserted(slot) for slot in list(pulse.session.slots.values()) if slot.deserted]
            for over in [authority for authority in pulse.questions if authority.shown.final]:
                del pulse.questions[over]  # given back meanwhile: nobody wants to know any more
            if pulse.session.claims() or pulse.questions:
                if pulse.session.doubtful:
                    pulse.session.doubtful = False
                    actions.append(Sweep(pulse.session))
                self._active(pulse, now_s)
                actions += self._beats(pulse, now_s)
                actions += self._read_backs(pulse, now_s)
            else:
                actions += self._idle(pulse, now_s)
        return actions

    def _active(self, pulse: _Pulse, now_s: float) -> None:
        """Somebody claims through the session: after an idle time the next beat is due one interval from its proof."""
        if pulse.idle_since is not None:
            pulse.idle_since = None
            pulse.next_at = max(now_s, pulse.session.proof_s + pulse.session.timing.beat_s)

    def _beats(self, pulse: _Pulse, now_s: float) -> list[Action]:
        actions: list[Action] = []
        if now_s >= pulse.late_at:
            actions += self._miss(pulse, "no answer in time")
            pulse.next_at = now_s
        if now_s >= pulse.next_at:
            actions.append(self._send(pulse, now_s))
        return actions

    def _send(self, pulse: _Pulse, now_s: float) -> Beat:
        timing = pulse.session.timing
        apart_s = max(timing.beat_late_s, timing.authority_s / (FLYING_MAX - 1)) if pulse.flying else timing.beat_late_s
        self._number += 1
        while len(pulse.flying) >= FLYING_MAX:
            pulse.flying.pop(next(iter(pulse.flying)))
        pulse.flying[self._number] = pulse.sent_at = now_s
        pulse.next_at = now_s + max(timing.beat_s, apart_s)
        pulse.late_at = now_s + apart_s
        return Beat(pulse.session, self._number)

    def _miss(self, pulse: _Pulse, why: str) -> list[Action]:
        pulse.misses += 1
        pulse.late_at = math.inf
        return [Missed(pulse.session, pulse.misses, why)]

    def _pauses(self, pulse: _Pulse, now_s: float) -> list[Action]:
        """Tell leases whose proof has grown too old, and end those whose patience is over."""
        actions: list[Action] = []
        for authority in pulse.session.authorities():
            if authority.overdue(now_s):
                actions += self._lose(authority, "gave_up", now_s)
            elif (authority in pulse.questions or pulse.refused) and authority.run_out(now_s):
                actions += self._lose(authority, "expired", now_s)
            elif authority.state(now_s) is State.SUSPENDED and authority.turn(Input.PAUSE):
                actions.append(Changed(authority, State.SUSPENDED))
        return actions

    def _read_backs(self, pulse: _Pulse, now_s: float) -> list[Action]:
        if pulse.asking or now_s < pulse.read_back_at:
            return []
        return self._read(pulse, now_s)

    def _read(self, pulse: _Pulse, now_s: float) -> list[Action]:
        """Ask for what the read-back under way has not read yet or, where that is of no use any more, for everything."""
        session = pulse.session
        if now_s - pulse.reading_since >= session.timing.ttl or not session.served(now_s):
            session.begin_reading(now_s)
            pulse.reading_since, pulse.wanted = now_s, False
            pulse.reading = {
                slot.key: (slot, _owned(slot)) for slot in list(session.slots.values()) if slot.leaving or _owned(slot)
            }
        if not pulse.reading:
            return self._have_read(pulse, now_s)
        pulse.asking = True
        return [ReadBack(session, tuple(pulse.reading))]

    def _have_read(self, pulse: _Pulse, now_s: float) -> list[Action]:
        """Every key of the read-back has been read since it was begun."""
        since, pulse.reading_since = pulse.reading_since, NEVER
        session = pulse.session
        session.read_s = max(session.read_s, since)
        pulse.read_back_at = now_s if pulse.wanted else since + session.timing.ttl * READ_BACK_SHARE
        actions = self._proven(pulse, now_s) if session.reprove(now_s) else []
        if session.pending_s > NEVER:
            # Read before the beat that waits for it was sent: it shows nothing about the time after.
            actions += self._read(pulse, now_s)
        return actions

    def _idle(self, pulse: _Pulse, now_s: float) -> list[Action]:
        pulse.late_at = pulse.next_at = math.inf
        if pulse.idle_since is None:
            pulse.idle_since = now_s
        session = pulse.session
        haunted = any(slot.haunted for slot in list(session.slots.values()))
        over = now_s - pulse.idle_since >= session.timing.ttl
        soon = (haunted or session.retired or session.gone) and not session.in_use()
        return [Revoke(session)] if over or soon else []

    # ------------------------------------------------------------ what came of it

    def beat_done(self, session: Session, number: int, result: object, now_s: float) -> list[Action]:
        """What came of a beat: the answer, a `Fault`, or whatever else went wrong."""
        if isinstance(result, pb.LeaseKeepAliveResponse):
            return self.answered(session, number, result.TTL, now_s)
        if not isinstance(result, Fault):
            return self.failed(session, number, repr(result), now_s)
        if result.cause is Cause.LEASE_NOT_FOUND:
            return self.lease_gone(session, now_s)
        return self.failed(session, number, result.text or result.cause.value, now_s, refused=result.lasting)

    def answered(self, session: Session, number: int, ttl: int, now_s: float) -> list[Action]:
        """A beat was answered with this TTL."""
        pulse = self._pulses.get(session.lease_id)
        if pulse is None or session.gone:
            return []
        sent_s = pulse.flying.pop(number, None)
        if ttl <= 0:
            return self.lease_gone(session, now_s)
        if sent_s is None:
            return []
        for older in [n for n in pulse.flying if n < number]:
            del pulse.flying[older]
        pulse.misses = 0
        if not pulse.flying:
            pulse.late_at = math.inf
        actions = self._answer_questions(pulse, number, now_s)
        if session.confirm(sent_s, ttl, now_s):
            return actions + self._proven(pulse, now_s)
        return actions if pulse.asking else actions + self._read(pulse, now_s)

    def failed(self, session: Session, number: int, why: str, now_s: float, *, refused: bool = False) -> list[Action]:
        """A beat came to nothing: its connection broke, its member refused (``refused``: for good)."""
        pulse = self._pulses.get(session.lease_id)
        if pulse is None or pulse.flying.pop(number, None) is None:
            return []
        if pulse.flying and number < max(pulse.flying):
            return []
        pulse.refused = refused
        actions = self._miss(pulse, why)
        back_off_s = min(session.timing.beat_late_s, MISS_PAUSE_S * 2 ** min(pulse.misses, 8))
        pulse.next_at = now_s + back_off_s
        return actions

    def lease_gone(self, session: Session, now_s: float) -> list[Action]:
        """Etcd says that the lease does not exist. Final for all its claims."""
        self.discard(session)
        reason: Reason = "expired" if session.age(now_s) >= session.timing.ttl else "revoked"
        # First this, then the list: a claim that is being adopted in another thread is in it, or sees this.
        session.gone = True
        actions = [a for authority in session.authorities() for a in self._lose(authority, reason, now_s)]
        session.shut()
        return [*actions, Ended(session)]

    def key_gone(self, authority: Authority, now_s: float) -> list[Action]:
        """The own key was deleted or replaced. Shut the gate and ask the lease at once, so that the loss has its reason."""
        pulse = self._pulses.get(authority.session.lease_id)
        if authority.shown.final or (pulse is not None and authority in pulse.questions):
            return []
        authority.question()
        if pulse is None:
            return self._lose(authority, "deleted", now_s)
        pulse.questions[authority] = self._number + 1
        pulse.next_at = min(pulse.next_at, max(now_s, pulse.sent_at + MISS_PAUSE_S))
        return [Changed(authority, State.SUSPENDED)] if authority.turn(Input.PAUSE) else []

    def read_back(
        self, session: Session, found: Mapping[bytes, pb.KeyValue | None], now_s: float, *, refused: bool = False
    ) -> list[Action]:
        """Keys of a `ReadBack` as they are now; None stands for a key that does not exist.

        Those that are missing in ``found`` could not be read (``refused``: and never will be). They are asked for again soon;
        the others count for what they show, and nothing is proven before all have been read.
        """
        pulse = self._pulses.get(session.lease_id)
        if pulse is None or not pulse.asking:
            return []
        pulse.asking = False
        actions: list[Action] = []
        for key, kv in found.items():
            slot, owned = pulse.reading.pop(key, (None, False))
            if slot is not None:
                actions += self._check(slot, owned, kv, now_s)
        if not pulse.reading:
            return actions + self._have_read(pulse, now_s)
        pulse.refused = refused
        # At once as long as each time brings some of them, else as soon as a beat would be repeated.
        pulse.read_back_at = now_s + (MISS_PAUSE_S if found else session.timing.beat_late_s)
        return actions

    def _check(self, slot: Slot, owned: bool, kv: pb.KeyValue | None, now_s: float) -> list[Action]:
        """What a key that was read says about the slot it was read for; ``owned``: whether it was, before the read."""
        authority = slot.authority
        if authority is not None and not authority.shown.final:
            own = not owned or is_own(kv, authority.create_revision, authority.session.lease_id)
            return [] if own else self.key_gone(authority, now_s)
        if not slot.leaving or slot.tended or slot.session.slots.get(slot.key) is not slot:
            # Nobody's business but that of the plan that removes it, or of a newer claim that took the slot meanwhile.
            return []
        if not owned and kv is None:
            # Whoever wanted to remove it has not told, and need not any more. A prepared request may be on its way.
            slot.prepared = None
            return [Vacate(slot)]
        # A slot's key is this session's alone, so whatever stands there under its lease was put by it, late.
        if kv is not None and kv.lease == slot.session.lease_id:
            return [Remove(slot, kv.create_revision)]
        return []

    def read_back_failed(self, session: Session, now_s: float, *, refused: bool = False) -> list[Action]:
        """No key could be read: try again soon; nothing is proven meanwhile. ``refused``: and never will be."""
        return self.read_back(session, {}, now_s, refused=refused)

    def read_soon(self, session: Session, now_s: float) -> list[Action]:
        """Something happened to a key that its watch cannot explain: read all held keys now."""
        pulse = self._pulses.get(session.lease_id)
        if pulse is None:
            return []
        pulse.read_back_at, pulse.wanted = now_s, pulse.reading_since > NEVER
        return self._read_backs(pulse, now_s)

    # ------------------------------------------------------------ leases

    def _proven(self, pulse: _Pulse, now_s: float) -> list[Action]:
        pulse.refused = False
        held = [a for a in pulse.session.authorities() if a.state(now_s) is State.HELD]
        return [Proven(pulse.session), *(Changed(a, State.HELD) for a in held if a.turn(Input.PROVE))]

    def _answer_questions(self, pulse: _Pulse, number: int, now_s: float) -> list[Action]:
        """The lease lives, so a key that is gone was deleted by itself. Only beats sent after the question tell."""
        ready = [a for a, asked in pulse.questions.items() if number >= asked]
        return [action for a in ready for action in self._lose(a, "deleted", now_s)]

    def _lose(self, authority: Authority, reason: Reason, now_s: float) -> list[Action]:
        pulse = self._pulses.get(authority.session.lease_id)
        if pulse is not None:
            pulse.questions.pop(authority, None)
        if not authority.lose(reason, now_s):
            return []
        slot = authority.slot
        slot.leaving = True
        changed = Changed(authority, State.LOST)
        match reason:
            case "deleted":
                return [changed, Vacate(slot)]
            case "gave_up":
                return [changed, Remove(slot, authority.create_revision)]
        return [changed]


def _owned(slot: Slot) -> bool:
    return slot.authority is not None and not slot.authority.shown.final
