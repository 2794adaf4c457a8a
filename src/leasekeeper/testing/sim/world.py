"""One world: a seed, an etcd, some replicas, and what befalls them; the judge looks on after every event.

It has three parts. In the storm faults happen. Then it is calm: everything is mended, and every worker must get one more turn
within a stated time. At last half of the processes close their keepers and half are killed, and when all TTLs are out
nothing of theirs may be left in etcd.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from leasekeeper.errors import ConfigError
from leasekeeper.testing.sim.cluster import Cluster
from leasekeeper.testing.sim.faults import MIXES, RUN_MIXES, SimFault, schedule
from leasekeeper.testing.sim.fortune import Fortune
from leasekeeper.testing.sim.invariants import Hold, Judge, Violation
from leasekeeper.testing.sim.keeper import KEYS, WALL_S
from leasekeeper.testing.sim.network import AGAIN_S, Network
from leasekeeper.testing.sim.replica import Replica
from leasekeeper.testing.sim.resource import Resource
from leasekeeper.testing.sim.story import Story
from leasekeeper.testing.sim.timeline import Timeline
from leasekeeper.timing import Timing

__all__ = ["WORKLOADS", "Outcome", "Setting", "World"]

Workload = Literal["leases", "runs"]
# What replicas can be at, and which mixes of faults there are for that.
WORKLOADS: Mapping[Workload, Mapping[str, dict[str, int]]] = {"leases": MIXES, "runs": RUN_MIXES}

MEMBERS = 3
REPLICAS_MAX = 50
SECONDS_MIN, SECONDS_MAX = 10.0, 3600.0
EVENTS_MAX = 400_000
NAMES = ("jobs", "side/job")
TIMINGS = (
    Timing(ttl=2.0),
    Timing(ttl=3.0),
    Timing(ttl=5.0),
    Timing(ttl=10.0),
    Timing(ttl=10.0, beat_every=1.0, pause_after=9.0),
    Timing(ttl=10.0, beat_every=1.0, pause_after=9.5),
    Timing(ttl=10.0, pause_after=5.0, margin=4.5),
    Timing(ttl=5.0, margin=2.0),
    Timing(ttl=5.0, give_up_after=2.0),
    Timing(ttl=5.0, max_hold=4.0),
)
# The storm takes so much of the time.
STORM = 0.6
# A turn in calm times: a claim of an owner that was lost may stand for two TTLs; then each holds the name for a moment. After a
# restore a waiter's watch may be silent, and it looks by itself every 30 seconds.
TURN_S = 2.0
SILENT_S = 32.0


@dataclass(frozen=True, slots=True)
class Setting:
    """Which world: everything that decides what happens in it.

    Args:
        seed: any whole number.
        replicas: how many there are, 1 to 50.
        seconds: how long it lasts, in virtual time, 10 to 3,600. Faults happen in the first 60 percent.
        mix: which kinds of faults, one of `MIXES`, for runs of `RUN_MIXES`; None: the world draws it.
        only: these faults of its schedule, by number; None: all of them.
        workload: what the replicas are at: ``leases``, or ``runs``.
    """

    seed: int
    replicas: int = 5
    seconds: float = 60.0
    mix: str | None = None
    only: tuple[int, ...] | None = None
    workload: Workload = "leases"

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= REPLICAS_MAX:
            raise ConfigError(field="replicas", value=self.replicas, expected=f"1 to {REPLICAS_MAX}")
        if not SECONDS_MIN <= self.seconds <= SECONDS_MAX:
            raise ConfigError(field="seconds", value=self.seconds, expected=f"{SECONDS_MIN:g} to {SECONDS_MAX:g}")
        if self.workload not in WORKLOADS:
            raise ConfigError(field="workload", value=self.workload, expected=f"one of {', '.join(WORKLOADS)}")
        mixes = WORKLOADS[self.workload]
        if self.mix is not None and self.mix not in mixes:
            raise ConfigError(field="mix", value=self.mix, expected=f"one of {', '.join(mixes)}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a world went; the counts are for information. ``counts`` are those of runs."""

    setting: Setting
    violation: Violation | None
    faults: tuple[SimFault, ...]
    story: Story
    ended_s: float
    events: int
    owned: int
    accepted: int
    refused: int
    overlaps: int
    counts: Mapping[str, int] = field(default_factory=dict)


