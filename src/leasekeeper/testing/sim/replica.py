"""A replica: a process with a keeper, and one or two threads of work that take turns with those of other replicas.

Each acquires a name in one of the ways there are, acts behind the gate, sends its token along with every write, and gives the
name back. What it does is drawn from its own stream of chance.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from leasekeeper.errors import LeaseLost, NotAcquired
from leasekeeper.protocol import queue
from leasekeeper.protocol.authority import Authority, State, disown
from leasekeeper.protocol.gate import wait_held
from leasekeeper.protocol.leave import release
from leasekeeper.testing.sim.interpreter import Cancelled
from leasekeeper.testing.sim.invariants import Hold
from leasekeeper.testing.sim.keeper import Keeper
from leasekeeper.testing.sim.process import Process

if TYPE_CHECKING:
    from leasekeeper.protocol.plan import Plan
    from leasekeeper.testing.sim.interpreter import Running
    from leasekeeper.testing.sim.world import World
    from leasekeeper.timing import Timing

__all__ = ["Child", "Replica", "Worker"]

TIMEOUTS_S = (None, None, 0.5, 3.0, 15.0)
CANCELLED = 0.08
# How often a replica asks whether its token is the owner's, and how long.
VERIFIED = 0.05
VERIFY_S = 3.0
TRIED = 0.2
# How long the way of a write to the resource may take.
WAYS_S = (0.0, 0.0, 0.01, 0.5, 8.0)
# For how long a name is held: a moment, some time, or many TTLs.
CALM_S = (0.05, 0.3)
HELD_S = ((0.1, 1.0), (0.5, 8.0), (10.0, 30.0))
STEP_S = (0.02, 0.4)
ROUNDING = 1e-9
# Work that is shorter is not told.
TOLD_S = 0.5
RATE_ERROR = 0.01


class Replica:
    """One process of the program that is replicated."""

    def __init__(self, world: World, number: int, timing: Timing, incarnation: int) -> None:
        name = f"r{number}" + f".{incarnation}" * bool(incarnation)
        chance = world.timeline.chance(f"replica {number}.{incarnation}")
        rate = 1.0 + chance.choice((-1, -1, 0, 1)) * chance.choice((RATE_ERROR, chance.uniform(0.0, RATE_ERROR)))
        self.world = world
        self.number = number
        self.incarnation = incarnation
        self.timing = timing
        self.process = Process(world.timeline, name, chance, rate)
        self.keeper = Keeper(self.process, world.network, world.cluster, world.numbers, self._wall, self._told)
        self.workers = self._employ()
        self.children: list[Child] = []

    def _employ(self) -> list[Worker]:
        """Those who work in it."""
        chance, names = self.process.chance, self.world.names
        workers = [Worker(self, names[0])]
        if chance.random() < 0.25:
            workers.append(Worker(self, chance.choice(names)))
        return workers

    def _wall(self) -> float:
        """What its wall clock shows."""
        return self.world.wall()

    @property
    def name(self) -> str:
        """Who it is, in stories."""
        return self.process.name

    def begin(self) -> None:
        """Start its work."""
        for worker in self.workers:
            self.process.after(self.process.chance.uniform(0.0, 2.0), worker.live)

    def die(self) -> None:
        """Kill -9: nothing is released."""
        for worker in self.workers:
            worker.gone()
        self.keeper.end()

    def fork(self, seconds: float) -> None:
        """Make a child that goes on with what it inherited, for so long."""
        self.children = [child for child in self.children if child.process.alive]
        for worker in self.workers:
            if worker.hold is not None:
                self.children.append(Child(self, worker.hold, seconds))

    def calm(self) -> None:
        """From now on each worker needs one more turn, and no more."""
        for worker in self.workers:
            worker.calm()

    def _told(self, authority: Authority, state: State) -> None:
        if state is State.RELEASED:
            return
        loss = f" ({authority.loss.reason})" if authority.loss is not None else ""
        self.world.tell(self.name, f"{authority.name}: believes {state.value}{loss}, token {authority.token}")


class Worker:
    """One thread of work."""

    def __init__(self, replica: Replica, name: str) -> None:
        self.replica = replica
        self.name = name
        self.hold: Hold | None = None
        self.served = True
        self._running: Running | None = None
        self._until_s = 0.0

    # ------------------------------------------------------------ to own

    def live(self) -> None:
        """Try to own the name, in one way or another."""
        replica, chance = self.replica, self.replica.process.chance
        if replica.keeper.closed or self.hold is not None or self._running is not None:
            return
        if replica.world.is_calm:
            if self.served:
                return
            last = queue.acquire(replica.keeper.ctx, replica.keeper.want(self.name, replica.timing, None))
            self._running = replica.keeper.run(last, self._acquired)
            return
        plan: Plan[Authority | None]
        if chance.random() < TRIED:
            plan = queue.try_acquire(replica.keeper.ctx, replica.keeper.want(self.name, replica.timing, None))
        else:
            timeout_s = chance.choice(TIMEOUTS_S)
            plan = queue.acquire(replica.keeper.ctx, replica.keeper.want(self.name, replica.timing, timeout_s))
        running = replica.keeper.run(plan, self._acquired)
        if self.hold is None:
            self._running = running
            if chance.random() < CANCELLED:
                replica.process.after(chance.uniform(0.0, 4.0), lambda: self._cancel(running))

    def calm(self) -> None:
        """One more turn; what is owned now is soon given back."""
        self.served = False
        self._until_s = min(self._until_s, self.replica.process.now() + CALM_S[1])

    def _cancel(self, running: Running) -> None:
        if self._running is running:
            running.cancel()

    def _acquired(self, authority: Authority | None, error: BaseException | None) -> None:
        self._running = None
        replica, chance = self.replica, self.replica.process.chance
        if authority is None:
            if not isinstance(error, (NotAcquired, Cancelled, type(None))):
                replica.world.tell(replica.name, f"{self.name}: not acquired: {_short(error)}")
            replica.process.after(chance.uniform(0.1, 1.0), self.live)
            return
        self.hold = Hold(replica.world.number(), replica.process, replica.keeper, authority)
        replica.world.tell(replica.name, f"{self.name}: owns, token {authority.token}, @{authority.create_revision}")
        replica.world.judge.own(self.hold)
        held_s = CALM_S if replica.world.is_calm else chance.choices(HELD_S, (4, 4, 1))[0]
        self._until_s = replica.process.now() + chance.uniform(*held_s)
        self._work()

    # ------------------------------------------------------------ to act

    def _work(self) -> None:
        hold, replica = self.hold, self.replica
        if hold is None:
            return
        process, chance = replica.process, replica.process.chance
        now_s = process.now()
        if hold.authority.shown.final:
            self._lost(hold)
        elif now_s >= self._until_s:
            self._release(hold)
        else:
            need_s = self._need_s(hold.authority, now_s)
            if chance.random() < VERIFIED:
                self._verify(hold)
            if hold.authority.passes(need_s, now_s):
                self._act(hold, now_s, need_s)
            elif hold.authority.passes(0.0, now_s):
                process.after(chance.uniform(*STEP_S), self._work)  # what needs so much has to wait for the next beat
            else:
                plan = wait_held(hold.authority, 0.0, now_s + 2.0, process.now)
                self._running = replica.keeper.run(plan, self._waited)

    def _need_s(self, authority: Authority, now_s: float) -> float:
        """How long the next piece of work takes: no time, some or even too much, or all that authority is proven for."""
        chance, left_s = self.replica.process.chance, authority.remaining(now_s)
        if self.replica.world.is_calm:
            return 0.0
        return chance.choice((0.0, 0.0, chance.random() * authority.timing.authority_s, left_s * (1.0 - ROUNDING)))

    def _verify(self, hold: Hold) -> None:
        """Ask etcd whether the token is the owner's, as somebody else might."""
        world, keeper = self.replica.world, self.replica.keeper
        began_s = world.timeline.now_s
        plan = queue.verify(keeper.ctx, hold.name, hold.authority.token, keeper.process.now() + VERIFY_S)

        def told(answer: Any, error: BaseException | None) -> None:
            if error is None:
                world.judge.verified(hold, began_s, answer=bool(answer))

        keeper.run(plan, told)

    def _act(self, hold: Hold, now_s: float, need_s: float) -> None:
        process, chance = self.replica.process, self.replica.process.chance
        hold.acting_until_s = now_s + need_s
        if need_s > TOLD_S:
            world, age_s = self.replica.world, now_s - hold.authority.session.proof_s
            world.tell(
                self.replica.name, f"{self.name}: passes, works for {need_s:.3f} s; the proof is {age_s:.3f} s old"
            )
        self.replica.world.write(hold, chance.choice(WAYS_S))
        process.after(max(need_s, chance.uniform(*STEP_S)), self._work)

    def _waited(self, _: Any, error: BaseException | None) -> None:
        self._running = None
        if isinstance(error, LeaseLost) and self.hold is not None:
            self._lost(self.hold)
        else:
            self._work()

    # ------------------------------------------------------------ to end

    def _lost(self, hold: Hold) -> None:
        self._over(hold)
        self.replica.process.after(self.replica.process.chance.uniform(0.0, 1.0), self.live)

    def _release(self, hold: Hold) -> None:
        replica = self.replica
        self._over(hold)
        self.served = True
        tending = replica.keeper.heart.release(hold.authority)
        if tending is None:
            self._released(hold, None)
            return
        replica.world.tell(replica.name, f"{self.name}: gives back, token {hold.authority.token}")
        plan = release(replica.keeper.ctx, hold.authority.slot, tending)
        replica.keeper.run(plan, lambda removed, _: self._released(hold, removed))

    def _released(self, hold: Hold, removed: bool | None) -> None:
        self.replica.world.judge.released(hold, removed)
        self.replica.process.after(self.replica.process.chance.uniform(0.0, self.replica.world.idle_s), self.live)

    def _over(self, hold: Hold) -> None:
        self.hold = None
        self.replica.world.judge.over(hold)

    def gone(self) -> None:
        """The process is."""
        if self.hold is not None:
            self._over(self.hold)


