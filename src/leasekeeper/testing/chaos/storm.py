"""The director: starts everything, strikes by the schedule, lets it calm down, and writes down what there was."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from leasekeeper.errors import ConfigError, LeasekeeperError
from leasekeeper.testing import snapshots
from leasekeeper.testing.chaos import faults
from leasekeeper.testing.chaos.operator import eventually
from leasekeeper.testing.chaos.records import Blow, Operation, Residue, Story, Told, turns_since
from leasekeeper.testing.chaos.schedule import KINDS, WORKLOADS, Workload, choose_kinds, make_schedule
from leasekeeper.testing.chaos.stage import Stage
from leasekeeper.testing.homes import make_home

__all__ = ["Storm", "Weather"]

TTL_MIN_S = 2.0
TTL_MAX_S = 30.0
REPLICAS_MAX = 9
SECONDS_MAX = 86_400.0
SLICE_S = 0.2
# After the faults everybody gets a turn: somebody's first within so many TTLs for each replica, and a while for a slow machine.
TURN_TTLS = 8.0
PATIENCE_S = 60.0
DEATHS_MAX = 20
SAID_MAX = 500


@dataclass(frozen=True, slots=True)
class Weather:
    """What a storm is made of. ``target`` names the guarded resource, see `effects`; "" is the usual one.

    ``workload``: ``lease``, replicas that compete for one lease; ``runs``, workers that do durable steps (`chaos.runs`).
    ``kinds`` are the names of the faults that may strike; () for all. ConfigError for values that make no storm.
    """

    seed: int = 1
    seconds: float = 60.0
    replicas: int = 3
    members: int = 3
    ttl_s: float = 3.0
    kinds: tuple[str, ...] = ()
    target: str = ""
    workload: Workload = "lease"

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ConfigError(field="seed", value=self.seed, expected="a number from 0 to 2**63 - 1")
        if not 5 <= self.seconds <= SECONDS_MAX:
            raise ConfigError(field="seconds", value=self.seconds, expected=f"5 to {SECONDS_MAX:g}")
        if not 1 <= self.replicas <= REPLICAS_MAX:
            raise ConfigError(field="replicas", value=self.replicas, expected=f"1 to {REPLICAS_MAX}")
        if self.members not in (1, 3, 5):
            raise ConfigError(field="members", value=self.members, expected="1, 3 or 5")
        if not TTL_MIN_S <= self.ttl_s <= TTL_MAX_S or self.ttl_s != int(self.ttl_s):
            raise ConfigError(field="ttl", value=self.ttl_s, expected="whole seconds from 2 to 30")
        if self.workload not in WORKLOADS:
            raise ConfigError(field="workload", value=self.workload, expected=" or ".join(WORKLOADS))
        if self.workload != "lease" and self.target:
            raise ConfigError(
                field="target", value=self.target, expected="none with runs, which act on an outside world"
            )
        choose_kinds(self.kinds, self.workload)


class _BrokenOffError(Exception):
    """The resource has ended: nothing that comes after could be judged."""


class Storm:
    """One storm: `run` it once. ``tell`` hears what happens as text, for people who wait."""

    def __init__(self, weather: Weather, tell: Callable[[str], object] = lambda _: None) -> None:
        self.weather = weather
        self._tell = tell
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._under_way: list[Operation] = []
        self._story = self._new_story()

    def _new_story(self) -> Story:
        weather = self.weather
        return Story(weather.seed, weather.ttl_s, weather.replicas, weather.seconds)

    def _new_stage(self, home: Path) -> Stage:
        return Stage(self.weather, home)

    def run(self) -> Story:
        """Run it to its end, which takes ``seconds`` and about a minute more. Everything it started has ended then."""
        self._tell(f"starting: members of etcd {self.weather.members}, replicas {self.weather.replicas}")
        # Of the same kind as etcd's, so that the next storm removes what one that was killed has left.
        home = make_home()
        with ExitStack() as stack:
            stack.callback(home.remove)
            stage = stack.enter_context(self._new_stage(home.path))
            story = self._story
            story.versions = {"etcd": stage.cluster.members[0].version}
            self._leave_out(stage)
            if "restore" not in story.left_out:
                stage.save()
            self._plan(stage)
            try:
                self._strike_all(stage)
                self._calm(stage)
            except (_BrokenOffError, LeasekeeperError) as error:
                # An etcd that does not come back on this machine says nothing of promises either.
                story.stopped = _first_line(error)
                self._tell(f"{stage.now_s():6.1f} s  the storm is broken off: {story.stopped}")
            self._end(stage)
            return story

    # ------------------------------------------------------------ before

    def _leave_out(self, stage: Stage) -> None:
        """What cannot be done here, with the reason; ConfigError when nothing is left of what was asked for."""
        reasons: dict[str, str] = {}
        try:
            snapshots.restoring_program(stage.cluster.binary)
        except ConfigError as error:
            reasons["restore"] = reasons["restore-unraised"] = str(error)
        if stage.cluster.binary.etcdctl is None:
            reasons["restore"] = reasons["restore-unraised"] = f"there is no etcdctl beside {stage.cluster.binary.etcd}"
        for kind in KINDS.values():
            if kind.among_members and self.weather.members == 1:
                reasons[kind.name] = "one member has no other"
        chosen = choose_kinds(self.weather.kinds, self.weather.workload)
        self._story.left_out = {kind.name: reasons[kind.name] for kind in chosen if kind.name in reasons}
        if len(self._story.left_out) == len(chosen):
            why = "; ".join(f"{name}: {reason}" for name, reason in self._story.left_out.items())
            raise ConfigError(
                field="faults", value=", ".join(self.weather.kinds), expected=f"some that can be done here ({why})"
            )

    def _plan(self, stage: Stage) -> None:
        weather = self.weather
        chosen = choose_kinds(weather.kinds, weather.workload)
        names = tuple(kind.name for kind in chosen if kind.name not in self._story.left_out)
        blows = make_schedule(
            weather.seed,
            seconds=weather.seconds,
            ttl_s=weather.ttl_s,
            replicas=weather.replicas,
            members=weather.members,
            kinds=names,
            workload=weather.workload,
        )
        for blow in blows:
            self._later(blow.at_s, lambda blow=blow: self._strike(stage, blow))  # type: ignore[misc]
        self._prepare(stage, blows)
        self._tell(f"seed {weather.seed}: {len(blows)} faults in {weather.seconds:g} s")

    def _prepare(self, stage: Stage, blows: list[Blow]) -> None:
        """What has to be done before a fault can strike."""

    def _later(self, at_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at_s, next(self._order), act))

    # ------------------------------------------------------------ during

    def _strike_all(self, stage: Stage) -> None:
        while self._due:
            at_s = self._due[0][0]
            while (left_s := at_s - stage.now_s()) > 0:
                time.sleep(min(SLICE_S, left_s))
                self._watch(stage)
            heapq.heappop(self._due)[2]()
        while stage.now_s() < self.weather.seconds:
            time.sleep(SLICE_S)
            self._watch(stage)

    def _watch(self, stage: Stage) -> None:
        """A replica that ended by itself is a violation, and goes on in another life. Without the resource nothing goes on."""
        if why := stage.resource_ended:
            raise _BrokenOffError(f"the resource {why}")
        for actor in stage.actors:
            if (why := actor.died) and len(self._story.deaths) < DEATHS_MAX:
                now_s = stage.now_s()
                self._tell(f"{now_s:6.1f} s  {actor.name} {why}")
                if actor.killed_from_outside:
                    self._story.operations.append(Operation(now_s, now_s, "kill", actor.name, detail="from outside"))
                else:
                    self._story.deaths.append(Told(now_s, actor.name, "ended", detail=why))
                actor.start()

    def _strike(self, stage: Stage, blow: Blow) -> None:
        begun_s = stage.now_s()
        lane = KINDS[blow.kind].lane
        if lane != "replica" and any(KINDS[each.kind].lane == lane for each in self._under_way):
            # A director that is late may come to a fault before the one ahead of it in its lane is over.
            self._tell(f"{begun_s:6.1f} s  {blow.kind}: the fault before it is not over yet")
            return
        hit = faults.strike(stage, blow)
        if isinstance(hit, str):
            self._tell(f"{begun_s:6.1f} s  {blow.kind}: {hit}")
            return
        self._tell(f"{begun_s:6.1f} s  {blow.kind}: {hit.who} {hit.detail}".rstrip())
        done = Operation(begun_s, stage.now_s(), blow.kind, hit.who, hit.tokens, hit.detail)
        self._under_way.append(done)

        def over() -> None:
            eventually(hit.undo, PATIENCE_S)
            self._under_way.remove(done)
            self._story.operations.append(replace(done, until_s=stage.now_s()))

        self._later(max(blow.until_s, begun_s), over)

    # ------------------------------------------------------------ after

    def _calm(self, stage: Stage) -> None:
        """The faults are over: everybody gets a turn again, or the time for it is out."""
        story = self._story
        story.calm_s = stage.now_s()
        stage.cluster.wait_ready()
        self._tell(f"{story.calm_s:6.1f} s  the faults are over; waiting until everybody has had a turn")
        # Anew with each first turn: a slow machine is no broken promise, one that stands still is.
        window_s = TURN_TTLS * stage.ttl_s * self.weather.replicas + PATIENCE_S
        until_s = story.calm_s + window_s
        had: set[str] = set()
        while len(had) < self.weather.replicas and stage.now_s() < until_s:
            time.sleep(SLICE_S)
            self._watch(stage)
            for name in sorted(turns_since(stage.told(), story.calm_s) - had):
                had.add(name)
                until_s = stage.now_s() + window_s
                self._tell(f"{stage.now_s():6.1f} s  {name} has had its turn")

    def _end(self, stage: Stage) -> None:
        """Kill the replicas and see what is left when their leases are out."""
        story = self._story
        stage.end_replicas()
        story.end_s, story.ended_at_s = stage.now_s(), round(time.time(), 3)
        if not story.stopped:
            self._tell(
                f"{story.end_s:6.1f} s  the replicas are killed; looking at what is left when their leases are out"
            )
            try:
                story.residue = self._wait_empty(stage)
            except LeasekeeperError as error:
                story.stopped = _first_line(error)
        story.operations += [replace(done, until_s=story.end_s) for done in self._under_way]
        self._collect(stage)
        story.operations.sort(key=lambda operation: operation.at_s)

    def _collect(self, stage: Stage) -> None:
        """Take what was written down."""
        self._story.told = list(stage.told())
        self._story.attempts = stage.attempts()

    def _wait_empty(self, stage: Stage) -> Residue:
        until = time.monotonic() + stage.ttl_s + PATIENCE_S
        while (residue := eventually(lambda: _residue(stage), PATIENCE_S)) != Residue() and time.monotonic() < until:
            time.sleep(SLICE_S)
        return residue


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:SAID_MAX]


def _residue(stage: Stage) -> Residue:
    return Residue(tuple(claim.key for claim in stage.operator.claims()), stage.operator.leases())
