"""How many simulated worlds a minute one core goes through."""

from __future__ import annotations

import time

from bench.measure import Row
from leasekeeper.testing.sim import Setting, search

__all__ = ["worlds"]

# 300 worlds a minute.
TARGET_MS = 200.0


def worlds(count: int) -> Row:
    """Time of the processor, not of the clock, so that other work on the machine counts less."""
    begun = time.process_time()
    tally, found = search(Setting(seed=0), count)
    assert found is None, found
    world_s = (time.process_time() - begun) / tally.worlds
    return Row(
        "a simulated world, 5 replicas for 60 s",
        world_s * 1e3,
        TARGET_MS,
        f"{60 / world_s:.0f} worlds a minute on one core, {tally.events / tally.worlds:.0f} events each",
        unit="ms",
        figures={"world": world_s},
    )
