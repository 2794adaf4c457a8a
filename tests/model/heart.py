"""The heart of a client on the model: does what the heartbeat's rules say, at once and one thing after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.actions import (
    Action,
    Beat,
    Changed,
    Deserted,
    Ended,
    Proven,
    ReadBack,
    Remove,
    Revoke,
    Sweep,
    Vacate,
)
from leasekeeper.protocol.authority import Authority
from leasekeeper.protocol.heartbeat import Heartbeat
from leasekeeper.protocol.leave import remove, sweep, withdraw
from leasekeeper.protocol.session import Session, Slot, revoke
from leasekeeper.runtime.signals import Flag

if TYPE_CHECKING:
    from leasekeeper.testing.sim.store import Store
    from tests.model.world import Client


class ModelWatch:
    """A watch on the model; like a real one it stays silent about what a restore took away."""

    def __init__(self, store: Store, keys: tuple[bytes, ...], start: int) -> None:
        self._store, self._keys, self._start = store, keys, start
        self.closed = False

    def is_set(self) -> bool:
        """Whether there is news, or there will be no more of it."""
        return self.blind() or self.deleted()

    def blind(self) -> bool:
        """Whether the history that would tell is compacted away."""
        return self._start <= self._store.compacted

    def deleted(self) -> bool:
        """Whether a key was deleted."""
        mine = [event for event in self._store.events if event.revision >= self._start and event.key in self._keys]
        return any(event.deleted for event in mine)

    def subscribe(self, callback: Callable[[], None]) -> None:
        """The model's interpreter polls instead."""

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """The model's interpreter polls instead."""

    def close(self) -> None:
        """Stop watching."""
        self.closed = True


class Heart:
    """Does what the heartbeat's rules say, at once and one thing after the other."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._world = client.world
        self.beats = Heartbeat()
        self.transition = threading.Lock()
        self.changes: list[Changed] = []
        self.sent = 0
        self._watched: list[tuple[Authority, ModelWatch]] = []

    # ------------------------------------------------------------ as sessions see it

    def add(self, session: Session) -> None:
        """Keep a session alive from now on."""
        self._do(self.beats.add(session, self._world.now_s))

    def adopt(self, slot: Slot) -> None:
        """Watch an owned key."""
        assert slot.authority is not None
        watch = ModelWatch(self._world.store, (slot.key,), slot.create_revision + 1)
        self._watched.append((slot.authority, watch))

    def confirmed(self, session: Session, sent_s: float, ttl: int) -> None:
        """A beat outside the schedule was answered."""
        if ttl <= 0:
            self.lease_gone(session)
        elif session.confirm(sent_s, ttl, self._world.now_s):
            self._pulse(session)

    def lease_gone(self, session: Session) -> None:
        """Etcd said that the lease does not exist."""
        self._do(self.beats.lease_gone(session, self._world.now_s))

    # ------------------------------------------------------------ its rounds

    def round(self) -> None:
        """Everything that is due now."""
        watched, self._watched = ([], self._watched) if self._world.down else (self._watched, [])
        for authority, watch in watched:
            if authority.shown.final:
                continue
            if watch.blind():
                self._do(self.beats.read_soon(authority.session, self._world.now_s))
            elif watch.deleted():
                self._do(self.beats.key_gone(authority, self._world.now_s))
            else:
                self._watched.append((authority, watch))
        self._do(self.beats.due(self._world.now_s))
        self._client.tidy()

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._perform(action)

    def _perform(self, action: Action) -> None:
        match action:
            case Beat(session, number):
                self._beat(session, number)
            case ReadBack(session, keys):
                self._read_back(session, keys)
            case Changed():
                self.changes.append(action)
                self._pulse(action.authority.session)
            case Proven(session):
                self._pulse(session)
            case Ended(session):
                _set(session.ended)
                self._pulse(session)
            case Deserted() | Remove() | Vacate() | Sweep():
                self._tidy(action)
            case Revoke(session):
                self._revoke(session)

    def _tidy(self, action: Deserted | Remove | Vacate | Sweep) -> None:
        match action:
            case Deserted(slot):
                slot.leaving = True
                self._client.detached.append(partial(withdraw, self._client.ctx, slot))
            case Remove(slot, create_revision):
                slot.leaving = True
                self._client.detached.append(partial(remove, self._client.ctx, slot, create_revision))
            case Vacate(slot):
                self._client.table.vacate(slot)
            case Sweep(session):
                self._client.detached.append(partial(sweep, self._client.ctx, session))

    def _beat(self, session: Session, number: int) -> None:
        self.sent += 1
        if self._world.down:
            self._do(self.beats.failed(session, number, "down", self._world.now_s))
            return
        reply: Any = self._world.store.answer(pb.LeaseKeepAliveRequest(ID=session.lease_id))
        self._do(self.beats.answered(session, number, reply.TTL, self._world.now_s))

    def _read_back(self, session: Session, keys: tuple[bytes, ...]) -> None:
        if self._world.down:
            self._do(self.beats.read_back_failed(session, self._world.now_s))
            return
        reply: Any = self._world.store.answer(m.read_only(m.get(key, keys_only=True) for key in keys))
        found = {key: next(iter(m.range_kvs(reply, index)), None) for index, key in enumerate(keys)}
        self._do(self.beats.read_back(session, found, self._world.now_s))

    def _revoke(self, session: Session) -> None:
        if self._client.table.retire(session):
            self.beats.discard(session)
            if not session.gone:
                session.shut()
                self._client.detached.append(partial(revoke, session.lease_id))

    def _pulse(self, session: Session) -> None:
        flag, session.changed = session.changed, Flag()
        _set(flag)


def _set(signal: object) -> None:
    assert isinstance(signal, Flag)
    signal.set()
