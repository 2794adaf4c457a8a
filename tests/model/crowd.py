"""Several keepers on one model etcd, each behind a network of its own, in virtual time and by one seed.

Requests take their time on the way out and on the way back, and get lost on either. Members are cut off, stand still, and
come back; etcd goes away, loses history, is restored from a backup; operators delete, revoke and raise the epoch. Members
acquire, work behind the gate, send their writes to a resource that applies the fence rule, and release.

Plans, sessions and heartbeat rules are the real ones. What must hold is checked after every single event.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

from leasekeeper.fencing import Admitted, admits
from leasekeeper.protocol import epoch
from leasekeeper.testing.sim.store import Store
from leasekeeper.timing import Timing
from tests.model.member import NAME, Member
from tests.model.world import KEYS, Client, World

QUEUE = KEYS.queue(NAME)
EVENTS_MAX = 200_000


@dataclass
class Sink:
    """A resource that applies the fence rule, and remembers whom it accepted."""

    highest: Admitted | None = None
    accepted: list[int] = field(default_factory=list)
    refused: int = 0

    def write(self, token: int, claim: str) -> None:
        """A write arrives."""
        if admits(self.highest, token, claim):
            self.highest = Admitted(token, claim)
            self.accepted.append(token)
        else:
            self.refused += 1


class Crowd(World):
    """The world of a seed: events in order of time, and everybody in it."""

    def __init__(self, seed: int, members: int, timing: Timing) -> None:
        super().__init__()
        self.chance = Random(seed)
        self.sink = Sink()
        self.owners: list[int] = []
        self.quiet = False
        # Claims that an operator has removed over their owners' heads: until the news arrives, only the fence holds.
        self.removed: set[int] = set()
        # Requests of an earlier era were on their way when etcd was restored: they have died with it.
        self.era = 0
        self.told: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.operator = Client(self)
        self.backup: Store = self.store.snapshot()
        self.members = [Member(self, timing) for _ in range(members)]
        for member in self.members:
            self.later(self.chance.uniform(0.0, 2.0), member.live)

    def later(self, seconds: float, event: Callable[[], None]) -> None:
        """Something happens in so many seconds."""
        heapq.heappush(self._events, (self.now_s + seconds, next(self._order), event))

    def run(self, seconds: float, check: Callable[[Crowd], None]) -> None:
        """Let time pass, event by event, and check after each."""
        until = self.now_s + seconds
        for _ in range(EVENTS_MAX):
            if not self._events or self._events[0][0] > until:
                break
            at_s, _, event = heapq.heappop(self._events)
            self.now_s = max(self.now_s, at_s)
            self.store.expire()
            event()
            check(self)
        else:
            raise AssertionError("too many events: somebody runs in circles")
        self.now_s = until
        self.store.expire()
        check(self)

    def tell(self, what: str) -> None:
        """A line of the story, for whoever must understand a failure."""
        self.told.append(f"{self.now_s - 1000:8.3f} {what}")

    # ------------------------------------------------------------ what befalls them

    def misfortune(self) -> None:
        """One of the things that can go wrong, and the next one soon."""
        if self.quiet:
            return
        kinds = [
            self.cut_off,
            self.stand_still,
            self.outage,
            self.operator_deletes,
            self.operator_revokes,
            self.operator_raises_the_epoch,
            self.compaction,
            self.back_up,
            self.restoration,
        ]
        self.chance.choice(kinds)()
        self.later(self.chance.uniform(1.0, 12.0), self.misfortune)

    def some_while(self, ttl: float) -> float:
        """A blink, a pause, or longer than any lease."""
        return self.chance.choice((0.3, 0.55, 0.8, 1.05, 2.0)) * ttl

    def cut_off(self) -> None:
        """A member's network is gone for a while."""
        member = self.chance.choice(self.members)
        seconds = self.some_while(member.timing.ttl)
        member.cut_off(seconds)
        self.tell(f"{member.ctx.holder} is cut off for {seconds:.1f} s")

    def stand_still(self) -> None:
        """A member's process is stopped for a while."""
        member = self.chance.choice(self.members)
        seconds = self.some_while(member.timing.ttl)
        member.frozen_until_s = self.now_s + seconds
        self.tell(f"{member.ctx.holder} stands still for {seconds:.1f} s")

    def outage(self) -> None:
        """Nobody reaches etcd."""
        seconds = self.some_while(self.members[0].timing.ttl)
        for member in self.members:
            member.cut_off(seconds)
        self.tell(f"outage for {seconds:.1f} s")

    def operator_deletes(self) -> None:
        """The owner's key."""
        for kv in self.store.below(QUEUE)[:1]:
            self.removed.add(kv.create_revision)
            self.store.delete(kv.key)
            self.tell(f"an operator deletes {kv.key!r}")

    def operator_revokes(self) -> None:
        """Any lease."""
        if self.store.leases:
            lease = self.chance.choice(sorted(self.store.leases))
            self.removed |= {kv.create_revision for kv in self.store.below(QUEUE) if kv.lease == lease}
            self.store.end_lease(lease)
            self.tell(f"an operator revokes {lease:x}")

    def operator_raises_the_epoch(self) -> None:
        """By the real plan."""
        run = self.operator.run(epoch.bump(self.operator.ctx, self.now_s + 5.0))
        assert run.error is None, run.error
        self.tell(f"the epoch is raised: {run.result}")

    def compaction(self) -> None:
        """Old history is gone."""
        self.store.compacted = self.store.revision
        self.tell("compaction")

    def back_up(self) -> None:
        """A snapshot, for a later restoration."""
        self.backup = self.store.snapshot()
        self.tell(f"backup at revision {self.backup.revision}")

    def restoration(self) -> None:
        """As operators are told to do it: etcd is away for longer than any lease, and the epoch is raised before it is back."""
        seconds = self.members[0].timing.ttl + 2.0
        for member in self.members:
            member.cut_off(seconds)
        self.era += 1
        self.later(seconds - 0.5, self._restored)
        self.tell("etcd is taken down")

    def _restored(self) -> None:
        self.era += 1
        self.store.restore(self.backup)
        self.tell(f"etcd is restored at revision {self.store.revision}")
        self.operator_raises_the_epoch()
