"""Many worlds, one after the other, until one breaks a promise."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from leasekeeper.errors import ConfigError
from leasekeeper.testing.sim.runs.without import RUN_GUARDS
from leasekeeper.testing.sim.runs.world import RunWorld
from leasekeeper.testing.sim.without import GUARDS, Guard, taken_out
from leasekeeper.testing.sim.world import World

if TYPE_CHECKING:
    from leasekeeper.testing.sim.world import Outcome, Setting

__all__ = ["Tally", "run_world", "search"]

WORLDS: dict[str, type[World]] = {"leases": World, "runs": RunWorld}
GUARDS_OF: dict[str, dict[str, Guard]] = {"leases": GUARDS, "runs": RUN_GUARDS}
# A world leaves much behind that refers to itself.
COLLECT_EVERY = 16


@dataclass(slots=True)
class Tally:
    """What worlds came to, added up. ``overlaps``: how often the twin without a fence went back to an older owner.

    ``counts`` are those of runs: lives, runs finished, steps done, doubts, calls, alarms, and what was applied and refused.
    """

    worlds: int = 0
    events: int = 0
    owned: int = 0
    accepted: int = 0
    refused: int = 0
    overlaps: int = 0
    faults: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Count one world in."""
        self.worlds += 1
        self.events += outcome.events
        self.owned += outcome.owned
        self.accepted += outcome.accepted
        self.refused += outcome.refused
        self.overlaps += outcome.overlaps
        self.faults += len(outcome.faults)
        for name, count in outcome.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count


def run_world(setting: Setting, without: str | None = None) -> Outcome:
    """The world of a setting, to its end or to its first violation; without one guard, if one is named.

    Guards have their names in `GUARDS` or, for a world of runs, in `RUN_GUARDS`. A guard's absence shows best in worlds of its
    own mix of faults, so that is what they get unless the setting says.
    """
    guards = GUARDS_OF[setting.workload]
    if without is not None and without not in guards:
        raise ConfigError(field="without", value=without, expected=f"one of {', '.join(guards)}")
    guard = guards[without] if without is not None else None
    if guard is not None and setting.mix is None:
        setting = replace(setting, mix=guard.mix)
    with taken_out(guard):
        return WORLDS[setting.workload](setting).run()


def search(
    setting: Setting,
    worlds: int,
    *,
    without: str | None = None,
    progress: Callable[[Tally], None] = lambda _: None,
) -> tuple[Tally, Outcome | None]:
    """Worlds of consecutive seeds, beginning with the setting's: what they came to, and the first that broke a promise.

    ``progress`` is told after each world.
    """
    tally = Tally()
    for seed in range(setting.seed, setting.seed + worlds):
        outcome = run_world(replace(setting, seed=seed), without)
        tally.add(outcome)
        if tally.worlds % COLLECT_EVERY == 0:
            gc.collect()
        progress(tally)
        if outcome.violation is not None:
            return tally, outcome
    return tally, None
