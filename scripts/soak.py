"""Runs without end: workers that are killed, frozen and started again, while what is finished is exported and pruned.

    python scripts/soak.py --seconds 60
    python scripts/soak.py --seconds 3600 --replicas 6

A real etcd with auto-compaction, killed and started again once in a while; several replicas of `scripts/soak_replica.py` of which
all but the first are killed, frozen or terminated at random; an operator who halts all runs for a moment now and then, and
resolves what is in doubt by the outside world's ledger; somebody who exports and prunes. It prints every second how much there is
of everything, and at the end what was bounded and what was not: keys, bytes of the database, memory and threads of the replica
that lives, and each effect once. Exits with 1 if anything was not.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leasekeeper import Keeper, LeasekeeperError, Unavailable
from leasekeeper.protocol.prune import sweep
from leasekeeper.protocol.run_keys import RunKeys, parse_run
from leasekeeper.protocol.run_look import list_page
from leasekeeper.runs.exporting import export_run
from leasekeeper.testing import EtcdServer
from leasekeeper.testing.outside import OutsideWorld

TTL_S = 2.0
COMPACTION = "--auto-compaction-mode=periodic", "--auto-compaction-retention=5s"
NAMESPACE = "soak"
# Runs that are begun and not yet pruned.
UNDER_WAY_MAX = 60
BEGIN_EVERY_S = 0.1
DRAIN_S = 120.0
REPLICA = Path(__file__).with_name("soak_replica.py")
MIB = 1024 * 1024


@dataclass
class Sample:
    """How much there is at one moment; memory and threads are of the replica that lives."""

    at_s: float
    keys: int
    db: int
    used: int
    revision: int
    rss_kib: int
    threads: int


@dataclass
class Told:
    """What replicas have said."""

    windows_s: list[float] = field(default_factory=list)
    halts_s: list[float] = field(default_factory=list)
    rss_kib: int = 0
    threads: int = 0


class Replica:
    """One process; what it says is read by a thread."""

    def __init__(self, endpoint: str, told: Told) -> None:
        options = json.dumps({"endpoint": endpoint, "namespace": NAMESPACE, "ttl": TTL_S})
        command = [sys.executable, str(REPLICA), options]
        self._told = told
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        threading.Thread(target=self._read, name="soak-reader", daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # the last line of one that was killed
            if "window_s" in said:
                self._told.windows_s.append(said["window_s"])
            elif "halt_s" in said:
                self._told.halts_s.append(said["halt_s"])
            else:
                self._told.rss_kib, self._told.threads = said["rss_kib"], said["threads"]

    def end(self) -> None:
        """Kill it, also when it is frozen."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None