class World:
    """The world of a setting. `run` it once."""

    names: tuple[str, ...] = NAMES

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.timeline = Timeline(setting.seed)
        self.chance = chance = self.timeline.chance("world")
        mixes = WORKLOADS[setting.workload]
        self.mix = setting.mix or chance.choice(list(mixes))
        self.timing = chance.choice(TIMINGS)
        odd = chance.choice(TIMINGS) if chance.random() < 0.25 else self.timing
        self.ttl_s = max(self.timing.ttl, odd.ttl)
        self.cluster = Cluster(
            self.timeline,
            MEMBERS,
            confirms_dead=chance.random() < 0.25,
            minimum_ttl=chance.choice((1, 1, 1, 3)),
        )
        self.network = Network(self.timeline, self.cluster)
        self.numbers = count(0x100)
        self.story = Story()
        self._prepare()
        self.resources = {name: Resource() for name in self.names}
        self.judge = Judge(self.timeline, self.cluster, self.names)
        self.judge.told = self.tell
        self.cluster.store.told = self._changed
        self.is_calm = False
        # Between two turns of a worker: names are contended in most worlds, and free half of the time in some.
        self.idle_s = chance.choice((1.0, 5.0, 15.0))
        self.cluster.store.refuses_all = chance.random() < 0.3
        self.restored = 0
        self.replicas = [
            self._replica(number, odd if number == 0 else self.timing) for number in range(setting.replicas)
        ]
        self.storm_s = setting.seconds * STORM
        faults = schedule(self.timeline.chance("faults"), mixes[self.mix], self.ttl_s, self.storm_s)
        self.faults = tuple(fault for fault in faults if setting.only is None or fault.number in setting.only)
        self.fortune = self._make_fortune()

    # ------------------------------------------------------------ what another workload does in another way

    def _prepare(self) -> None:
        """Before anybody is there."""

    def _replica(self, number: int, timing: Timing) -> Replica:
        return Replica(self, number, timing, 0)

    def _make_fortune(self) -> Fortune:
        return Fortune(self)

    def _counts(self) -> dict[str, int]:
        """What there is to count beside leases."""
        return {}

    # ------------------------------------------------------------ for those in it

    def number(self) -> int:
        """A number that was not used before."""
        return next(self.numbers)

    def wall(self) -> float:
        """What every wall clock shows; nobody decides anything by it."""
        return WALL_S + self.timeline.now_s

    def tell(self, who: str, what: str) -> None:
        """A line of the story."""
        self.story.tell(self.timeline.now_s, who, what)

    def write(self, hold: Hold, way_s: float) -> None:
        """A write of an owner sets out to the resource."""
        authority, who = hold.authority, hold.process.name
        token, claim, number = authority.token, authority.slot.nonce, hold.number

        def arrives() -> None:
            wrong = self.resources[hold.name].write(token, claim, number, who)
            if wrong is not None:
                raise Violation("G4", f"the fenced resource {hold.name!r} went back: {wrong}, written by {who}", (who,))

        self.timeline.after(way_s, arrives)

    def _changed(self, event: object) -> None:
        self.judge.changed(event)  # type: ignore[arg-type]
        self.cluster.streams.changed(event)  # type: ignore[arg-type]

    # ------------------------------------------------------------ its course

    def run(self) -> Outcome:
        """Let it happen: to the end, or to the first violation."""
        violation: Violation | None = None
        with _no_collections():
            try:
                self._storm()
                self._calm()
                self._end()
            except Violation as error:
                violation = error.with_traceback(None)
                self.tell("judge", str(error))
            finally:
                for replica in self.replicas:
                    replica.die()  # also after Ctrl-C: plans that are left to the garbage collector complain
        resources = self.resources.values()
        return Outcome(
            setting=self.setting,
            violation=violation,
            faults=self.faults,
            story=self.story,
            ended_s=self.timeline.now_s,
            events=self.timeline.count,
            owned=self.judge.owned,
            accepted=sum(each.accepted for each in resources),
            refused=sum(each.refused for each in resources),
            overlaps=sum(each.overlaps for each in resources),
            counts=self._counts(),
        )

    def _storm(self) -> None:
        for replica in self.replicas:
            replica.begin()
        self.fortune.begin()
        for fault in self.faults:
            self.timeline.at(fault.at_s, lambda fault=fault: self.fortune.strike(fault))  # type: ignore[misc]
        self._pass_until(self.storm_s)
        self._pass_until(self.cluster.down_until_s)  # a restore is seen through

    def _calm(self) -> None:
        self.tell("fault", "all is mended: from here on everybody must get a turn")
        self.is_calm = True
        self.fortune.mend()
        for replica in self.replicas:
            replica.calm()
            for worker in replica.workers:
                replica.process.soon(worker.live)
        self._await_turns()

    def _await_turns(self) -> None:
        """Until everybody had a turn."""
        workers = [worker for replica in self.replicas for worker in replica.workers]
        until_s = self.timeline.now_s + self.turn_bound_s(len(workers))
        while self.timeline.now_s < until_s and not all(worker.served for worker in workers):
            self._pass_until(min(until_s, self.timeline.now_s + 0.25))
        waiting = tuple(worker.replica.name for worker in workers if not worker.served)
        if waiting:
            text = (
                f"{', '.join(waiting)} had no turn within {self.turn_bound_s(len(workers)):.0f} s after the last fault"
            )
            raise Violation("liveness", text, waiting)

    def turn_bound_s(self, workers: int) -> float:
        """Within which time everybody gets a turn when nothing is wrong any more."""
        granted_s = max(self.ttl_s, self.cluster.store.minimum_ttl)
        return 2.5 * granted_s + TURN_S * workers + 5.0 + (SILENT_S if self.restored else 0.0)

    def _end(self) -> None:
        self.tell("fault", "the end: half of the processes close, half are killed")
        for number, replica in enumerate(self.replicas):
            if number % 2:
                replica.die()
            else:
                replica.keeper.close()
        over_s = max(self.timeline.now_s + 5.0, self.storm_s + AGAIN_S[1])
        granted_s = max(self.ttl_s, self.cluster.store.minimum_ttl)
        self._pass_until(over_s + 1.02 * granted_s + 1.0)
        keys = [kv.key.decode() for kv in self.cluster.store.below(KEYS.leases)]
        leases = [f"{number:x}" for number in self.cluster.store.leases]
        if keys or leases:
            raise Violation("nothing left", f"in etcd remain keys {keys} and leases {leases}", ())

    def _pass_until(self, until_s: float) -> None:
        timeline, check = self.timeline, self.judge.check
        while (next_s := timeline.next_s()) is not None and next_s <= until_s:
            if timeline.count > EVENTS_MAX:
                raise Violation("bounds", f"more than {EVENTS_MAX} events: somebody runs in circles", ())
            timeline.step()
            check()
        timeline.now_s = max(timeline.now_s, until_s)


@contextmanager
def _no_collections() -> Iterator[None]:
    """When the garbage collector runs depends on all that happened before in this Python; a world must not."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
