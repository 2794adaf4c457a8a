"""A simulated keeper: the real sessions, plans and heartbeat rules of one process, with its routes and its background."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from leasekeeper.protocol.context import Context
from leasekeeper.protocol.keys import Keys
from leasekeeper.protocol.lend import Want
from leasekeeper.protocol.plan import Fault, Plan
from leasekeeper.protocol.session import Session, Slot, revoke
from leasekeeper.runtime.sessions import SessionTable
from leasekeeper.testing.sim.heart import Heart
from leasekeeper.testing.sim.hub import Hub
from leasekeeper.testing.sim.interpreter import Interpreter, Running
from leasekeeper.testing.sim.network import Route

if TYPE_CHECKING:
    from leasekeeper.protocol.authority import Authority, State
    from leasekeeper.testing.sim.cluster import Cluster
    from leasekeeper.testing.sim.interpreter import Done
    from leasekeeper.testing.sim.network import Network
    from leasekeeper.testing.sim.process import Process
    from leasekeeper.timing import Timing

__all__ = ["KEYS", "WALL_S", "Keeper"]

KEYS = Keys("sim")
# 2027-01-15: what the wall clock of every process shows at the beginning.
WALL_S = 1_800_000_000.0
TRY_FOR_S = 60.0
PAUSE_FIRST_S, PAUSE_MAX_S = 0.1, 2.0
CLOSE_S = 3.0

Told = Callable[["Authority", "State"], None]
PlanFactory = Callable[[], Plan[object]]


class Keeper:
    """What a process has of leasekeeper. ``told`` hears each change of a lease's state."""

    def __init__(
        self,
        process: Process,
        network: Network,
        cluster: Cluster,
        numbers: count[int],
        wall: Callable[[], float],
        told: Told,
    ) -> None:
        self.process = process
        self.network = network
        self.told = told
        self.links = network.links(process)
        first = process.chance.randrange(len(self.links))
        self.calls, self.beats, self.cleanups, self.watches = (Route(self.links, first) for _ in range(4))
        self.hub = Hub(process, cluster.streams, self.watches)
        self.interpreter = Interpreter(process, network, self.hub, self.detach, self.confirmed)
        self.heart = Heart(self)
        self.table = SessionTable(KEYS, process.now, self.heart, self._dropped)  # type: ignore[arg-type]
        # When the best confirmed beat of each lease was sent, by this process's clock: the evidence, kept apart.
        self.evidence: dict[int, float] = {}
        # Owned claims of which its heart has heard that their keys are gone, by key and create revision.
        self.informed: set[tuple[bytes, int]] = set()
        self.ctx = Context(
            keys=KEYS,
            holder=process.name,
            host="sim",
            pid=1,
            now=process.now,
            wall=wall,
            new_nonce=lambda: f"{next(numbers):x}",
            new_lease_id=lambda: next(numbers),
            sessions=self.table,
            accept_rewind=self.interpreter.accept_rewind,
        )
        self._jobs: list[tuple[float, int, PlanFactory, float, float]] = []
        self._order = count()
        self._busy = False
        self.closed = False

    # ------------------------------------------------------------ asking

    def run(self, plan: Plan[Any], done: Done) -> Running:
        """Begin a plan on the route for calls."""
        return self.interpreter.run(plan, self.calls, done)

    def want(self, name: str, timing: Timing, timeout_s: float | None, note: str = "") -> Want:
        """What somebody asks for."""
        since = self.process.now()
        return Want(name, timing, note, None if timeout_s is None else since + timeout_s, since)

    def well_since_s(self, cluster: Cluster) -> float:
        """Since when at least one way to etcd is good."""
        return min(max(link.well_since_s(), cluster.well_since_s(link.member)) for link in self.links)

    def confirmed(self, lease_id: int, sent_s: float, ttl: int) -> None:
        """A beat that was sent then was answered."""
        if ttl > 0:
            self.evidence[lease_id] = max(sent_s, self.evidence.get(lease_id, sent_s))

    # ------------------------------------------------------------ background

    def _dropped(self, slot: Slot) -> None:
        slot.leaving = True

    def detach(self, plan: PlanFactory) -> None:
        """Run a plan soon, and again until it succeeds or its time is over; one at a time."""
        now_s = self.process.now()
        heapq.heappush(self._jobs, (now_s, next(self._order), plan, PAUSE_FIRST_S, now_s + TRY_FOR_S))
        self.process.soon(self._work)

    def _work(self) -> None:
        if self._busy or not self._jobs:
            return
        due_s, _, plan, pause_s, over_s = self._jobs[0]
        if due_s > self.process.now():
            self.process.after(due_s - self.process.now(), self._work)
            return
        heapq.heappop(self._jobs)
        self._busy = True
        self.interpreter.run(plan(), self.cleanups, partial(self._worked, plan, pause_s, over_s))

    def _worked(self, plan: PlanFactory, pause_s: float, over_s: float, _: Any, error: BaseException | None) -> None:
        self._busy = False
        now_s = self.process.now()
        if isinstance(error, Fault) and not error.lasting and now_s < over_s:
            due_s = now_s + pause_s * self.process.chance.uniform(0.5, 1.0)
            heapq.heappush(self._jobs, (due_s, next(self._order), plan, min(PAUSE_MAX_S, 2 * pause_s), over_s))
        self._work()

    # ------------------------------------------------------------ end of life

    def close(self) -> None:
        """End every lease and revoke what etcd still holds, within a bound; the process ends then."""
        self.closed = True
        sessions: list[Session] = sorted(self.table.close(), key=lambda each: each.lease_id)
        for session in sessions:
            for authority in session.authorities():
                self.heart.lose(authority, "closed")
            self.heart.end(session)
            self.detach(partial(revoke, session.lease_id, 1.0))
        self.heart.close()
        self.process.after(CLOSE_S, self.end)

    def end(self) -> None:
        """The process is gone."""
        self.process.kill()
        self.hub.close()
        self.interpreter.abandon()