class Soak:
    """Everything that goes on at once."""

    def __init__(self, etcd: EtcdServer, world: OutsideWorld, replicas: int, exports: Path) -> None:
        self.etcd = etcd
        self.world = world
        self.keeper = Keeper(etcd.endpoint, namespace=NAMESPACE)
        self.lasting, self.others = Told(), Told()
        self.counts: Counter[str] = Counter()
        self.samples: list[Sample] = []
        self.orders: list[str] = []
        self._exports = exports
        self._feeding = threading.Event()
        self._going = threading.Event()
        self._feeding.set()
        self._going.set()
        self._replicas = [Replica(etcd.endpoint, self.others if number else self.lasting) for number in range(replicas)]
        self._chance = random.Random(0)
        self._began_s = time.monotonic()

    # ------------------------------------------------------------ who does what

    def feed(self) -> None:
        """Begin runs, so many at a time."""
        while self._feeding.is_set():
            time.sleep(BEGIN_EVERY_S)
            if len(self.orders) - self.counts["pruned"] < UNDER_WAY_MAX:
                order = f"{self._chance.randrange(16):x}-{len(self.orders)}"
                self.keeper.begin("soak", id=order, input={"url": self.world.url}, ttl=TTL_S, signer=None)
                self.orders.append(order)

    def harm(self) -> None:
        """Kill, freeze or terminate one of the replicas but the first, or kill etcd; start again who has died."""
        while self._feeding.is_set():
            time.sleep(self._chance.uniform(0.5, 2.0))
            place = self._chance.randrange(1, len(self._replicas))
            process = self._replicas[place].process
            how = self._chance.choice(("kill", "kill", "kill", "freeze", "freeze", "term", "term", "etcd"))
            self.counts[how] += 1
            if how == "etcd":
                self.etcd.kill()
                self.etcd.start()
                continue
            if how == "freeze":
                process.send_signal(signal.SIGSTOP)
                time.sleep(1.5 * TTL_S)
                process.send_signal(signal.SIGCONT)
                continue
            process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGTERM)
            process.wait(60.0)
            self._replicas[place] = Replica(self.etcd.endpoint, self.others)

    def operate(self) -> None:
        """Halt everything for a moment, now and then; say of what is in doubt what the ledger says; lift quarantines."""
        while self._going.is_set():
            if self._feeding.is_set():
                self.keeper.halt("soak/*", "for a moment")
                self.counts["halts"] += 1
                time.sleep(0.7)
                self.keeper.unhalt("soak/*")
            for one in self._listed():
                if one.view is not None and one.view.status in ("in_doubt", "quarantined"):
                    self._resolve(one.run, one.view.in_doubt)
            time.sleep(1.5)

    def _resolve(self, run: str, doubts: tuple[str, ...]) -> None:
        if not doubts:
            self.keeper.resolve(run, evidence="it was bad luck", signer=None)
            self.counts["lifted"] += 1
        for step in doubts:
            found = self.world.applied("payments.charge", f"{run.partition('/')[2]}-{step.partition('-')[2]}")
            result = found[0].data["id"] if found else None
            self.keeper.resolve(run, step, applied=bool(found), result=result, evidence="the ledger", signer=None)
            self.counts["resolved"] += 1

    def prune(self) -> None:
        """Export what is finished, remove it, and sweep tombstones whose time is over."""
        core = self.keeper._core
        while self._going.is_set():
            for one in self._listed():
                if one.view is not None and one.view.status == "finished" and not one.owner:
                    path = self._exports / "run.export"
                    export_run(core, RunKeys(core.ctx.keys, parse_run(one.run)), path)
                    self.keeper.prune(one.run, exported=path)
                    path.unlink()
                    self.counts["pruned"] += 1
            start: bytes | None = None
            while True:
                gone, _, start = core.run(sweep(core.ctx, start, core.until()))
                self.counts["swept"] += gone
                if start is None:
                    break
            time.sleep(0.3)

    def _listed(self) -> list[Any]:
        core = self.keeper._core
        found: list[Any] = []
        start: bytes | None = None
        while True:
            page, start = core.run(list_page(core.ctx, "", start, core.until()))
            found += page
            if start is None:
                return found

    # ------------------------------------------------------------ how much there is

    def sample(self) -> Sample:
        """Look."""
        keys = self._ask("kv/range", key=_b64(b"\0"), range_end=_b64(b"\0"), count_only=True)
        status = self._ask("maintenance/status")
        made = Sample(
            at_s=time.monotonic() - self._began_s,
            keys=int(keys.get("count", 0)),
            db=int(status["dbSize"]),
            used=int(status["dbSizeInUse"]),
            revision=int(status["header"]["revision"]),
            rss_kib=self.lasting.rss_kib,
            threads=self.lasting.threads,
        )
        self.samples.append(made)
        return made

    def _ask(self, path: str, **body: Any) -> dict[str, Any]:
        return self.etcd.gateway.call(f"/v3/{path}", body, timeout_s=30.0)

    def settle(self) -> Sample:
        """Compact and defragment: what is left."""
        revision = self.sample().revision
        self._ask("kv/compaction", revision=str(revision), physical=True)
        self._ask("maintenance/defragment")
        return self.sample()

    # ------------------------------------------------------------ all of it

    def run(self, seconds: float) -> bool:
        """For so long, and then until nothing is left; whether it got so far."""
        doing = [self.feed, self.harm, self.operate, self.prune]
        threads = [threading.Thread(target=self._again, args=(one,), name="soak", daemon=True) for one in doing]
        for thread in threads:
            thread.start()
        try:
            until_s = time.monotonic() + seconds
            while time.monotonic() < until_s:
                time.sleep(1.0)
                try:
                    _show(self.sample(), self.counts, len(self.orders))
                except Unavailable:
                    continue  # it is just being started again
            self._feeding.clear()
            until_s = time.monotonic() + DRAIN_S
            while self.counts["pruned"] < len(self.orders) and time.monotonic() < until_s:
                time.sleep(0.5)
            return self.counts["pruned"] == len(self.orders)
        finally:
            self._feeding.clear()
            self._going.clear()
            for thread in threads:
                thread.join(30.0)
            for replica in self._replicas:
                replica.end()

    def _again(self, what: Callable[[], None]) -> None:
        """Whatever fails is tried again; how often is told at the end."""
        while self._going.is_set():
            try:
                what()
                return
            except LeasekeeperError as error:
                self.counts[f"{what.__name__}: {type(error).__name__}"] += 1


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _show(now: Sample, counts: Counter[str], begun: int) -> None:
    print(
        f"{now.at_s:6.0f} s  {now.keys:6} keys  {now.used / MIB:6.2f} of {now.db / MIB:6.2f} MiB  revision {now.revision:7}"
        f"  {now.rss_kib / 1024:6.1f} MiB {now.threads:3} threads  {begun} begun, {counts['pruned']} pruned",
        flush=True,
    )


