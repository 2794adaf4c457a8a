"""What a plan is given beside its arguments: the namespace, who is asking, a clock, chance, and the keeper's sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from leasekeeper.errors import StoreRewound
from leasekeeper.protocol.keys import UNREAD_EPOCH, Epoch, Keys, record_bytes, record_tail

if TYPE_CHECKING:
    from leasekeeper.protocol.authority import Authority
    from leasekeeper.protocol.plan import Signal
    from leasekeeper.protocol.session import Session, Slot, Tending
    from leasekeeper.timing import Timing

__all__ = ["Context", "Sessions"]

# Prepared records; a program that puts something new into each note gains nothing from them and must not lose memory.
TAILS_MAX = 64


class Sessions(Protocol):
    """The sessions of a keeper, as plans see them. Every method returns at once and may be called from any thread."""

    def lend(self, timing: Timing, tending: Tending) -> Session | Signal | None:
        """A usable session; or a signal to wait for, because another plan is opening one; or None: open one yourself.

        Whoever opens one keeps ``tending`` meanwhile. The signal may stay silent if that plan comes to nothing: ask again.
        """
        ...

    def at_hand(self, timing: Timing) -> bool:
        """Whether `lend` would give a session at once."""
        ...

    def opened(self, asked: Timing, session: Session | None) -> None:
        """The plan that was told to open a session has one, or has failed (None)."""
        ...

    def make(self, lease_id: int, timing: Timing, proof_s: float) -> Session:
        """A session of a lease that was just granted."""
        ...

    def occupy(self, session: Session, name: str, tending: Tending) -> Slot | None:
        """The lowest free slot on a name, for a plan that keeps ``tending``; None when the session ended meanwhile."""
        ...

    def doubt(self) -> None:
        """Etcd was restored, it seems: take no more claims into the sessions that there are, and have them swept."""
        ...

    def vacate(self, slot: Slot) -> None:
        """The slot's key is surely gone."""
        ...

    def haunt(self, slot: Slot) -> None:
        """A put to the slot may still arrive."""
        ...

    def adopt(self, authority: Authority) -> bool:
        """The slot's claim is owned: watch its key and count it in. False when the session ended meanwhile."""
        ...

    def confirmed(self, session: Session, sent_s: float, ttl: int) -> None:
        """A beat outside the heart's schedule was answered with this TTL (0: the lease is gone)."""
        ...

    def gone(self, session: Session) -> None:
        """Etcd said that the session's lease does not exist."""
        ...


@dataclass(slots=True)
class Context:
    """One keeper's view of the world. ``epoch`` is the highest one read; every acquire compares it."""

    keys: Keys
    holder: str
    host: str
    pid: int
    now: Callable[[], float]
    wall: Callable[[], float]
    new_nonce: Callable[[], str]
    new_lease_id: Callable[[], int]
    sessions: Sessions
    # Tell the engine that a lower revision is to be believed from now on, because the epoch was raised.
    accept_rewind: Callable[[], None]
    epoch: Epoch = UNREAD_EPOCH
    _tails: dict[tuple[str, float, int], str] = field(default_factory=dict)

    def learn(self, epoch: Epoch, since: Epoch) -> None:
        """Take in an epoch that was just read; ``since`` is the one that was known before the read was sent.

        Raises:
            StoreRewound: it is lower, or another one of the same number. Etcd was restored from a backup, and tokens could
                repeat until the epoch is raised above both.
        """
        anew = epoch.number == since.number and since.stored not in (None, epoch.stored)
        if epoch.number < since.number or anew:
            raise StoreRewound(
                f"etcd's epoch was {since.number} and is {'another ' if anew else ''}{epoch.number} now, as after a restore"
                " from a backup: run `leasekeeper epoch bump --above TOKEN` with the highest token that was seen"
            )
        self.take_in(epoch)

    def take_in(self, epoch: Epoch) -> None:
        """Remember an epoch, unless a later one is known.

        After a rise lower revisions are believed, since no token repeats; and new claims go through new sessions, since the
        leases of the old ones may have keys that a restore brought back.
        """
        if self.epoch is UNREAD_EPOCH:
            self.epoch = epoch  # nothing has risen: revisions that were seen still count
        elif epoch.number > self.epoch.number:
            # In this order: a request under the new epoch must not be measured by what was seen under the old one.
            self.accept_rewind()
            self.epoch = epoch
            self.sessions.doubt()
        elif epoch.number == self.epoch.number and self.epoch.stored is None:
            self.epoch = epoch

    def record(self, note: str, ttl: float, epoch: int) -> tuple[str, bytes]:
        """A new claim's nonce, and the bytes of its record."""
        tail = self._tails.get((note, ttl, epoch))
        if tail is None:
            tail = record_tail(holder=self.holder, host=self.host, pid=self.pid, note=note, ttl=ttl, epoch=epoch)
            if len(self._tails) >= TAILS_MAX:
                self._tails.clear()
            self._tails[note, ttl, epoch] = tail
        nonce = self.new_nonce()
        return nonce, record_bytes(nonce, self.wall(), tail)