class Child:
    """A forked child: it has a copy of all memory, and no thread of its parent's but the one that forked."""

    def __init__(self, parent: Replica, of: Hold, seconds: float) -> None:
        world = parent.world
        self.world = world
        self.process = Process(world.timeline, f"{parent.name}'", parent.process.chance, parent.process.rate)
        self.process.offset_s = parent.process.offset_s
        authority = inherited(of.authority, self.process.now())
        self.hold = Hold(of.number, self.process, parent.keeper, authority, heartless=True)
        world.judge.holds.append(self.hold)
        world.tell(self.process.name, f"{of.name}: a child, inherits token {authority.token}")
        self.process.after(0.05, self._work)
        self.process.after(seconds, self.end)

    def _work(self) -> None:
        if self.hold.authority.passes(0.0, self.process.now()):
            self.world.write(self.hold, 0.0)
        self.process.after(0.2, self._work)

    def end(self) -> None:
        """It exits, and releases nothing."""
        self.world.judge.over(self.hold)
        self.process.kill()


def inherited(authority: Authority, now_s: float) -> Authority:
    """What a child has of a lease: a copy, as memory is copied, after the keeper in the child has heard of the fork."""
    session, slot, copied = copy(authority.session), copy(authority.slot), copy(authority)
    copied.session = slot.session = session
    copied.slot, copied.dropped = slot, None
    slot.authority = copied
    session.slots = {slot.key: slot}
    disown(session, now_s)
    return copied


def _short(error: BaseException | None) -> str:
    text = " ".join(str(error.args[-1] if error is not None and error.args else "").split())
    return f"{type(error).__name__}: {text[:70]}"
