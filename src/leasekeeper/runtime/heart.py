"""The one heartbeat thread of a keeper.

It decides nothing: `protocol.heartbeat` says what to do, this thread does it and reports back. It makes no call that waits
(calls are started, their answers come through the inbox), runs no user's code, and holds no lock across a call. Whatever
goes wrong in one round is logged and the next round comes; a heart that stops altogether lets every gate shut by the clock.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from queue import Empty
from typing import TYPE_CHECKING, Any

from leasekeeper.errors import StopWork
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
from leasekeeper.protocol.plan import KEEP_ALIVE, Call, Fault, News
from leasekeeper.runtime.events import BeatMissed, Event, StateChanged
from leasekeeper.runtime.mailbox import Mailbox
from leasekeeper.runtime.reading import ReadBacks, learn
from leasekeeper.runtime.signals import Flag
from leasekeeper.runtime.watches import KeyWatches
from leasekeeper.wire.engine import Attempt
from leasekeeper.wire.worker import Worker

if TYPE_CHECKING:
    from leasekeeper.protocol.authority import Authority, Reason
    from leasekeeper.protocol.keys import Epoch
    from leasekeeper.protocol.session import Session, Slot, Tending
    from leasekeeper.runtime.announce import Announcer
    from leasekeeper.wire.engine import Engine, Exchange, Outcome, Step
    from leasekeeper.wire.route import Connection
    from leasekeeper.wire.watch import WatchHub

__all__ = ["Heart"]

log = logging.getLogger("leasekeeper")

SLICE_S = 5.0


class Heart:
    """Beats for all sessions of a keeper. Its thread starts with the first session and ends with `close`."""

    def __init__(
        self,
        engine: Engine,
        hub: WatchHub,
        announcer: Announcer,
        now: Callable[[], float],
        observe: Callable[[Event], None],
    ) -> None:
        self._engine = engine
        self._hub = hub
        self._announcer = announcer
        self._now = now
        self._observe = observe
        self._beats = Heartbeat()
        self._inbox: Mailbox[Callable[[], Iterable[Action]] | None] = Mailbox()
        self._keys = KeyWatches(hub, now, self._key_news)
        self._read_backs = ReadBacks(
            self._beats, self._keys, self._decide, self._ask, lambda kv: self._post(partial(self._take_in, kv))
        )
        # On which connection the last beat of a session went out.
        self._last: weakref.WeakKeyDictionary[Session, Connection] = weakref.WeakKeyDictionary()
        self._pulsing = threading.RLock()
        # Around every transition of a lease, whichever thread makes it; never held across anything that waits. Reentrant, as
        # every lock here: a signal handler of the user's that releases or closes may come while its own thread is inside.
        self.transition = threading.RLock()
        self._worker = Worker(self._run, "leasekeeper-heart")
        self._closed = False
        # Set by the core: what to do with a claim to give up or remove, a slot to vacate and a session to revoke.
        self.desert: Callable[[Slot], None] = lambda _: None
        self.remove: Callable[[Slot, int], None] = lambda _slot, _revision: None
        self.vacate: Callable[[Slot], None] = lambda _: None
        self.sweep: Callable[[Session], None] = lambda _: None
        self.revoke: Callable[[Session], None] = lambda _: None
        # Set by the core: where the epoch is read, and who wants to know it.
        self.epoch_key = b""
        self.take_in: Callable[[Epoch], None] = lambda _: None

    # ------------------------------------------------------------ from other threads

    def add(self, session: Session) -> None:
        """Keep a session alive from now on."""
        self._post(partial(self._add, session))
        if not self._closed:
            self._worker.start()

    def adopt(self, slot: Slot) -> None:
        """Watch the key of a claim that is owned now; soon, so that a claim given back at once costs no watch."""
        self._keys.adopt(slot)

    def confirmed(self, session: Session, sent_s: float, ttl: int) -> None:
        """A beat outside the schedule was answered, and somebody waits to go on: it counts at once, in that thread."""
        if ttl <= 0:
            self.lease_gone(session)
        else:
            with self.transition:
                moved = session.confirm(sent_s, ttl, self._now())
            if moved:
                self._pulse(session)
            else:
                self._post(partial(self._decide, self._beats.read_soon, session))

    def lease_gone(self, session: Session) -> None:
        """Etcd said that the lease does not exist. The gates shut at once, in this thread."""
        rule = partial(self._decide, self._beats.lease_gone, session)
        self._post(rule)  # the heart makes up for what Ctrl-C may leave undone here
        self._do(rule())

    def key_gone(self, authority: Authority) -> None:
        """Somebody read that a claim's key does not exist any more. The gate shuts in a moment, on the heart's thread."""
        self._post(partial(self._decide, self._beats.key_gone, authority))

    def lose(self, authority: Authority, reason: Reason) -> None:
        """End a lease for a reason of this process's own."""
        with self.transition:
            lost = authority.lose(reason, self._now())
        if lost:
            self._changed(authority, authority.shown)

    def release(self, authority: Authority) -> Tending | None:
        """Shut the gate of a lease that its owner gives back, and wake who waits at it; None if it was not owned any more.

        Whoever goes on to remove the claim keeps what is returned: when that is gone the heart removes it.
        """
        with self.transition:
            if authority.shown.final:
                return None
            tending = authority.slot.tend()
            if not authority.release():
                return None  # a signal handler came in between and has released it
        self._tell(authority, authority.shown)
        return tending

    def end(self, session: Session) -> None:
        """Shut a session and wake everybody who waits through it."""
        with self.transition:
            session.shut()
        self._end(session)

    def discard(self, session: Session) -> None:
        """No more beats for a session; called on the heart's own thread."""
        self._beats.discard(session)

    def close(self, timeout_s: float = 1.0) -> None:
        """No more beats; ends the thread."""
        self._closed = True
        self._inbox.put(None)
        self._worker.join(timeout_s)

    def _post(self, report: Callable[[], Iterable[Action]]) -> None:
        self._inbox.put(report)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._closed:
            try:
                self._round()
            except (StopWork, Exception):  # noqa: BLE001 - nothing may end the thread that every lease depends on
                self._announcer.tell(partial(log.error, "a round of the heart failed", exc_info=sys.exc_info()))

    def _round(self) -> None:
        try:
            self._do(self._decide(self._beats.due))
            self._keys.watch_newcomers()
            self._hub.tick(self._now())
            self._engine.tidy()
        finally:
            now_s = self._now()
            self._listen(min(SLICE_S, self._beats.wake_at(now_s) - now_s))

    def _decide(self, rule: Callable[..., list[Action]], *args: Any) -> list[Action]:
        """Ask the protocol what to do, under the lock that guards transitions."""
        with self.transition:
            return rule(*args, self._now())

    def _listen(self, timeout_s: float) -> None:
        """Take what was reported, all that is there, or nothing within the time."""
        try:
            report = self._inbox.get(timeout=max(0.0, timeout_s))
            while report is not None:
                self._do(report())
                report = self._inbox.get_nowait()
        except Empty:
            return

    def _add(self, session: Session) -> list[Action]:
        return self._decide(self._beats.add, session)

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            try:
                self._perform(action)
            except (StopWork, Exception):  # noqa: BLE001 - what goes wrong for one lease must not keep the others from theirs
                self._announcer.tell(partial(log.error, "an action of the heart failed", exc_info=sys.exc_info()))

    def _perform(self, action: Action) -> None:
        match action:
            case Beat(session, number):
                self._send_beat(session, number)
            case ReadBack(session, keys):
                self._read_backs.begin(session, keys, self.epoch_key)
            case Missed(session, in_a_row, why):
                self._missed(session, in_a_row, why)
            case Changed(authority, state):
                self._changed(authority, state)
            case Proven(session):
                self._pulse(session)
            case Ended(session):
                self._end(session)
            case Revoke(session):
                self.revoke(session)
            case Sweep(session):
                self.sweep(session)
            case Deserted() | Remove() | Vacate():
                self._tidy(action)

    def _tidy(self, action: Deserted | Remove | Vacate) -> None:
        match action:
            case Deserted(slot):
                self.desert(slot)
            case Remove(slot, create_revision):
                self.remove(slot, create_revision)
            case Vacate(slot):
                self.vacate(slot)

    # ------------------------------------------------------------ calls

    def _start(
        self, exchange: Exchange, done: Callable[[Any], Iterable[Action]], sent: Callable[[Step], None] | None = None
    ) -> None:
        """Drive a call without waiting: each step of it happens on this thread, when an answer is in the inbox."""

        def step(outcome: Outcome | None) -> Iterable[Action]:
            try:
                result: Any = outcome() if outcome is not None else None
                launch(exchange.throw(result) if isinstance(result, Fault) else exchange.send(result))
            except StopIteration as answer:
                return done(answer.value)
            except (StopWork, Exception) as error:  # noqa: BLE001 - whatever it was, the beat came to nothing
                return done(error)
            return ()

        def launch(attempt: Step) -> None:
            if sent is not None:
                sent(attempt)
            attempt.start(lambda outcome: self._post(partial(step, outcome)))

        self._do(step(None))

    def _send_beat(self, session: Session, number: int) -> None:
        # Later than that an answer would prove nothing.
        call = Call(KEEP_ALIVE, pb.LeaseKeepAliveRequest(ID=session.lease_id), session.timing.authority_s)
        exchange = self._engine.exchange(call, self._engine.beats)
        self._start(exchange, partial(self._beat_done, session, number), partial(self._beat_sent, session))

    def _beat_sent(self, session: Session, attempt: Step) -> None:
        if isinstance(attempt, Attempt):
            self._last[session] = attempt.connection

    def _beat_done(self, session: Session, number: int, result: Any) -> list[Action]:
        return self._decide(self._beats.beat_done, session, number, result)

    def _ask(self, call: Call, done: Callable[[Any], list[Action]]) -> None:
        self._start(self._engine.exchange(call, self._engine.beats), done)

    def _take_in(self, kv: pb.KeyValue | None) -> list[Action]:
        learn(kv, self.take_in)
        return []

    def _missed(self, session: Session, in_a_row: int, why: str) -> None:
        connection = self._last.get(session)
        endpoint = ""
        if connection is not None:
            endpoint = connection.endpoint
            if not self._engine.beats.only_slow(connection):
                self._engine.beats.advance(connection)
        age_s = session.age(self._now())
        self._observe(BeatMissed(session.lease_id, in_a_row, endpoint, why, age_s))

    # ------------------------------------------------------------ keys

    def _key_news(self, ref: weakref.ref[Slot], create_revision: int, news: News) -> None:
        self._post(partial(self._heard, ref, create_revision, news))

    def _heard(self, ref: weakref.ref[Slot], create_revision: int, news: News) -> list[Action]:
        authority = self._keys.heard(ref, create_revision, news)
        if authority is None or self._closed:
            return []
        if news is News.DELETED:
            return self._decide(self._beats.key_gone, authority)
        return self._decide(self._beats.read_soon, authority.session)

    def forget(self, slot: Slot) -> None:
        """Stop watching a key; from any thread."""
        self._keys.forget(slot)

    # ------------------------------------------------------------ sessions

    def _pulse(self, session: Session) -> None:
        """Wake everybody who waits for news of the session."""
        with self._pulsing:  # or two at once would leave somebody with a flag that nobody sets
            flag, session.changed = session.changed, Flag()
        assert isinstance(flag, Flag)
        flag.set()

    def _changed(self, authority: Authority, state: State) -> None:
        loss = authority.loss
        age_s = self._now() - authority.session.proof_s if loss is None else loss.proof_age_s
        claim, in_question = authority.slot.nonce, state is State.SUSPENDED and not authority.open
        self._observe(StateChanged(authority.name, authority.token, claim, state, age_s, loss, in_question))
        self._tell(authority, state)

    def _tell(self, authority: Authority, state: State) -> None:
        for listener in tuple(authority.listeners):
            self._announcer.tell(listener, state)
        if state.final:
            self.forget(authority.slot)
        self._pulse(authority.session)

    def _end(self, session: Session) -> None:
        assert isinstance(session.ended, Flag)
        session.ended.set()
        self._pulse(session)
