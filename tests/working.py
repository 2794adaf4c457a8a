"""What tests of workers share: effects that count, a workflow of one, the records of a run, and the workers' threads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from leasekeeper.protocol.receipt import read_receipt
from leasekeeper.run_records import Receipt
from leasekeeper.runs.run import Run
from tests.raw import RawEtcd

EVERY_S = 0.1


class Calls:
    """Counts what effects did, by what they were given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def __call__(self, what: str) -> str:
        """The effect."""
        with self._lock:
            self.counts[what] += 1
        return what


def main_of(calls: Calls) -> Callable[[Run], None]:
    """A workflow of one effect."""
    return lambda run: run.do("act", calls, run.id)


def records(raw: RawEtcd, namespace: str, run: str) -> list[Receipt]:
    """The records of a run."""
    return [read_receipt(kv.value, kv.key) for kv in raw.keys(f"leasekeeper/{namespace}/run/{run}/r/")]


def kinds(raw: RawEtcd, namespace: str, run: str) -> list[str]:
    """What kinds of records a run has."""
    return [each.kind for each in records(raw, namespace, run)]


def threads() -> list[str]:
    """The workers' threads of this process."""
    return [each.name for each in threading.enumerate() if each.name.startswith("leasekeeper-worker-")]
