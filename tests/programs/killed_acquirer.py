"""A process that kills itself with SIGKILL at one exact step of an acquire and release.

Options: endpoint, namespace, name, ttl, ``step``: the number of the operation, ``when``: ``before`` it is begun or ``after`` it
was done and before anybody heard of it. Reports ``step`` for each operation, and ``done`` if it outlived them all.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from leasekeeper import Keeper, NotAcquired, Timing
from leasekeeper.protocol.plan import Operation, Plan
from tests.programs.voice import options, say


def main() -> None:
    """Acquire and release, until the step at which to die."""
    given = options()
    keeper = Keeper(given["endpoint"], namespace=given["namespace"], timing=Timing(ttl=given["ttl"]))
    plain = keeper._core.blocking.run
    number = 0

    def die(when: str) -> None:
        if (number, when) == (given["step"], given["when"]):
            os.kill(os.getpid(), signal.SIGKILL)

    def perform(operation: Operation) -> Plan[Any]:
        return (yield operation)

    def run(plan: Plan[Any]) -> Any:
        """Run each operation of a plan as a plan of its own."""
        nonlocal number
        result: Any = None
        while True:
            try:
                operation = plan.send(result)
            except StopIteration as done:
                return done.value
            say("step", number=number, kind=type(operation).__name__)
            die("before")
            result = plain(perform(operation))
            die("after")
            number += 1

    keeper._core.blocking.run = run  # type: ignore[method-assign]
    try:
        keeper.acquire(given["name"], timeout=0.5).release()
    except NotAcquired:
        pass
    say("done", steps=number)
    os._exit(0)


if __name__ == "__main__":
    main()
