"""The desk of a storm over runs: it begins them, and does by hand what operators do, by the public calls of a `Keeper`.

It prunes what is finished (`archive`), and has etcd forget its history now and then, so that a long storm stays small.

It resolves a step in doubt when somebody was told of it, and by the truth: what the outside world's ledger shows, once nothing
that could still change it is under way. It lifts the quarantine of a run when somebody was told, after curing what killed it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from leasekeeper.errors import LeasekeeperError
from leasekeeper.keeper import Keeper
from leasekeeper.runs.anchor_file import FileAnchor
from leasekeeper.testing.chaos.runs.agent import SKEW_S, asked
from leasekeeper.testing.chaos.runs.archive import Archive
from leasekeeper.testing.chaos.runs.etcd import body_of, compact, count_below, stored_below
from leasekeeper.testing.chaos.runs.records import WORKFLOW, Order
from leasekeeper.testing.chaos.runs.world import DOES
from leasekeeper.testing.cluster import EtcdCluster
from leasekeeper.testing.outside import OutsideWorld, Refused, call
from leasekeeper.testing.outside.ledger import Entry

__all__ = ["Desk"]

BEGIN_EVERY_S = 0.6
LOOK_EVERY_S = 0.7
# Unfinished runs for each replica; no more are begun.
BACKLOG = 4
# How long nothing may have been under way that could still reach the outside world.
QUIET_S = 1.5
COMPACT_EVERY_S = 60.0
RIVAL_EVERY, POISON_EVERY, POISON_AT = 6, 60, 9
RIVAL = "rival"
PATIENCE_S = 10.0


class Desk:
    """Three threads: one begins runs, one looks after them, one prunes them."""

    def __init__(
        self,
        cluster: EtcdCluster,
        world: OutsideWorld,
        config: dict[str, Any],
        *,
        replicas: int,
        seed: int,
        quiet: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._world = world
        self._config = config
        self._most = BACKLOG * replicas
        self._quiet = quiet
        self._chance = Random(f"{seed}/desk")
        self._prefix = f"leasekeeper/{config['namespace']}/"
        self._anchor = FileAnchor(config["anchor"], skew_s=SKEW_S)
        self._stop, self._full = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._keep(act), name=f"leasekeeper-chaos-{name}", daemon=True)
            for name, act in (
                ("starter", self._begin_next),
                ("operator", self._look_after),
                ("janitor", self._tidy_up),
            )
        ]
        self.archive = Archive(cluster, self._prefix, Path(config["exports"]))
        self._compacted_s = time.monotonic()
        self.most_keys = self.most_bytes = 0
        self._quiet_since_s: float | None = None
        self._waiting: deque[Order] = deque()
        self.orders: dict[str, Order] = {}
        self.errors: deque[str] = deque(maxlen=50)

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def no_more(self) -> None:
        """Begin no run any more; those that were begun are looked after."""
        self._full.set()

    def close(self) -> None:
        """End both threads."""
        self._full.set()
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def keeper(self) -> Keeper:
        """A keeper of somebody who reaches every member directly."""
        return Keeper(self._cluster.endpoints, namespace=self._config["namespace"], holder="desk")

    def unfinished(self) -> list[str]:
        """The ids of the runs that are not finished, as etcd has them."""
        return sorted(stored_below(self._cluster, f"{self._prefix}unfinished/{WORKFLOW}/"))

    def _keep(self, act: Callable[[Keeper], float]) -> Callable[[], None]:
        """Do it again and again, with a new keeper after each error: what etcd was may be another one now."""

        def run() -> None:
            while not self._stop.is_set():
                try:
                    with self.keeper() as keeper:
                        while not self._stop.is_set():
                            self._stop.wait(act(keeper))
                except (LeasekeeperError, OSError, Refused) as error:
                    self.errors.append(f"{type(error).__name__}: {error}"[:300])
                    self._stop.wait(LOOK_EVERY_S)

        return run

    # ------------------------------------------------------------ beginning runs

    def _begin_next(self, keeper: Keeper) -> float:
        if self._full.is_set() or len(self.unfinished()) >= self._most:
            return BEGIN_EVERY_S
        if not self._waiting:
            self._waiting.append(self._drawn())
        order = self._waiting[0]
        self.orders[order.id] = order
        keeper.begin(WORKFLOW, id=order.id, input=asdict(order), **asked(self._config, self._anchor))
        self._waiting.popleft()
        return BEGIN_EVERY_S * self._chance.uniform(0.5, 1.5)

    def _drawn(self) -> Order:
        number = len(self.orders)
        order = Order(
            f"{self._chance.choice('ab')}{number:05d}",
            self._chance.randrange(100, 10_000),
            rival=number % RIVAL_EVERY == RIVAL_EVERY - 1,
            poison=number % POISON_EVERY == POISON_AT,
        )
        return order if not order.rival or self._rival(order) else Order(order.id, order.amount_cents)

    def _rival(self, order: Order) -> bool:
        """Somebody else sends the mail: whether he could, which the ledger knows."""
        letter = {"to": order.buyer, "subject": order.id, "body": "From somebody else."}
        try:
            call(self._world.url, "POST", "/mails", letter, headers={"Idempotency-Key": RIVAL}, timeout_s=PATIENCE_S)
        except (OSError, Refused):
            pass
        return bool(self._world.applied("mail.send", order.buyer))

    # ------------------------------------------------------------ pruning

    def _tidy_up(self, keeper: Keeper) -> float:
        if time.monotonic() - self._compacted_s > COMPACT_EVERY_S:
            self._compacted_s = time.monotonic()
            compact(self._cluster)
        self.most_keys = max(self.most_keys, count_below(self._cluster, self._prefix))
        sizes = [each.status().db_size for each in self._cluster.members if each.is_running]
        self.most_bytes = max([self.most_bytes, *sizes])
        pruned = self.archive.prune(keeper, list(self.orders), self.unfinished())
        return 0.0 if pruned else LOOK_EVERY_S

    # ------------------------------------------------------------ looking after them

    def _look_after(self, keeper: Keeper) -> float:
        for run, head in self._stopped():
            name = f"{WORKFLOW}/{run}"
            records = self._records(run)
            if head["status"] == "quarantined" and _was_told(records, "quarantined", ""):
                Path(self._config["cured"], run).touch()
                keeper.resolve(name, None, evidence="what killed it is mended", signer=self._signer)
            for step in head["doubts"] if head["status"] == "in_doubt" else ():
                if _was_told(records, "in_doubt", step) and self._is_quiet():
                    self._resolve(keeper, name, run, step)
        self._is_quiet()
        return LOOK_EVERY_S

    def _stopped(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for run in self.unfinished():
            found = stored_below(self._cluster, f"{self._prefix}run/{WORKFLOW}/{run}/head")
            for stored in found.values():
                head = body_of(stored.value)
                if head.get("status") in ("in_doubt", "quarantined"):
                    yield run, head

    def _records(self, run: str) -> list[dict[str, Any]]:
        found = stored_below(self._cluster, f"{self._prefix}run/{WORKFLOW}/{run}/r/")
        return [body_of(stored.value) for _, stored in sorted(found.items())]

    def _is_quiet(self) -> bool:
        """Whether for a while nobody was frozen and nothing went wrong at the outside world, so that the ledger is the truth."""
        now_s = time.monotonic()
        if not self._quiet():
            self._quiet_since_s = None
            return False
        self._quiet_since_s = self._quiet_since_s or now_s
        return now_s - self._quiet_since_s >= QUIET_S

    def _resolve(self, keeper: Keeper, name: str, run: str, step: str) -> None:
        happened = self._happened(run, step)
        keeper.resolve(
            name,
            step,
            applied=happened is not None,
            evidence="nothing in the ledger" if happened is None else f"line {happened.number} of the ledger",
            result=None if happened is None else _result(self.orders[run], step, happened),
            signer=self._signer,
        )

    def _happened(self, run: str, step: str) -> Entry | None:
        subject = self.orders[run].buyer if step == "mail" else run
        found = [entry for entry in self._world.applied(DOES[step], subject) if entry.key != RIVAL]
        return found[0] if found else None

    @property
    def _signer(self) -> Any:
        return asked(self._config, self._anchor)["signer"]


def _was_told(records: list[dict[str, Any]], kind: str, step: str) -> bool:
    """Whether somebody was told of the latest such stop."""
    told = False
    for record in records:
        if (record.get("kind"), record.get("step")) == (kind, step):
            told = False
        if record.get("kind") == "alerted" and record.get("data", {}).get("kind") == kind:
            told |= record.get("step") == step
    return told


def _result(order: Order, step: str, happened: Entry) -> Any:
    """What the step would have returned."""
    match step:
        case "charge":
            return dict(happened.data)
        case "mail":
            return {"to": order.buyer, "subject": order.id, "body": "Thank you."}
        case "config":
            return order.amount_cents
        case _:
            return order.id
