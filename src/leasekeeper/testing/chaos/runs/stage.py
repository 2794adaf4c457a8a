"""What runs during a storm over runs: the cluster, the links, the workers, the outside world, the desk and the observer."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leasekeeper.errors import Misuse, Unavailable
from leasekeeper.protocol import halt as halts
from leasekeeper.testing.chaos.faults import Hit
from leasekeeper.testing.chaos.operator import eventually
from leasekeeper.testing.chaos.records import read_lines
from leasekeeper.testing.chaos.runs.desk import Desk
from leasekeeper.testing.chaos.runs.etcd import Observer, revision, stored_below
from leasekeeper.testing.chaos.runs.records import WORKFLOW, Era, Sent
from leasekeeper.testing.chaos.runs.world import troubles
from leasekeeper.testing.chaos.stage import NAMESPACE, Actor, Stage
from leasekeeper.testing.outside import OutsideWorld

if TYPE_CHECKING:
    from leasekeeper.testing.chaos.records import Blow, Told
    from leasekeeper.testing.chaos.storm import Weather

__all__ = ["PREFIX", "RunsStage"]

PREFIX = f"leasekeeper/{NAMESPACE}/"
PATIENCE_S = 60.0
POLL_S = 0.1
# A storm does not wait longer for a halt.
HALT_S = 2.0


class RunsStage(Stage):
    """The parts of a storm over runs."""

    replica_program = "runs.agent"

    def __init__(self, weather: Weather, home: Path) -> None:
        super().__init__(weather, home)
        self.wall_s = time.time() - self.now_s()
        self.world = OutsideWorld(home / "world")
        self.secret = secrets.token_hex(32)
        self.eras: list[Era] = []
        self.troubled = False
        self.observer = Observer(self.cluster, PREFIX)
        for folder in ("sent", "cured", "exports"):
            (home / folder).mkdir()
        self.desk = Desk(
            self.cluster,
            self.world,
            self.config() | {"namespace": NAMESPACE},
            replicas=weather.replicas,
            seed=weather.seed,
            quiet=lambda: not self.troubled and not any(actor.frozen for actor in self.actors),
        )

    def config(self) -> dict[str, Any]:
        """What a worker and the desk are told."""
        return {
            "world": self.world.url if self.port else "",
            "anchor": str(self.home / "anchor.jsonl"),
            "cured": str(self.home / "cured"),
            "sent": str(self.home / "sent"),
            "exports": str(self.home / "exports"),
            "secret": self.secret,
        }

    def _start_resource(self) -> None:
        self._stack.callback(self.world.close)
        self.world.start()
        self.port = int(self.world.url.rpartition(":")[2])

    def _start_replicas(self) -> None:
        self._stack.callback(self.observer.close)
        self.observer.start()
        self._stack.callback(self.desk.close)
        self.desk.start()
        super()._start_replicas()

    @property
    def resource_ended(self) -> str:
        """Whether the outside world has ended, which it never should."""
        try:
            return "" if self.world.pid else "ended"
        except Misuse:
            return "ended by itself"

    def owner(self) -> Actor | None:
        """Who said last that it owns a run: with several at once, one of those that are at work."""
        newest: Told | None = max(
            (line for line in self.told() if line.what == "owner"), key=lambda line: line.at_s, default=None
        )
        return next((actor for actor in self.actors if newest and newest.who.startswith(f"{actor.name}.")), None)

    # ------------------------------------------------------------ the world, and halts

    def strike_world(self, blow: Blow) -> Hit:
        """Let something go wrong at the world, or halt runs."""
        if blow.kind.startswith("halt"):
            scope = "*" if blow.kind == "halt-all" else f"{WORKFLOW}/{'ab'[int(blow.at_s * 1000) % 2]}*"
            with self.desk.keeper() as keeper:
                core = keeper._core
                at = core.run(halts.halt(core.ctx, scope, "a storm", core.until(HALT_S)))
            return Hit("world", lambda: self._lift(scope), detail=f"{scope} at revision {at}")
        self.troubled = True
        for trouble in troubles(blow.kind, blow.lasts_s):
            self.world.trouble(trouble)
        return Hit("world", self._mend)

    def _mend(self) -> None:
        self.world.heal()
        self.troubled = False

    def _lift(self, scope: str) -> None:
        with self.desk.keeper() as keeper:
            keeper.unhalt(scope)

    def lift_all(self) -> None:
        """End every halt: one whose answer was lost stands as well."""
        with self.desk.keeper() as keeper:
            for halt in keeper.halts():
                keeper.unhalt(halt.scope)

    # ------------------------------------------------------------ a restore

    def restore(self) -> None:
        """Restore etcd, and take down what there was before, and what there is from then on."""
        self._catch_up()
        keys = self.runs() | self.desk.archive.keys()
        super().restore()
        self.desk.archive.forget()
        at = revision(self.cluster)
        era = self.observer.turn(at)
        era.keys = keys
        self.eras.append(era)

    def _catch_up(self) -> None:
        """Until the observer has seen everything."""
        until = time.monotonic() + PATIENCE_S
        at = eventually(lambda: self.operator.mark(PREFIX + "mark"), PATIENCE_S)
        while not self.observer.caught_up(at):
            if time.monotonic() > until:
                raise Unavailable("etcd's watch has not told everything in a minute", operation="watch")
            time.sleep(POLL_S)

    def tombs(self) -> set[str]:
        """The runs that a tombstone tells of."""
        return set(stored_below(self.cluster, f"{PREFIX}tomb/{WORKFLOW}/"))

    def runs(self) -> dict[str, Any]:
        """Everything below ``run/``."""
        return stored_below(self.cluster, f"{PREFIX}run/")

    def last_era(self) -> Era:
        """The era that goes on, with all that is there now."""
        self._catch_up()
        era = self.observer.turn(revision(self.cluster))
        era.keys = self.runs() | self.desk.archive.keys()
        return era

    # ------------------------------------------------------------ what was said

    def sent(self) -> list[Sent]:
        """What the workers noted before their calls."""
        return [Sent(**line) for path in sorted((self.home / "sent").glob("*.sent")) for line in read_lines(path)]
