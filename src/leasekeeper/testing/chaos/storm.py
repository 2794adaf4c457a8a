"""The director: starts everything, strikes by the schedule, lets it calm down, and writes down what there was."""

from __future__ import annotations

import heapq
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from leasekeeper.errors import ConfigError
from leasekeeper.testing import snapshots
from leasekeeper.testing.chaos import faults
from leasekeeper.testing.chaos.operator import eventually
from leasekeeper.testing.chaos.records import Blow, Operation, Residue, Story
from leasekeeper.testing.chaos.schedule import choose_kinds, make_schedule
from leasekeeper.testing.chaos.stage import Stage

__all__ = ["Storm", "Weather"]

TTL_MIN_S = 2.0
TTL_MAX_S = 30.0
REPLICAS_MAX = 9
SECONDS_MAX = 86_400.0
SLICE_S = 0.2
# After the faults everybody gets a turn: within so many TTLs for each replica, and a while for a slow machine.
TURN_TTLS = 8.0
PATIENCE_S = 60.0
DEATHS_MAX = 20


@dataclass(frozen=True, slots=True)
class Weather:
    """What a storm is made of. ``target`` names the guarded resource, see `effects`; "" is the usual one.

    ``kinds`` are the names of the faults that may strike; () for all. ConfigError for values that make no storm.
    """

    seed: int = 1
    seconds: float = 60.0
    replicas: int = 3
    members: int = 3
    ttl_s: float = 3.0
    kinds: tuple[str, ...] = ()
    target: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ConfigError(field="seed", value=self.seed, expected="a number from 0 on")
        if not 5 <= self.seconds <= SECONDS_MAX:
            raise ConfigError(field="seconds", value=self.seconds, expected=f"5 to {SECONDS_MAX:g}")
        if not 1 <= self.replicas <= REPLICAS_MAX:
            raise ConfigError(field="replicas", value=self.replicas, expected=f"1 to {REPLICAS_MAX}")
        if self.members not in (1, 3, 5):
            raise ConfigError(field="members", value=self.members, expected="1, 3 or 5")
        if not TTL_MIN_S <= self.ttl_s <= TTL_MAX_S or self.ttl_s != int(self.ttl_s):
            raise ConfigError(field="ttl", value=self.ttl_s, expected="whole seconds from 2 to 30")
        choose_kinds(self.kinds)


class Storm:
    """One storm: `run` it once. ``tell`` hears what happens as text, for people who wait."""

    def __init__(self, weather: Weather, tell: Callable[[str], object] = lambda _: None) -> None:
        self.weather = weather
        self._tell = tell
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._story = Story(weather.seed, weather.ttl_s, weather.replicas, weather.seconds)

    def run(self) -> Story:
        """Run it to its end, which takes ``seconds`` and about a minute more. Everything it started has ended then."""
        with tempfile.TemporaryDirectory(prefix="leasekeeper-chaos-") as home, Stage(self.weather, Path(home)) as stage:
            story = self._story
            story.versions = {"etcd": stage.cluster.members[0].version}
            if self._restores(stage):
                stage.operator.back_up(stage.backup)
            self._plan(stage)
            self._strike_all(stage)
            self._calm(stage)
            self._end(stage)
            return story

    # ------------------------------------------------------------ before

    def _restores(self, stage: Stage) -> bool:
        """Whether there are the programs to take and restore a backup."""
        try:
            snapshots.restoring_program(stage.cluster.binary)
        except ConfigError as error:
            self._story.left_out["restore"] = str(error)
            return False
        if stage.cluster.binary.etcdctl is None:
            self._story.left_out["restore"] = f"there is no etcdctl beside {stage.cluster.binary.etcd}"
            return False
        return True

    def _plan(self, stage: Stage) -> None:
        weather = self.weather
        names = tuple(kind.name for kind in choose_kinds(weather.kinds) if kind.name not in self._story.left_out)
        blows = make_schedule(
            weather.seed,
            seconds=weather.seconds,
            ttl_s=weather.ttl_s,
            replicas=weather.replicas,
            members=weather.members,
            kinds=names,
        )
        for blow in blows:
            self._later(blow.at_s, lambda blow=blow: self._strike(stage, blow))  # type: ignore[misc]
        self._tell(f"seed {weather.seed}: {len(blows)} faults in {weather.seconds:g} s")

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
        """A replica that ended by itself is a violation, and goes on in another life."""
        for actor in stage.actors:
            if (why := actor.died) and len(self._story.deaths) < DEATHS_MAX:
                self._story.deaths.append(why)
                self._tell(f"{stage.now_s():6.1f} s  {why.splitlines()[0]}")
                actor.start()

    def _strike(self, stage: Stage, blow: Blow) -> None:
        begun_s = stage.now_s()
        hit = faults.strike(stage, blow)
        if isinstance(hit, str):
            self._tell(f"{begun_s:6.1f} s  {blow.kind}: {hit}")
            return
        self._tell(f"{begun_s:6.1f} s  {blow.kind}: {hit.who} {hit.detail}".rstrip())

        def over() -> None:
            try:
                eventually(hit.undo, PATIENCE_S)
            finally:
                done = Operation(begun_s, stage.now_s(), blow.kind, hit.who, hit.tokens, hit.detail)
                self._story.operations.append(done)

        self._later(max(blow.until_s, begun_s), over)

    # ------------------------------------------------------------ after

    def _calm(self, stage: Stage) -> None:
        """The faults are over: everybody gets a turn again, or the time for it is out."""
        story = self._story
        story.calm_s = stage.now_s()
        stage.cluster.wait_ready()
        self._tell(f"{story.calm_s:6.1f} s  the faults are over; waiting until everybody has had a turn")
        until_s = story.calm_s + TURN_TTLS * stage.ttl_s * self.weather.replicas + PATIENCE_S
        while stage.now_s() < until_s:
            turns = {line.who for line in stage.told() if line.what == "owner" and line.at_s > story.calm_s}
            if len({name.partition(".")[0] for name in turns}) == self.weather.replicas:
                break
            time.sleep(SLICE_S)
            self._watch(stage)

    def _end(self, stage: Stage) -> None:
        """Kill the replicas and see what is left when their leases are out."""
        story = self._story
        stage.end_replicas()
        story.end_s, story.ended_at_s = stage.now_s(), round(time.time(), 3)
        until = time.monotonic() + stage.ttl_s + PATIENCE_S
        while True:
            story.residue = eventually(lambda: _residue(stage), PATIENCE_S)
            if story.residue == Residue() or time.monotonic() > until:
                break
            time.sleep(SLICE_S)
        story.told = list(stage.told())
        story.attempts = stage.attempts()
        story.operations.sort(key=lambda operation: operation.at_s)


def _residue(stage: Stage) -> Residue:
    return Residue(tuple(claim.key for claim in stage.operator.claims()), stage.operator.leases())