def p99(values: list[float]) -> float:
    """The 99th percentile, 0 of nothing."""
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else sum(values)


def judge(soak: Soak, left: Sample, drained: bool) -> list[tuple[bool, str]]:
    """What is to be bounded, and whether it was: the last third of the time is compared with the one before."""
    third = len(soak.samples) // 3 or 1
    before, after = soak.samples[third : 2 * third] or soak.samples, soak.samples[2 * third : 3 * third] or soak.samples
    applied = Counter(entry.subject for entry in soak.world.applied("payments.charge"))
    wanted = {f"{order}-{number}": 1 for order in soak.orders for number in (1, 2)}

    def most(samples: list[Sample], name: str) -> int:
        return max(int(getattr(sample, name)) for sample in samples)

    def bounded(name: str, slack: int) -> tuple[bool, str]:
        old, new = most(before, name), most(after, name)
        return new <= 1.5 * old + slack, f"{name}: at most {old} before, {new} after"

    return [
        (drained, f"{len(soak.orders)} runs begun, {soak.counts['pruned']} finished, exported and pruned"),
        (applied == wanted, f"{len(applied)} charges, each once: {sum(applied.values())} applied"),
        bounded("keys", 500),
        bounded("used", MIB),
        bounded("rss_kib", 16 * 1024),
        bounded("threads", 4),
        (left.keys < 50 + len(soak.orders), f"{left.keys} keys left, tombstones among them"),
        (left.db < 4 * MIB, f"{left.db / MIB:.2f} MiB of database left, defragmented"),
    ]


def main() -> int:
    """Run it, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long runs are begun")
    parser.add_argument("--replicas", type=int, default=4, help="worker processes, at least 2; the first is left alone")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as home,
        EtcdServer(fsync=False, extra_args=COMPACTION) as etcd,
        OutsideWorld() as world,
    ):
        soak = Soak(etcd, world, max(2, asked.replicas), Path(home))
        try:
            drained = soak.run(asked.seconds)
            left = soak.settle()
            verdicts = judge(soak, left, drained)
        finally:
            soak.keeper.close()
    runs = len(soak.orders) or 1
    windows, halts = soak.lasting.windows_s + soak.others.windows_s, soak.lasting.halts_s + soak.others.halts_s
    print(
        f"\nrevisions a run: {soak.samples[-1].revision / runs:.1f}; what happened: {dict(sorted(soak.counts.items()))}"
    )
    print(
        f"window before a call: p50 {statistics.median(windows or [0.0]):.4f} s, p99 {p99(windows):.4f} s of {len(windows)}"
    )
    print(
        f"from a halt to its effect: p50 {statistics.median(halts or [0.0]):.3f} s, p99 {p99(halts):.3f} s of {len(halts)}"
    )
    for good, what in verdicts:
        print("ok " if good else "NOT", what)
    return 0 if all(good for good, _ in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
