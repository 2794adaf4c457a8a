"""The heart of a simulated keeper: does what `protocol.heartbeat` says, in virtual time, and reports back.

What the heart of the runtime does with threads, an inbox and a lock is done here by events; the rules are the same object.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

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
from leasekeeper.protocol.authority import State
from leasekeeper.protocol.heartbeat import Heartbeat
from leasekeeper.protocol.leave import remove, sweep, withdraw
from leasekeeper.protocol.plan import KEEP_ALIVE, Call, News
from leasekeeper.protocol.session import revoke
from leasekeeper.runtime.reading import ReadBacks, learn
from leasekeeper.runtime.signals import Flag
from leasekeeper.runtime.watches import KeyWatches

if TYPE_CHECKING:
    from leasekeeper.protocol.authority import Authority, Reason
    from leasekeeper.protocol.session import Session, Slot, Tending
    from leasekeeper.testing.sim.keeper import Keeper
    from leasekeeper.testing.sim.network import Link
    from leasekeeper.timing import Timing

__all__ = ["Heart"]

SLICE_S = 5.0


def beat_timeout_s(timing: Timing) -> float:
    """How long one beat may take at the most."""
    return timing.authority_s


class Heart:
    """Beats for all sessions of one keeper."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._process = keeper.process
        self._now = keeper.process.now
        self.beats = Heartbeat()
        self._keys = KeyWatches(keeper.hub, self._now, self._key_news)  # type: ignore[arg-type]
        self._read_backs = ReadBacks(self.beats, self._keys, self._decide, self._send, self._take_in)
        self._last: weakref.WeakKeyDictionary[Session, Link] = weakref.WeakKeyDictionary()
        self._cancel: Callable[[], None] = lambda: None
        self._due = False
        self.closed = False

    # ------------------------------------------------------------ as sessions and leases see it

    def add(self, session: Session) -> None:
        """Keep a session alive from now on."""
        self._post(partial(self._decide, self.beats.add, session))

    def adopt(self, slot: Slot) -> None:
        """Watch the key of a claim that is owned now, soon."""
        self._keys.adopt(slot)

    def confirmed(self, session: Session, sent_s: float, ttl: int) -> None:
        """A beat outside the schedule was answered."""
        if ttl <= 0:
            self.lease_gone(session)
        elif session.confirm(sent_s, ttl, self._now()):
            self._pulse(session)
        else:
            self._post(partial(self._decide, self.beats.read_soon, session))

    def lease_gone(self, session: Session) -> None:
        """Etcd said that the lease does not exist."""
        self._do(self._decide(self.beats.lease_gone, session))

    def key_gone(self, authority: Authority) -> None:
        """Somebody read that a claim's key does not exist any more."""
        self._post(partial(self._decide, self.beats.key_gone, authority))

    def lose(self, authority: Authority, reason: Reason) -> None:
        """End a lease for a reason of this process's own."""
        if authority.lose(reason, self._now()):
            self._changed(authority)

    def release(self, authority: Authority) -> Tending | None:
        """Shut the gate of a lease that its owner gives back; None if it was not owned any more."""
        if authority.shown.final:
            return None
        tending = authority.slot.tend()
        authority.release()
        self._changed(authority)
        return tending

    def end(self, session: Session) -> None:
        """Shut a session and wake everybody who waits through it."""
        session.shut()
        self._end(session)

    def close(self) -> None:
        """No more beats."""
        self.closed = True

    # ------------------------------------------------------------ rounds

    def _post(self, report: Callable[[], Iterable[Action]]) -> None:
        self._process.soon(partial(self._take, report))

    def _take(self, report: Callable[[], Iterable[Action]]) -> None:
        if not self.closed:
            self._do(report())
            self._round_soon()

    def _round_soon(self) -> None:
        if not self._due:
            self._due = True
            self._cancel()
            self._process.soon(self._round)

    def _round(self) -> None:
        self._due = False
        if self.closed:
            return
        self._do(self._decide(self.beats.due))
        self._keys.watch_newcomers()
        now_s = self._now()
        self._keeper.hub.tick(now_s)
        if len(self.beats):
            self._cancel = self._process.after(min(SLICE_S, self.beats.wake_at(now_s) - now_s), self._round_soon)

    def _decide(self, rule: Callable[..., list[Action]], *args: Any) -> list[Action]:
        return rule(*args, self._now())

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._perform(action)

    def _perform(self, action: Action) -> None:
        match action:
            case Beat(session, number):
                self._send_beat(session, number)
            case ReadBack(session, keys):
                self._read_backs.begin(session, keys, self._keeper.ctx.keys.epoch)
            case Missed(session):
                self._missed(session)
            case Changed(authority):
                self._changed(authority)
            case Proven(session):
                self._pulse(session)
            case Ended(session):
                self._end(session)
            case Deserted() | Remove() | Vacate() | Sweep() | Revoke():
                self._tidy(action)

    def _tidy(self, action: Deserted | Remove | Vacate | Sweep | Revoke) -> None:
        keeper = self._keeper
        match action:
            case Deserted(slot):
                slot.leaving = True
                self.forget(slot)
                keeper.detach(partial(withdraw, keeper.ctx, slot))
            case Remove(slot, create_revision):
                slot.leaving = True
                keeper.detach(partial(remove, keeper.ctx, slot, create_revision))
            case Vacate(slot):
                keeper.table.vacate(slot)
            case Sweep(session):
                keeper.detach(partial(sweep, keeper.ctx, session))
            case Revoke(session):
                self._revoke(session)

    def _revoke(self, session: Session) -> None:
        if self._keeper.table.retire(session):
            self.beats.discard(session)
            if not session.gone:
                session.shut()
                self._keeper.detach(partial(revoke, session.lease_id))

    # ------------------------------------------------------------ calls

    def _send(self, call: Call, done: Callable[[Any], list[Action]]) -> None:
        self._keeper.interpreter.call(self._keeper.beats, call, lambda result: self._take(partial(done, result)))

    def _send_beat(self, session: Session, number: int) -> None:
        self._last[session] = self._keeper.beats.link
        request = pb.LeaseKeepAliveRequest(ID=session.lease_id)
        call = Call(KEEP_ALIVE, request, beat_timeout_s(session.timing))
        self._send(call, partial(self._beat_done, session, number))

    def _beat_done(self, session: Session, number: int, result: Any) -> list[Action]:
        return self._decide(self.beats.beat_done, session, number, result)

    def _take_in(self, kv: pb.KeyValue | None) -> None:
        learn(kv, self._keeper.ctx.take_in)

    def _missed(self, session: Session) -> None:
        link = self._last.get(session)
        if link is not None:
            self._keeper.beats.advance(link)

    # ------------------------------------------------------------ keys

    def _key_news(self, ref: weakref.ref[Slot], create_revision: int, news: News) -> None:
        self._post(partial(self._heard, ref, create_revision, news))

    def _heard(self, ref: weakref.ref[Slot], create_revision: int, news: News) -> list[Action]:
        authority = self._keys.heard(ref, create_revision, news)
        if authority is None:
            return []
        if news is News.DELETED:
            self._keeper.informed.add((authority.slot.key, create_revision))
            return self._decide(self.beats.key_gone, authority)
        return self._decide(self.beats.read_soon, authority.session)

    def forget(self, slot: Slot) -> None:
        """Stop watching a key."""
        self._keys.forget(slot)

    # ------------------------------------------------------------ telling

    def _pulse(self, session: Session) -> None:
        flag, session.changed = session.changed, Flag()
        assert isinstance(flag, Flag)
        flag.set()

    def _changed(self, authority: Authority) -> None:
        state = authority.shown
        self._keeper.told(authority, state)
        if state in (State.LOST, State.RELEASED):
            self.forget(authority.slot)
        self._pulse(authority.session)

    def _end(self, session: Session) -> None:
        assert isinstance(session.ended, Flag)
        session.ended.set()
        self._pulse(session)
