"""A deterministic simulator: replicas with leasekeeper's own plans, sessions and heartbeat, on a model etcd, in virtual time.

One integer decides everything that happens in a world. Requests get lost, late and repeated; processes freeze, crash and fork;
members of etcd stop, part and change their leader; operators delete, revoke and restore. After every event a judge who knows
the truth examines the promises of docs/guarantees.md::

    outcome = run_world(Setting(seed=4711))
    assert outcome.violation is None, report(outcome)

In worlds of runs (``Setting(seed=4711, workload="runs")``) the replicas go on with each other's runs, whose steps act on an
outside world that keeps a ledger of its own.

``leasekeeper sim`` does so for many worlds. What replicas run here is what they run in production, down to each plan; the
model of etcd is compared with real ones by the tests.
"""

from __future__ import annotations

from leasekeeper.testing.sim.batch import Tally, run_world, search
from leasekeeper.testing.sim.faults import FAULTS, MIXES, RUN_FAULTS, RUN_MIXES, SimFault
from leasekeeper.testing.sim.invariants import Violation
from leasekeeper.testing.sim.report import replay_command, report
from leasekeeper.testing.sim.runs.without import RUN_GUARDS
from leasekeeper.testing.sim.runs.world import RunWorld
from leasekeeper.testing.sim.shrink import shrink
from leasekeeper.testing.sim.store import Store
from leasekeeper.testing.sim.story import Line, Story
from leasekeeper.testing.sim.without import GUARDS, Guard
from leasekeeper.testing.sim.world import WORKLOADS, Outcome, Setting, World

__all__ = [
    "FAULTS",
    "GUARDS",
    "MIXES",
    "RUN_FAULTS",
    "RUN_GUARDS",
    "RUN_MIXES",
    "WORKLOADS",
    "Guard",
    "Line",
    "Outcome",
    "RunWorld",
    "Setting",
    "SimFault",
    "Store",
    "Story",
    "Tally",
    "Violation",
    "World",
    "replay_command",
    "report",
    "run_world",
    "search",
    "shrink",
]
