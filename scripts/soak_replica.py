"""One replica of `scripts/soak.py`: works on runs until it is killed, and says as JSON lines what it measured.

``{"window_s": …}`` for each call, ``{"halt_s": …}`` for each halt that stopped a run under way, ``{"rss_kib": …, "threads": …}``
every second.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leasekeeper import Keeper, effect, observe
from leasekeeper.observe import StepPassed
from leasekeeper.runs.effect import Step
from leasekeeper.runs.run import Run
from leasekeeper.testing.outside import call

FAILS = 0.03
PAUSE_S = 0.03
KEY_TTL = "30s"


@dataclass
class State:
    """What a run keeps beside its steps."""

    charged: int = 0


@effect(dedupes=True, key_ttl=KEY_TTL)
def charge(step: Step, url: str, order: str) -> Any:
    """Charge, at a callee that honours the key."""
    body = {"order": order, "amount_cents": 100}
    return call(url, "POST", "/charges", body, headers=step.headers(), timeout_s=5.0)["id"]


@effect(spool_every="50ms")
def think(step: Step, about: str) -> str:
    """Ask a model that answers in pieces."""
    for part in range(4):
        step.spool(f"{about} {'word ' * part}")
        time.sleep(PAUSE_S)
    return about.upper()


def order(run: Run) -> None:
    """The workflow: it thinks, charges twice, and fails now and then."""
    run.memo("plan", think, run.id)
    state = run.checkpoint("state", State)
    for number in (1, 2):
        if random.random() < FAILS:
            raise ValueError("bad luck")
        run.do(f"charge-{number}", charge, run.input["url"], f"{run.id}-{number}")
        state.commit(charged=number)
        time.sleep(PAUSE_S)


def say(**facts: Any) -> None:
    """One line."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def listen(event: object) -> None:
    """What is measured of steps."""
    if isinstance(event, StepPassed):
        if event.what == "called":
            say(window_s=round(event.window_s, 6))
        elif event.halt_s is not None:
            say(halt_s=round(event.halt_s, 6))


def rss_kib() -> int:
    """Resident memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def main() -> None:
    """Work until TERM, which lets what is under way end."""
    told = json.loads(sys.argv[1])
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    observe.add(listen)
    keeper = Keeper(told["endpoint"], namespace=told["namespace"])
    with keeper, keeper.worker({"soak": order}, concurrency=3, every=0.3, ttl=told["ttl"], signer=None, restarts=20):
        while not ending.wait(1.0):
            say(rss_kib=rss_kib(), threads=threading.active_count())


if __name__ == "__main__":
    main()
