"""One replica of a storm: waits for the lease, writes behind its gate, gives it back after a while, and begins anew.

Run as ``python -m leasekeeper.testing.chaos.replica CONFIG``. Says what happens to it as JSON lines on stdout. Between the gate
and the write it works for a moment now and then: a process that is stopped there wakes up with a write in its hand.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

from leasekeeper import (
    Keeper,
    Lease,
    LeasekeeperError,
    LeaseLost,
    LeaseSuspended,
    NotAcquired,
    State,
    Timing,
)
from leasekeeper.clock import boottime

__all__ = ["main"]

NAME = "effect"
ANSWER_S = 20.0
PACE_S = 0.05


class Replica:
    """What one replica does, by its own chance."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._holder: str = config["holder"]
        self._endpoints: list[str] = config["endpoints"]
        self._namespace: str = config["namespace"]
        self._resource: tuple[str, int] = ("127.0.0.1", config["resource"])
        self._ttl_s: float = config["ttl_s"]
        self._zero_s: float = config["zero_s"]
        self._control = Path(config["control"])
        self._chance = Random(config["seed"])
        self._tongue = threading.Lock()
        self._work = 0
        self._jump_s = 0.0

    def run(self) -> None:
        """Until the process is ended."""
        with Keeper(
            self._endpoints, namespace=self._namespace, holder=self._holder, timing=Timing(ttl=self._ttl_s)
        ) as keeper:
            # Of this process's clock as leasekeeper knows it. To turn time.time itself would turn grpc's deadlines with it.
            keeper._core.ctx.wall = lambda: time.time() + self._jump_s
            self._say("started")
            while True:
                try:
                    self._turn(keeper)
                except NotAcquired:
                    self._say("waited")
                except LeaseLost as lost:
                    self._say("lost", token=lost.token, detail=lost.reason)
                except LeasekeeperError as error:
                    self._say("error", detail=f"{type(error).__name__}: {error}"[:300])
                    time.sleep(self._chance.uniform(0.1, 0.5))

    def _turn(self, keeper: Keeper) -> None:
        timeout = self._chance.choice((None, None, None, 2 * self._ttl_s))
        with keeper.lease(NAME, timeout=timeout) as lease:
            self._say("owner", token=lease.token, claim=lease.claim)
            lease.subscribe(lambda state: self._changed(lease, state))
            until = boottime() + self._chance.uniform(0.5, 5.0) * self._ttl_s
            while boottime() < until:
                self._jump_clock()
                self._effect(lease)
                time.sleep(self._chance.uniform(0.5, 1.5) * PACE_S)
        self._say("released", token=lease.token)

    def _effect(self, lease: Lease) -> None:
        gate_s = boottime() - self._zero_s
        try:
            token = lease.check()
        except LeaseSuspended:
            gate_s = boottime() - self._zero_s
            # A short wait, so that the time before the gate stays close to the gate.
            try:
                token = lease.wait(timeout=0.05)
            except LeaseSuspended:
                return
        time.sleep(self._chance.choice((0.0, 0.0, 0.0, 0.01, 0.05, 0.1 * self._ttl_s)))
        self._work += 1
        self._send({"token": token, "claim": lease.claim, "work": f"{self._holder}/{self._work}", "gate_s": gate_s})

    def _send(self, write: dict[str, Any]) -> None:
        try:
            with socket.create_connection(self._resource, timeout=ANSWER_S) as wire:
                wire.sendall(json.dumps({**write, "holder": self._holder}).encode() + b"\n")
                with wire.makefile("rb") as answers:
                    answers.readline()
        except OSError:
            return  # whether it arrived, the ledger knows

    def _changed(self, lease: Lease, state: State) -> None:
        loss = lease.loss
        self._say(state.value, token=lease.token, detail="" if loss is None else loss.reason)

    def _jump_clock(self) -> None:
        try:
            self._jump_s = float(self._control.read_text())
        except (OSError, ValueError):
            return

    def _say(self, what: str, **facts: Any) -> None:
        line = json.dumps({"at_s": boottime() - self._zero_s, "who": self._holder, "what": what, **facts})
        with self._tongue:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


def main() -> None:
    """Run until the process is ended; it is never ended politely."""
    Replica(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
