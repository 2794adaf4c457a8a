"""One replica: waits for the lease, then writes to the ledger as its owner until the lease is lost.

Run as ``python -m leasekeeper.cli.demo.replica NAME ETCD LEDGER``. Tells what happens as JSON lines on stdout, ends with its
standard input.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from typing import Any

from leasekeeper import Keeper, Lease, LeaseLost, LeaseSuspended, State, Timing, Unavailable
from leasekeeper.cli.demo.ledger import RESOURCE

__all__ = ["main"]

TIMING = Timing(ttl=3)
WRITE_EVERY_S = 0.4
# A write whose answer does not come is given up after so long; by then its owner is long somebody else.
WRITE_TIMEOUT_S = 60.0


class Replica:
    """What one replica does, step by step."""

    def __init__(self, name: str, etcd: str, ledger: str) -> None:
        self.name = name
        self._etcd = etcd
        host, _, port = ledger.partition(":")
        self._ledger = (host, int(port))
        self._tongue = threading.Lock()
        self._in_flight: threading.Thread | None = None

    def run(self) -> None:
        """Stand in line, own, lose, stand in line again; until the process is ended."""
        with Keeper(self._etcd, namespace="demo", holder=self.name, timing=TIMING) as keeper:
            while True:
                self._say("waiting")
                try:
                    with keeper.lease(RESOURCE) as lease:
                        self._own(lease)
                except LeaseLost as lost:
                    self._say("lost", token=lost.token, reason=lost.reason)
                except Unavailable:
                    time.sleep(0.5)

    def _own(self, lease: Lease) -> None:
        self._say("owner", token=lease.token)
        lease.subscribe(lambda state: self._state(lease, state))
        while True:
            self._pass_gate(lease)
            if self._in_flight is None or not self._in_flight.is_alive():
                self._in_flight = threading.Thread(
                    target=self._write, args=(lease,), name="leasekeeper-demo-write", daemon=True
                )
                self._in_flight.start()
            time.sleep(WRITE_EVERY_S)

    def _pass_gate(self, lease: Lease) -> None:
        try:
            lease.check()
        except LeaseSuspended:
            self._say("paused", token=lease.token)
            lease.wait()
            self._say("resumed", token=lease.token)

    def _write(self, lease: Lease) -> None:
        """Send one write with the token that the gate gave out, and hear what the ledger made of it."""
        try:
            request = {"token": lease.check(), "claim": lease.claim, "holder": self.name}
            with socket.create_connection(self._ledger, timeout=WRITE_TIMEOUT_S) as wire:
                wire.sendall(json.dumps(request).encode() + b"\n")
                with wire.makefile("r", encoding="utf-8") as answers:
                    answer = json.loads(answers.readline() or "{}")
        except (OSError, ValueError, LeaseSuspended, LeaseLost):
            return
        if answer.get("accepted") is False:
            self._say("refused", token=request["token"], highest=answer["highest"])

    def _state(self, lease: Lease, state: State) -> None:
        if state is State.SUSPENDED:
            self._say("suspended", token=lease.token)

    def _say(self, what: str, **facts: Any) -> None:
        line = json.dumps({"who": self.name, "what": what, **facts})
        with self._tongue:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


def main() -> None:
    """Run until standard input ends: the story is over, or whoever told it is gone."""
    # The story tells what happens; the log lines would tell it a second time.
    logging.getLogger("leasekeeper").addHandler(logging.NullHandler())
    threading.Thread(target=Replica(*sys.argv[1:4]).run, name="leasekeeper-demo-replica", daemon=True).start()
    sys.stdin.read()
    # The keeper is not closed: a replica that is ended leaves its lease to run out, like one that crashes.
    os._exit(0)


if __name__ == "__main__":
    main()
