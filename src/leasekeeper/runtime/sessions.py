"""The sessions of a keeper: which are open, which slots are taken. The one lock over them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasekeeper.protocol.plan import Cause, Fault, Kind, Signal
from leasekeeper.protocol.session import Session, Slot, Tending
from leasekeeper.runtime.signals import Flag
from leasekeeper.wire.route import keeper_closed

if TYPE_CHECKING:
    from leasekeeper.protocol.authority import Authority
    from leasekeeper.protocol.keys import Keys
    from leasekeeper.runtime.heart import Heart
    from leasekeeper.timing import Timing

__all__ = ["SessionTable"]


@dataclass(frozen=True, slots=True)
class _Opening:
    """A session that is being opened: by the plan that keeps ``tending``, as long as it does."""

    done: Flag
    tending: weakref.ref[Tending]


class SessionTable:
    """Implements `protocol.context.Sessions` for threads and event loops alike."""

    def __init__(self, keys: Keys, now: Callable[[], float], heart: Heart, dropped: Callable[[Slot], None]) -> None:
        self._keys = keys
        self._now = now
        self._heart = heart
        self._dropped = dropped
        self._lock = threading.RLock()
        self._current: dict[Timing, Session] = {}
        self._opening: dict[Timing, _Opening] = {}
        self._all: weakref.WeakSet[Session] = weakref.WeakSet()
        self._closed = False
        # A signal handler may come while its own thread is choosing a slot: it must not choose the same.
        self._occupying = False

    # ------------------------------------------------------------ for plans

    def lend(self, timing: Timing, tending: Tending) -> Session | Signal | None:
        """A usable session; or a signal to wait for; or None: open one yourself and say `opened`."""
        current = self._current.get(timing)
        if current is not None and current.usable(self._now()):
            return current
        with self._lock:
            if self._closed:
                raise keeper_closed()
            current = self._current.get(timing)
            if current is not None and current.usable(self._now()):
                return current
            opening = self._opening.get(timing)
            if opening is not None and opening.tending() is not None:
                return opening.done
            self._current.pop(timing, None)
            # Those who wait for a plan that was struck will hear from its successor.
            done = opening.done if opening is not None else Flag()
            self._opening[timing] = _Opening(done, weakref.ref(tending))
            return None

    def at_hand(self, timing: Timing) -> bool:
        """Whether `lend` would give a session at once."""
        current = self._current.get(timing)
        return current is not None and current.usable(self._now())

    def make(self, lease_id: int, timing: Timing, proof_s: float) -> Session:
        """A session of a lease that was just granted."""
        return Session(lease_id, timing, proof_s, ended=Flag(), changed=Flag())

    def opened(self, asked: Timing, session: Session | None) -> None:
        """The plan that was told to open a session has one, or has failed (None). May be said again."""
        if session is not None:
            with self._lock:
                self._all.add(session)  # before anything else, so that `close` finds it
            self._heart.add(session)  # before it is lent, so that none ever is that nobody keeps alive
        with self._lock:
            opening = self._opening.pop(asked, None)
            if session is not None and not self._closed:
                self._current = {timing: each for timing, each in self._current.items() if not each.gone}
                self._current[asked] = session
        if opening is not None:
            opening.done.set()

    def occupy(self, session: Session, name: str, tending: Tending) -> Slot | None:
        """The lowest free slot on a name; None when the session ended meanwhile."""
        with self._lock:
            if session.gone or session.retired or self._closed:
                return None
            if self._occupying:
                raise Fault(
                    Kind.FIX, Cause.CLOSED, "a signal handler cannot acquire while its thread is just acquiring"
                )
            self._occupying = True
            try:
                number = session.lowest_free(name)
                return session.occupy(name, number, self._keys.claim(name, session.lease_id, number), tending)
            finally:
                self._occupying = False

    def doubt(self) -> None:
        """Take no more claims into the sessions that there are, and have them swept."""
        with self._lock:
            for session in list(self._all):
                session.doubt()
            self._current.clear()

    def vacate(self, slot: Slot) -> None:
        """The slot's key is surely gone."""
        with self._lock:
            slot.session.free(slot)

    def haunt(self, slot: Slot) -> None:
        """A put to the slot may still arrive."""
        with self._lock:
            slot.session.haunt(slot)

    def adopt(self, authority: Authority) -> bool:
        """The slot's claim is owned: count it in, and have its key watched. False when the session ended meanwhile."""
        authority.dropped = self._dropped
        with self._lock:
            # First this, then the question: a session that ends in another thread takes it along, or is seen to have ended.
            authority.slot.authority = authority
            if authority.session.gone or self._closed:
                authority.release()
                return False
        self._heart.adopt(authority.slot)
        return True

    def confirmed(self, session: Session, sent_s: float, ttl: int) -> None:
        """A beat outside the heart's schedule was answered."""
        self._heart.confirmed(session, sent_s, ttl)

    def gone(self, session: Session) -> None:
        """Etcd said that the session's lease does not exist."""
        self._heart.lease_gone(session)

    # ------------------------------------------------------------ for the keeper

    def retire(self, session: Session) -> bool:
        """Take no more claims into an idle session; False when somebody just came."""
        with self._lock:
            if session.claims() and not session.gone:
                return False
            if session.in_use() and not session.gone and session.age(self._now()) < session.timing.ttl:
                return False
            session.retired = True
            for timing, current in list(self._current.items()):
                if current is session:
                    del self._current[timing]
            return True

    def owned_by(self, name: str, owner: object) -> bool:
        """Whether ``owner`` (a thread or a task) owns the name through this keeper already, in whichever session and slot."""
        with self._lock:
            sessions = list(self._all)
        for session in sessions:
            for slot in session.named(name):
                held = slot.authority
                if held is not None and not held.shown.final and held.owner is not None and held.owner() is owner:
                    return True
        return False

    def close(self) -> list[Session]:
        """Take no more claims at all; every session that may still have a lease."""
        with self._lock:
            self._closed = True
            self._current.clear()
            opening, sessions = list(self._opening.values()), list(self._all)
        for each in opening:
            each.done.set()
        return [session for session in sessions if not session.gone]

    def opening(self) -> bool:
        """Whether a plan is opening a session."""
        with self._lock:
            return any(each.tending() is not None for each in self._opening.values())

    def all(self) -> list[Session]:
        """Every session there is; takes no lock, for use in a forked child."""
        return list(self._all)
