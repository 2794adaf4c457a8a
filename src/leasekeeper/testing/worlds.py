"""Simulated worlds as an assertion, for the fixture ``sim``."""

from __future__ import annotations

from leasekeeper.testing.sim.batch import Tally, search
from leasekeeper.testing.sim.report import report
from leasekeeper.testing.sim.world import Setting, Workload

__all__ = ["simulate"]


def simulate(
    seed: int,
    *,
    worlds: int = 1,
    replicas: int = 5,
    seconds: float = 60.0,
    mix: str | None = None,
    without: str | None = None,
    workload: Workload = "leases",
) -> Tally:
    """Run simulated worlds of leasekeeper's own protocol, of which none may break a promise; what they came to.

    Args:
        seed: of the first world; the others have the numbers after it.
        worlds: how many.
        replicas: in each world.
        seconds: of virtual time that each world lasts.
        mix: which kinds of fault happen, by a name of `leasekeeper.testing.sim.MIXES`, for runs of ``RUN_MIXES``; by chance if
            none is given.
        without: a guard to take out, by a name of `leasekeeper.testing.sim.GUARDS`, for runs of ``RUN_GUARDS``, to see that it
            is missed.
        workload: what the replicas are at: ``leases``, or ``runs``.

    Raises:
        AssertionError: a promise was broken; tells the story, and the command that shows the same world again.
    """
    __tracebackhide__ = True
    tally, bad = search(Setting(seed, replicas, seconds, mix, workload=workload), worlds, without=without)
    if bad is not None:
        raise AssertionError(report(bad, without))
    return tally
