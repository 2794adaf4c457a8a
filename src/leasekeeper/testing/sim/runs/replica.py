"""A replica whose threads are workers on runs: each takes one that is free, goes on with it, and gives it back.

Where a worker looks is drawn: in etcd's list of unfinished runs, as `leasekeeper.runs.worker` does, or where a client would, that
asks for one run by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from leasekeeper.errors import LeaseLost, NotAcquired
from leasekeeper.protocol import queue, unfinished
from leasekeeper.protocol.authority import Authority
from leasekeeper.protocol.leave import release
from leasekeeper.run_errors import ArgumentsChanged, InDoubt, Quarantined, RunHalted, RunRewound
from leasekeeper.testing.sim.interpreter import Cancelled
from leasekeeper.testing.sim.invariants import Hold
from leasekeeper.testing.sim.replica import Replica, Worker
from leasekeeper.testing.sim.runs.life import Life

if TYPE_CHECKING:
    from leasekeeper.testing.sim.runs.policies import Script
    from leasekeeper.testing.sim.runs.world import RunWorld
    from leasekeeper.timing import Timing

__all__ = ["RunReplica", "RunWorker"]

LOOK_S = 8.0
PAUSE_S = (0.1, 1.5)
# After what waits for a person.
REST_S = (3.0, 8.0)
TIMEOUTS_S = (0.5, 3.0, 15.0)
SECOND = 0.3


class RunReplica(Replica):
    """One process."""

    world: RunWorld

    def __init__(self, world: RunWorld, number: int, timing: Timing, incarnation: int) -> None:
        super().__init__(world, number, timing, incarnation)
        numbers = world.numbers
        self.keeper.ctx.new_nonce = lambda: f"{next(numbers):032x}"
        # Armed by a fault: at which point it strikes (empty: any), how many such points are left until it does, and for how
        # long the process stands still then (0: it is killed).
        self._strike: tuple[str, int, float] | None = None
        # A replica in five is of another release, which asks for something else; whoever is refused for it is rolled back.
        self._other = number == 1
        self._rolled_back: set[tuple[str, str]] = set()

    def _employ(self) -> list[Worker]:
        chance = self.process.chance
        return [RunWorker(self, "") for _ in range(2 if chance.random() < SECOND else 1)]

    def _wall(self) -> float:
        return self.world.wall() + self.world.skews[self.number]

    def release(self, run: str, step: str) -> str:
        """What this release of the program adds to the argument of a step that varies."""
        return "'" if self._other != ((run, step) in self._rolled_back) else ""

    def roll_back(self, run: str, step: str) -> None:
        """The other release, from now on, for this step."""
        self._rolled_back ^= {(run, step)}

    def arm(self, at: str, points: int, freezes_s: float) -> None:
        """Have it struck at a point, the next one of that name or, if ``at`` is empty, of any, when so many more have passed."""
        self._strike = at, points, freezes_s

    def disarm(self) -> None:
        """It is spared."""
        self._strike = None

    def passing(self, point: str) -> None:
        """A conduct passes a point."""
        if self._strike is None or self._strike[0] not in ("", point):
            return
        at, points, freezes_s = self._strike
        if points > 0:
            self._strike = at, points - 1, freezes_s
        elif not freezes_s:
            self._strike = None
            self.world.tell(self.name, f"is killed at {point}")
            self.world.fortune.kill(self)
        elif point != "effect:call":  # between the gate and the call nothing protects: the gate says so
            self._strike = None
            self.world.tell(self.name, f"stands still at {point}")
            self.process.stop(freezes_s)

    def begin(self) -> None:
        """Start its work."""
        for worker in self.workers:
            self.process.after(self.process.chance.uniform(0.0, 1.0), worker.live)


class RunWorker(Worker):
    """One thread of work."""

    replica: RunReplica

    def __init__(self, replica: RunReplica, name: str) -> None:
        super().__init__(replica, name)
        self._script: Script = cast("Script", None)
        self._life: Life | None = None
        self._looking = False
        # The runs that are finished, as far as this worker has seen.
        self._done: set[str] = set()
        self._rests: dict[str, float] = {}

    # ------------------------------------------------------------ to find a run

    def live(self) -> None:
        """Look for a run, and take it."""
        replica, chance = self.replica, self.replica.process.chance
        if replica.keeper.closed or self.hold is not None or self._running is not None or self._looking:
            return
        now_s = replica.process.now()
        head = replica.world.runs.books.head
        # What was finished, and what etcd has lost since, is begun once more.
        scripts = [each for each in replica.world.present() if each.run not in self._done or head(each.run) is None]
        rested = [each for each in scripts if self._rests.get(each.run, now_s) <= now_s]
        fresh = [each for each in rested if each.run not in replica.world.begun]
        if replica.world.is_calm:
            # Clients have gone home: what was begun is left to those who look for it.
            begun = [each for each in rested if head(each.run) is not None]
            rested = fresh = [each for each in rested if each not in begun]
        if chance.random() < 0.5 or not rested:
            self._look()
        elif fresh and chance.random() < 0.7:
            self._take(chance.choice(fresh))
        else:
            self._take(chance.choice(rested))

    def calm(self) -> None:
        """Nothing changes for it: it goes on."""

    def _look(self) -> None:
        """As a worker does: through what is unfinished and free."""
        self._looking = True
        replica = self.replica
        replica.keeper.run(self._looking_through(), self._looked)

    def _looking_through(self) -> Any:
        replica = self.replica
        ctx, until = replica.keeper.ctx, replica.process.now() + LOOK_S
        names, _ = yield from unfinished.look(ctx, ("w0", "w1"), unfinished.BEGINNING, until)
        if not names:
            return None
        name = replica.process.chance.choice(names)
        return name if (yield from unfinished.standing(ctx, name, until)) == "waits" else None

    def _looked(self, name: Any, _: BaseException | None) -> None:
        self._looking = False
        if name is None:
            self._pause(PAUSE_S)
        else:
            self._take(self.replica.world.script(name.text))

    def _take(self, script: Script) -> None:
        replica, chance = self.replica, self.replica.process.chance
        self._script, self.name = script, script.lease
        replica.world.begun.add(script.run)
        ctx = replica.keeper.ctx
        plan: Any
        if chance.random() < 0.6:
            plan = queue.try_acquire(ctx, replica.keeper.want(self.name, replica.timing, None))
        else:
            plan = queue.acquire(ctx, replica.keeper.want(self.name, replica.timing, chance.choice(TIMEOUTS_S)))
        running = replica.keeper.run(plan, self._acquired)
        if not running.over:
            self._running = running

    def _acquired(self, authority: Authority | None, error: BaseException | None) -> None:
        self._running = None
        replica = self.replica
        if authority is None:
            if not isinstance(error, (NotAcquired, Cancelled, type(None))):
                replica.world.tell(replica.name, f"{self.name}: not acquired: {type(error).__name__}")
            self._pause(PAUSE_S)
            return
        self.hold = hold = Hold(replica.world.number(), replica.process, replica.keeper, authority)
        replica.world.tell(replica.name, f"{self.name}: owns, token {authority.token}, @{authority.create_revision}")
        replica.world.judge.own(hold)
        self._life = Life(replica, self._script, hold, self._ended)
        self._life.begin()

    # ------------------------------------------------------------ to end

    def _ended(self, error: BaseException | None) -> None:
        self._life = None
        hold, replica, run = self.hold, self.replica, self._script.run
        assert hold is not None
        if error is None:
            self._done.add(run)
        else:
            replica.world.tell(replica.name, f"{run}: ended by {type(error).__name__}: {str(error)[:120]}")
            if isinstance(error, ArgumentsChanged):
                replica.roll_back(run, error.step)
            if isinstance(error, (InDoubt, Quarantined, RunHalted, RunRewound)):
                self._rests[run] = replica.process.now() + replica.process.chance.uniform(*REST_S)
        self._over(hold)
        if isinstance(error, LeaseLost) and hold.authority.shown.final:
            self._pause(PAUSE_S)
            return
        tending = replica.keeper.heart.release(hold.authority)
        if tending is None:
            self._pause(PAUSE_S)
            return
        plan = release(replica.keeper.ctx, hold.authority.slot, tending)
        replica.keeper.run(plan, lambda removed, _: self._given_back(hold, removed))

    def _given_back(self, hold: Hold, removed: bool | None) -> None:
        self.replica.world.judge.released(hold, removed)
        self._pause(PAUSE_S)

    def _pause(self, between_s: tuple[float, float]) -> None:
        self.replica.process.after(self.replica.process.chance.uniform(*between_s), self.live)

    def interrupt(self) -> None:
        """Cancel something of what it is at."""
        if self._life is not None:
            self._life.interrupt()

    def gone(self) -> None:
        """The process is."""
        super().gone()
        if self._life is not None:
            self._life.abandon()
