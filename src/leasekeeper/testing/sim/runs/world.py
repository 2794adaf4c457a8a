"""One world of runs: replicas that work on them, operators, an outside world, and what befalls them all.

As every world it has a storm, and a calm in which everything is mended: there each run must come to its end within a stated
time, or wait for a person who was told. The leases that own the runs are judged as in any other world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.testing.sim.invariants import Hold, Violation
from leasekeeper.testing.sim.keeper import KEYS
from leasekeeper.testing.sim.runs.fortune import RunFortune
from leasekeeper.testing.sim.runs.judge import RunJudge
from leasekeeper.testing.sim.runs.operator import Operator
from leasekeeper.testing.sim.runs.outside import Outside, Subject
from leasekeeper.testing.sim.runs.policies import SKEW_S, Script, draw
from leasekeeper.testing.sim.runs.replica import RunReplica
from leasekeeper.testing.sim.world import SILENT_S, World

if TYPE_CHECKING:
    from leasekeeper.testing.sim.fortune import Fortune
    from leasekeeper.testing.sim.keyspace import Event
    from leasekeeper.testing.sim.replica import Replica
    from leasekeeper.timing import Timing

__all__ = ["RunWorld"]

RUNS = 9
FIRST = 3
# A further run is there to be begun every so many seconds.
EVERY_S = 4.0
# What a run may take in calm times, once somebody is at it, and until a person has decided on what is in doubt in it.
RUN_S = 6.0
DECIDED_S = 30.0


class RunWorld(World):
    """The world of runs of a setting. `run` it once."""

    fortune: RunFortune

    def _prepare(self) -> None:
        chance = self.timeline.chance("runs")
        self.scripts = tuple(draw(chance, number) for number in range(RUNS))
        self.names = tuple(script.lease for script in self.scripts)
        self._by_run = {script.run: script for script in self.scripts}
        self.skews = [chance.uniform(-SKEW_S, SKEW_S) for _ in range(self.setting.replicas)]
        self.begun: set[str] = set()
        self.anchors: dict[str, dict[int, str]] = {}
        self.deaf_until_s = 0.0
        self.outside = Outside(self.timeline, self._owns, self._applied)

    def _replica(self, number: int, timing: Timing) -> Replica:
        return RunReplica(self, number, timing, 0)

    def _make_fortune(self) -> Fortune:
        self.person = Operator(self)
        self.runs = RunJudge(self.cluster.store, self.judge, self.outside, self.scripts, self.tell)
        return RunFortune(self)

    # ------------------------------------------------------------ for those in it

    def present(self) -> tuple[Script, ...]:
        """The runs that there are by now."""
        return self.scripts[: FIRST + int(self.timeline.now_s / EVERY_S)]

    def script(self, run: str) -> Script:
        """The run of a text."""
        return self._by_run[run]

    def robbed_lately(self, script: Script, seconds: float) -> bool:
        """Whether an owner of the run may not have heard yet that its claim was removed by hand."""
        return self.judge.removed_lately(script.lease, 2.02 * self.ttl_s + seconds)

    def _owns(self, hold: Hold) -> bool:
        return self.judge.owns(hold)

    def _applied(self, run: str, step: str, subject: Subject) -> None:
        self.runs.applied(run, step, subject)

    def _changed(self, event: object) -> None:
        seen: Event = event  # type: ignore[assignment]
        if seen.key.startswith(KEYS.leases):
            self.judge.changed(seen)
        self.cluster.streams.changed(seen)
        self.runs.changed(seen)

    # ------------------------------------------------------------ its course

    def _storm(self) -> None:
        self.person.begin()
        super()._storm()

    def _await_turns(self) -> None:
        until_s = self.timeline.now_s + self.end_bound_s()
        while self.timeline.now_s < until_s and self._open():
            self._pass_until(min(until_s, self.timeline.now_s + 0.5))
        if open_ := self._open():
            named = ", ".join(f"{script.run} ({self._state(script)})" for script in open_)
            text = f"{named}: not at an end within {self.end_bound_s():.0f} s after the last fault"
            raise Violation("liveness", text, tuple(replica.name for replica in self.replicas))
        self.runs.check_finished()

    def _open(self) -> list[Script]:
        return [script for script in self.present() if not self.runs.settled(script)]

    def _state(self, script: Script) -> str:
        head = self.runs.books.head(script.run)
        return "never begun" if head is None else f"{head.status}{', due' if head.due else ''}"

    def end_bound_s(self) -> float:
        """Within which time every run comes to an end when nothing is wrong any more."""
        granted_s = max(self.ttl_s, self.cluster.store.minimum_ttl)
        return 2.5 * granted_s + RUN_S * len(self.present()) + DECIDED_S + (SILENT_S if self.restored else 0.0)

    def _end(self) -> None:
        self.person.end()
        super()._end()

    def _counts(self) -> dict[str, int]:
        books = self.runs.books.books.values()
        steps = [step for book in books for step in book.steps.values()]
        return {
            "lives": sum(book.lives for book in books),
            "finished": sum(book.status == "finished" for book in books),
            "done": sum(step.state == "done" for step in steps),
            "doubts": sum(step.doubts for step in steps),
            "calls": self.runs.calls,
            "alarms": self.runs.alarms,
            "applied": sum(len(each.applied) for each in self.outside.subjects.values()),
            "refused": self.outside.refused,
        }
