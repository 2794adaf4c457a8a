"""Chaos on the real thing: replica processes, a real cluster, broken links, and a ledger that remembers every attempt.

`storm` directs: it starts an `EtcdCluster`, a fault proxy for each link, the replicas (`replica`) and the server of the guarded
resource (`effects`), and strikes by the seeded `schedule` with the `faults`. Afterwards the `checker`, which knows nothing of
how leasekeeper works, reads what was written down (`records`) and what is left in etcd, and gives its verdict. `report` and
`picture` put it into files.

What is at stake is one lease; or, with `leasekeeper.testing.chaos.runs`, durable runs that act on an outside world.

The seed decides the schedule and what the replicas do; when exactly a process runs, the machine decides. So a run cannot be
repeated to the microsecond; what the verdict says holds for any order of events. For what must be repeatable there is the
simulator, `leasekeeper.testing.sim`.
"""

from __future__ import annotations

from leasekeeper.testing.chaos.checker import Verdict, judge
from leasekeeper.testing.chaos.proof import require_proof, sign_report
from leasekeeper.testing.chaos.records import Attempt, Blow, Story, Told
from leasekeeper.testing.chaos.schedule import KINDS, make_schedule
from leasekeeper.testing.chaos.storm import Storm, Weather

__all__ = [
    "KINDS",
    "Attempt",
    "Blow",
    "Storm",
    "Story",
    "Told",
    "Verdict",
    "Weather",
    "judge",
    "make_schedule",
    "require_proof",
    "sign_report",
]
