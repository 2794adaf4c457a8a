"""Pruning during a storm: the oldest finished runs are exported and removed from etcd; what they were is kept for the judge."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from leasekeeper.protocol.run_keys import RunKeys, RunName
from leasekeeper.runs.exporting import export_run
from leasekeeper.testing.chaos.runs.etcd import body_of, stored_below
from leasekeeper.testing.chaos.runs.records import WORKFLOW, Stored

if TYPE_CHECKING:
    from leasekeeper.keeper import Keeper
    from leasekeeper.testing.cluster import EtcdCluster

__all__ = ["Archive"]

# So many finished runs stay.
STAY = 12


class Archive:
    """Prunes, and remembers what was pruned, by run: its keys as they stood before."""

    def __init__(self, cluster: EtcdCluster, prefix: str, folder: Path) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._folder = folder
        self._lock = threading.Lock()
        self._kept: dict[str, dict[str, Stored]] = {}
        self.pruned: set[str] = set()

    def prune(self, keeper: Keeper, begun: Collection[str], unfinished: Collection[str]) -> bool:
        """Prune the oldest run that is finished and there; whether there was one to prune."""
        finished = sorted((set(begun) - set(unfinished) - self.pruned), key=lambda name: name[1:])
        for name in finished[: max(0, len(finished) - STAY)]:
            self._prune(keeper, name)
            return True
        return False

    def keys(self) -> dict[str, Stored]:
        """Everything of what was pruned, by key below ``run/``."""
        with self._lock:
            return {key: stored for kept in self._kept.values() for key, stored in kept.items()}

    def forget(self) -> dict[str, Stored]:
        """As `keys`, and begin anew: etcd is another one from now on."""
        found = self.keys()
        with self._lock:
            self._kept.clear()
            self.pruned.clear()
        return found

    def _prune(self, keeper: Keeper, name: str) -> None:
        found = stored_below(self._cluster, f"{self._prefix}run/{WORKFLOW}/{name}/")
        head = body_of(found["head"].value) if "head" in found else {}
        if head.get("status") == "finished":
            with self._lock:
                # What a prune that was interrupted has left is less than there was.
                self._kept.setdefault(name, {f"{WORKFLOW}/{name}/{key}": stored for key, stored in found.items()})
            path = self._folder / f"{name}.jsonl"
            if not path.exists():
                core = keeper._core
                export_run(core, RunKeys(core.ctx.keys, RunName(WORKFLOW, name)), path)
            keeper.prune(f"{WORKFLOW}/{name}", exported=path)
        self.pruned.add(name)
