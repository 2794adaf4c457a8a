"""Everything that runs during a storm: the cluster, the links, the replicas, the resource; all of it dies with this process."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leasekeeper.clock import boottime
from leasekeeper.errors import ConfigError, LeasekeeperError, Unavailable
from leasekeeper.testing.chaos.operator import Operator
from leasekeeper.testing.chaos.records import OWNING, Attempt, Told, json_lines, read_lines, replica_of
from leasekeeper.testing.cluster import EtcdCluster
from leasekeeper.testing.process import ChildProcess
from leasekeeper.testing.proxy import FaultProxy

if TYPE_CHECKING:
    from leasekeeper.testing.chaos.faults import Hit
    from leasekeeper.testing.chaos.records import Blow
    from leasekeeper.testing.chaos.storm import Weather

__all__ = ["Actor", "Stage"]

NAMESPACE = "chaos"
START_S = 60.0
POLL_S = 0.05
QUOTA_BYTES = 48 * 1024 * 1024
# The leader runs, stands still, and so on: half of the time, in pieces far shorter than any deadline.
STUTTER_S = 0.06
# Not ``-m``, which puts the current directory before everything, and with it whatever json.py lies there.
PROGRAM = """import sys
sys.path[:1] = sys.path[:1] if sys.path[0] else []
sys.path.append({root!r})
from leasekeeper.testing.chaos.{module} import main
main()"""
ROOT = Path(__file__).resolve().parents[3]
SAID_MAX = 500


def _program(module: str, config: dict[str, Any]) -> list[str]:
    return [sys.executable, "-c", PROGRAM.format(root=str(ROOT), module=module), json.dumps(config)]


def _ending(process: ChildProcess) -> str:
    """How a process ended, with the last line that it said; "" while it runs."""
    status = process.exit_status
    if status is None:
        return ""
    lines = [line for line in process.log.read_text(errors="replace").splitlines() if line and line[0] != "{"]
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return f"ended by itself with {how}: {lines[-1].strip()[:SAID_MAX] if lines else 'it said nothing'}"


class Actor:
    """One replica: its process, of which there is one after the other, and its links to etcd."""

    def __init__(self, stage: Stage, number: int, links: list[FaultProxy]) -> None:
        self.name = f"r{number}"
        self.links = links
        self.ttl_s = stage.ttl_s
        self.struck = False
        self.frozen = False
        self._stage = stage
        self._number = number
        self._lives = 0
        self._control = stage.home / f"{self.name}.wall"
        self._process: ChildProcess | None = None
        self._felled = False

    # ------------------------------------------------------------ its process

    def start(self) -> None:
        """Begin a life."""
        if self._stage.closing:
            return
        self._lives += 1
        stage = self._stage
        config = {
            "holder": f"{self.name}.{self._lives}",
            "endpoints": [link.endpoint for link in self.links],
            "namespace": NAMESPACE,
            "ttl_s": stage.ttl_s,
            "zero_s": stage.zero_s,
            "control": str(self._control),
            "seed": f"{stage.seed}/{self._number}/{self._lives}",
        }
        self._felled = False
        config |= stage.config()
        program = _program(stage.replica_program, config)
        self._process = ChildProcess(program, log=stage.home / f"{self.name}.{self._lives}.log")

    def kill(self) -> None:
        """End it without a word."""
        if self._process is not None:
            self._felled = True
            self._process.kill()
            self.frozen = False

    def freeze(self) -> None:
        """Stop it wherever it is."""
        if self._process is not None and self._process.alive:
            self.frozen = True
            self._process.freeze()

    def thaw(self) -> None:
        """Let it go on."""
        if self._process is not None and self._process.alive:
            self._process.thaw()
        self.frozen = False

    @property
    def died(self) -> str:
        """How it ended, with the last that it said; "" while it runs, or when this storm has killed it."""
        return "" if self._process is None or self._felled else _ending(self._process)

    @property
    def killed_from_outside(self) -> bool:
        """Whether somebody else ended it, as the kernel does when memory runs out: no fault of its own."""
        return self._process is not None and self._process.exit_status in (-signal.SIGKILL, -signal.SIGTERM)

    def set_wall(self, offset_s: float) -> None:
        """Let its wall clock be so much off."""
        self._control.write_text(str(offset_s))

    # ------------------------------------------------------------ its links

    def cut_off(self) -> None:
        """Reset and refuse every connection to etcd."""
        for link in self.links:
            link.cut()

    def reconnect(self, *, reset: bool = False) -> None:
        """End every fault of its links; ``reset``: what they held never arrives."""
        for link in self.links:
            link.heal(reset=reset)


class Stage:
    """The parts of a storm. A context manager: entering starts all, leaving ends all and removes what they left."""

    # What a replica runs, as a module below this package.
    replica_program = "replica"

    def __init__(self, weather: Weather, home: Path) -> None:
        self.seed = weather.seed
        self.ttl_s = weather.ttl_s
        self.home = home
        self.backup = home / "backup.db"
        self.ledger = home / "ledger.jsonl"
        self.zero_s = boottime()
        self.port = 0
        self.closing = False
        self.actors: list[Actor] = []
        self.cluster = EtcdCluster(weather.members, quota_bytes=QUOTA_BYTES)
        self.operator = Operator(self.cluster, NAMESPACE)
        self.weather = weather
        self._stack = ExitStack()
        self._resource: ChildProcess | None = None
        self._stutters: list[threading.Thread] = []
        self._told: list[Told] = []
        self._read: dict[Path, int] = {}

    def __enter__(self) -> Stage:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def config(self) -> dict[str, Any]:
        """What a replica is told beside what all are."""
        return {"resource": self.port}

    def _start(self) -> None:
        self._start_resource()
        self._stack.enter_context(self.cluster)
        for number in range(self.weather.replicas):
            links = [
                self._stack.enter_context(FaultProxy(member.endpoint, name=f"r{number}-{index}"))
                for index, member in enumerate(self.cluster.members)
            ]
            self.actors.append(Actor(self, number, links))
        self._start_replicas()

    def _start_replicas(self) -> None:
        for actor in self.actors:
            actor.start()

    def _start_resource(self) -> None:
        port = self.home / "port"
        config = {
            "ledger": str(self.ledger),
            "target": self.weather.target,
            "zero_s": self.zero_s,
            "port": str(port),
            "path": [os.getcwd()] if self.weather.target else [],
        }
        self._resource = ChildProcess(_program("effects", config), log=self.home / "resource.log")
        until = time.monotonic() + START_S
        while not port.exists():
            if not self._resource.alive or time.monotonic() > until:
                raise self._no_resource(self._resource)
            time.sleep(POLL_S)
        self.port = int(port.read_text())

    def _no_resource(self, resource: ChildProcess) -> LeasekeeperError:
        why = _ending(resource) or f"it is not ready after {START_S:g} s"
        if (named := self.weather.target) and "ConfigError: " in why:
            _, _, expected = why.partition("expected ")
            return ConfigError(field="target", value=named, expected=expected)
        return Unavailable(f"the resource did not start: {why}", operation="start")

    @property
    def resource_ended(self) -> str:
        """How the resource ended, which it never should, with the last that it said; "" while it runs."""
        return "" if self._resource is None else _ending(self._resource)

    def strike_world(self, blow: Blow) -> Hit | None:
        """Do a fault of the outside world, where there is one."""
        return None

    def save(self) -> None:
        """Save the backup that a later restore is from."""
        self.operator.back_up(self.backup)

    def restore(self) -> None:
        """Restore etcd from the backup."""
        self.cluster.restore(self.backup)

    def end_replicas(self) -> None:
        """Kill every replica, as a crash would."""
        self.closing = True
        for actor in self.actors:
            actor.kill()

    def close(self) -> None:
        """End everything."""
        self.end_replicas()
        for thread in self._stutters:
            thread.join()
        if self._resource is not None:
            self._resource.kill()
            self._resource = None
        self._stack.close()

    # ------------------------------------------------------------ time

    def now_s(self) -> float:
        """Seconds since the start."""
        return boottime() - self.zero_s

    def rest(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def stutter(self, member: int, seconds: float) -> Callable[[], None]:
        """Let a member run only half of the time for so long. What is returned waits for the end of that; then it runs."""

        def run() -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until and not self.closing:
                # A member that a loaded machine does not stop in time is thawed and stopped again.
                with suppress(LeasekeeperError):
                    self.cluster.freeze(member)
                    time.sleep(STUTTER_S)
                self.cluster.thaw(member)
                time.sleep(STUTTER_S)

        thread = threading.Thread(target=run, name="leasekeeper-chaos-stutter", daemon=True)
        thread.start()
        self._stutters.append(thread)
        return thread.join

    # ------------------------------------------------------------ what was said

    def told(self) -> list[Told]:
        """What the replicas have said so far, in order of time."""
        for path in sorted(self.home.glob("r*.*.log")):
            self._told += self._news(path)
        self._told.sort(key=lambda line: line.at_s)
        return self._told

    def _news(self, path: Path) -> Iterator[Told]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        return (Told(**line) for line in json_lines(whole))

    def attempts(self) -> list[Attempt]:
        """The ledger."""
        return [Attempt(**line) for line in read_lines(self.ledger)]

    def tokens(self) -> tuple[int, ...]:
        """Every token that any replica has said it owns."""
        return tuple(line.token for line in self.told() if line.what == "owner")

    def owner(self) -> Actor | None:
        """Who said last that it owns the lease, unless it said something else since."""
        last = {replica_of(line.who): line for line in self.told()}
        owning = [line for line in last.values() if line.what in OWNING]
        newest = max(owning, key=lambda line: line.at_s, default=None)
        return next((actor for actor in self.actors if newest and actor.name == replica_of(newest.who)), None)
