"""The storm over durable runs: workers that go on with each other's runs, an outside world that they act on, and its ledger.

A `desk` begins runs, halts them, resolves what is in doubt by the world's ledger, and lifts quarantines, as operators do. The
workers (`agent`) do steps of every policy. An observer (`watching`) writes down what etcd says changed, and at the end the
`judge`, which imports nothing of how runs are kept, holds three witnesses against one another: the ledger of the world, the
records in etcd with their revisions, and what the workers noted right before each call.
"""

from __future__ import annotations

from leasekeeper.testing.chaos.runs.judge import judge_runs
from leasekeeper.testing.chaos.runs.records import Era, Halted, RunsStory, Sent
from leasekeeper.testing.chaos.runs.storm import RunsStorm

__all__ = ["Era", "Halted", "RunsStorm", "RunsStory", "Sent", "judge_runs"]
