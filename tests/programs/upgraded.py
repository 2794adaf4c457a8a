"""One replica of a rolling upgrade: goes on with a run with the state type that its version of the program knows.

Options: endpoint, namespace, version (1 or 2), ttl; ``pin``: the version that it writes; ``steps``: how many steps it does
before it kills itself, all of them when there is none; ``kill_at``: a failpoint at which it is killed instead, the ``nth`` time
that it passes it; ``dies_migrating``: it is killed in the middle of a migration. Each step counts the state's attempts on by
one. Reports ``read``, ``did``, ``ended``.
"""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from typing import Any

from leasekeeper import Keeper, LeasekeeperError
from leasekeeper.runs.run import Run
from leasekeeper.testing import failpoints
from tests.programs import orders_v1, orders_v2
from tests.programs.voice import options, say

STEPS = ("one", "two", "three", "four", "five", "six")


def did(step: str) -> None:
    """The effect of a step."""
    say("did", step=step)


def work(run: Run, told: dict[str, Any]) -> None:
    """Steps, each of which counts on, as far as this replica is to get."""
    kind: Any = orders_v2.OrderState if told["version"] == 2 else orders_v1.OrderState
    state = run.checkpoint("state", kind, write_version=told.get("pin"))
    say("read", state=None if state.value is None else state.value.told(), n=state.n)
    left = told.get("steps", len(STEPS))
    for step in STEPS:
        fresh = step not in {each.key for each in run.steps()}
        if fresh and not left:
            os.kill(os.getpid(), signal.SIGKILL)
        run.do(step, did, step)
        if fresh:
            left -= 1
            if state.value is None:
                state.put(kind.begun())
            else:
                state.put(state.value.counted())


def main() -> None:
    """One life of the run."""
    told = options()
    with Keeper(told["endpoint"], namespace=told["namespace"]) as keeper, ExitStack() as stack:
        if "kill_at" in told:
            stack.enter_context(failpoints.kill_at(told["kill_at"], on=keeper, nth=told.get("nth", 1)))
        orders_v2.DIES.append(bool(told.get("dies_migrating")))
        try:
            with keeper.run("order", id="1", ttl=told["ttl"], timeout=60, signer=None) as run:
                work(run, told)
        except LeasekeeperError as error:
            say("ended", error=type(error).__name__, text=str(error))
        else:
            say("ended", error=None)


if __name__ == "__main__":
    main()
