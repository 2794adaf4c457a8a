"""The director of a storm over runs: as every storm's, and what is different when runs are what is at stake."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from leasekeeper.errors import LeasekeeperError
from leasekeeper.signing import HmacKey, Keyring
from leasekeeper.testing.chaos.operator import eventually
from leasekeeper.testing.chaos.runs.records import RunsStory
from leasekeeper.testing.chaos.runs.stage import RunsStage
from leasekeeper.testing.chaos.storm import PATIENCE_S, SLICE_S, TURN_TTLS, Storm

if TYPE_CHECKING:
    from leasekeeper.testing.chaos.records import Blow
    from leasekeeper.testing.chaos.stage import Stage

__all__ = ["RunsStorm"]

RESTORES = ("restore", "restore-unraised")
# A backup is taken so many TTLs before it is restored: runs that were under way then have gone on since, or not.
BACKUP_TTLS = 1.0


class RunsStorm(Storm):
    """One storm over runs: `run` it once."""

    def run(self) -> RunsStory:
        """As `Storm.run`."""
        super().run()
        return self._runs

    def _new_story(self) -> RunsStory:
        weather = self.weather
        return RunsStory(weather.seed, weather.ttl_s, weather.replicas, weather.seconds, workload="runs")

    def _new_stage(self, home: Path) -> Stage:
        return RunsStage(self.weather, home)

    def _prepare(self, stage: Stage, blows: list[Blow]) -> None:
        for blow in blows:
            if blow.kind in RESTORES:
                # Half of them of just before: what is under way then is under way when etcd is back.
                before_s = BACKUP_TTLS * stage.ttl_s if int(blow.at_s * 1000) % 2 else 0.001
                self._later(max(0.0, blow.at_s - before_s), stage.save)

    def _calm(self, stage: Stage) -> None:
        """The faults are over: everybody is killed once more and comes back, and all runs get to their end."""
        assert isinstance(stage, RunsStage)
        story = self._runs
        story.calm_s = stage.now_s()
        stage.cluster.wait_ready()
        self._tell(f"{story.calm_s:6.1f} s  the faults are over; waiting until every run has ended")
        stage.desk.no_more()
        eventually(stage.lift_all, PATIENCE_S)
        for actor in stage.actors:
            # They begin anew without the patience that they have learned.
            actor.kill()
            actor.start()
        window_s = TURN_TTLS * stage.ttl_s * self.weather.replicas + PATIENCE_S
        until_s = story.calm_s + window_s
        lost = self._lost(stage)
        left = set(stage.desk.unfinished()) - lost
        while left and stage.now_s() < until_s:
            time.sleep(SLICE_S)
            self._watch(stage)
            now = set(stage.desk.unfinished()) - lost
            if now < left:
                until_s = stage.now_s() + window_s
                self._tell(f"{stage.now_s():6.1f} s  {len(now)} runs are left")
            left = now
        story.finished_at_s = stage.now_s()

    def _lost(self, stage: RunsStage) -> set[str]:
        """The runs of which a restore has taken records away: no more can be expected of them than that they stop."""
        now = stage.runs() | stage.desk.archive.keys()
        return {
            key.split("/")[1]
            for era in stage.eras
            for key, stored in era.keys.items()
            if "/r/" in key and (key not in now or now[key].value != stored.value)
        }

    def _collect(self, stage: Stage) -> None:
        assert isinstance(stage, RunsStage)
        story = self._runs
        stage.desk.close()
        story.told = list(stage.told())
        story.sent = stage.sent()
        story.orders = dict(stage.desk.orders)
        story.ledger = stage.world.ledger()
        story.wall_s = stage.wall_s
        story.ring = Keyring(HmacKey("chaos", bytes.fromhex(stage.secret)))
        for error in stage.desk.errors:
            self._tell(f"the desk was told: {error}")
        try:
            story.eras = [*stage.eras, stage.last_era()]
            story.db_bytes = max(stage.operator.size(), stage.desk.most_bytes)
            story.most_keys = stage.desk.most_keys
            story.keys_at_end = len(stage.runs())
            story.pruned, story.tombs = frozenset(stage.desk.archive.pruned), frozenset(stage.tombs())
        except LeasekeeperError as error:
            story.eras, story.unread = [*stage.eras], True
            story.stopped = story.stopped or str(error).partition("\n")[0]

    @property
    def _runs(self) -> RunsStory:
        assert isinstance(self._story, RunsStory)
        return self._story
