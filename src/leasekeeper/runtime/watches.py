"""The watches on owned keys, so that their loss is heard of sooner than by reading them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from leasekeeper.protocol.authority import NEVER
from leasekeeper.protocol.plan import News

if TYPE_CHECKING:
    from leasekeeper.protocol.authority import Authority
    from leasekeeper.protocol.session import Session, Slot
    from leasekeeper.wire.watch import WatchHub

__all__ = ["KeyWatches"]


class KeyWatches:
    """One watch for each owned key. Only `adopt` and `forget` are for any thread; the rest is the heart's.

    ``told`` gets the slot, weakly, and the create revision that its key was watched for.
    """

    def __init__(
        self,
        hub: WatchHub,
        now: Callable[[], float],
        told: Callable[[weakref.ref[Slot], int, News], None],
    ) -> None:
        self._hub = hub
        self._now = now
        self._told = told
        self._newcomers: deque[Slot] = deque()
        # When a watch of a session last ended without telling what happened.
        self._blind_s: weakref.WeakKeyDictionary[Session, float] = weakref.WeakKeyDictionary()
        # At which revision the keys of a session were last read.
        self._read_at: weakref.WeakKeyDictionary[Session, int] = weakref.WeakKeyDictionary()

    def adopt(self, slot: Slot) -> None:
        """Watch the key of a claim that is owned now; soon, so that a claim given back at once costs no watch."""
        self._newcomers.append(slot)

    def watch_newcomers(self) -> None:
        """Begin with the watches that are due."""
        while self._newcomers:
            slot = self._newcomers.popleft()
            if slot.authority is not None and not slot.leaving:
                self._watch(slot)

    def _watch(self, slot: Slot, start: int = 0) -> None:
        """Watch an owned key from its creation or from ``start`` on.

        The watch knows the slot only, so that it keeps nobody's lease alive.
        """
        if slot.watching is not None:
            return
        told = partial(self._told, weakref.ref(slot), slot.create_revision)
        slot.watching = self._hub.watch(slot.key, max(start, slot.create_revision + 1), told, puts=True)
        if slot.leaving:
            self.forget(slot)

    def forget(self, slot: Slot) -> None:
        """Stop watching a key; from any thread."""
        watched, slot.watching = slot.watching, None
        if watched is not None:
            watched.close()

    def heard(self, ref: weakref.ref[Slot], create_revision: int, news: News) -> Authority | None:
        """The watch on a key has told its news, and is over: whose claim it is, None if that is over or was an earlier one.

        Where it cannot tell what happened, the key is watched again from the next reading on.
        """
        slot = ref()
        authority = slot.authority if slot is not None else None
        if slot is None or authority is None or authority.create_revision != create_revision:
            return None
        slot.watching = None
        if authority.shown.final:
            return None
        if news is not News.DELETED:
            self.blinded(authority.session)
        return authority

    def blinded(self, session: Session) -> None:
        """A watch of the session has ended without telling what happened."""
        self._blind_s[session] = self._now()

    def read(self, session: Session, revision: int) -> None:
        """The session's keys were read at ``revision``: see that they are watched from there on.

        Where every watch is refused, trying that at once would be a storm.
        """
        went_back = revision < self._read_at.get(session, 0)
        self._read_at[session] = revision
        if not went_back and self._now() - self._blind_s.get(session, NEVER) < session.timing.beat_s:
            return
        for slot in list(session.slots.values()):
            authority = slot.authority
            if authority is None or authority.shown.final:
                continue
            if went_back:
                # A store restored from a backup says nothing on a watch from a revision that it has not reached again.
                self.forget(slot)
            if slot.watching is None:
                self._watch(slot, revision + 1)
