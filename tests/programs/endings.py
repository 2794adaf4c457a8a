"""Programs that end while they hold leases, in every way that a program may end. None of them closes its keeper.

Options: scenario, endpoint, namespace, ttl.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from typing import Any

from leasekeeper import AsyncKeeper, Keeper, Lease, Timing
from tests.programs.voice import options, say

KEPT: list[Any] = []
Given = dict[str, Any]


def acquire(given: Given, name: str = "n") -> Lease:
    """A lease that is told of; nothing but the lease refers to its keeper."""
    keeper = Keeper(given["endpoint"], namespace=given["namespace"], timing=Timing(ttl=given["ttl"]))
    lease = keeper.acquire(name, timeout=10)
    say("acquired", key=lease.key)
    return lease


def returns(given: Given) -> None:
    """Comes to its end with a lease in a local variable, which goes first."""
    lease = acquire(given)
    say("ending", token=lease.check())


def exits_with_a_global(given: Given) -> None:
    """sys.exit, with a lease that lives as long as the interpreter."""
    KEPT.append(acquire(given))
    sys.exit(0)


def exits_with_a_cycle(given: Given) -> None:
    """sys.exit, with a lease that only the last garbage collection will find."""
    cycle: list[Any] = [acquire(given)]
    cycle.append(cycle)
    del cycle
    sys.exit(0)


def raises(given: Given) -> None:
    """An error of the program's own, with the lease in its traceback."""
    lease = acquire(given)
    raise KeyError("the program's own error", lease.name)


def exits_while_others_wait(given: Given) -> None:
    """sys.exit, while daemon threads wait for the name."""
    KEPT.append(acquire(given))
    for _ in range(3):
        threading.Thread(target=acquire, args=(given,), daemon=True).start()
    keeper = Keeper(given["endpoint"], namespace=given["namespace"])
    while len(keeper.claims("n")) < 4:
        time.sleep(0.01)
    sys.exit(0)


def exits_after_asyncio(given: Given) -> None:
    """asyncio.run ends with a lease held and a task waiting."""

    async def main() -> None:
        keeper = AsyncKeeper(given["endpoint"], namespace=given["namespace"], timing=Timing(ttl=given["ttl"]))
        lease = await keeper.acquire("n", timeout=10)
        say("acquired", key=lease.key)
        KEPT.append((keeper, lease, asyncio.ensure_future(keeper.acquire("n", timeout=60))))
        for _ in range(1000):
            if len(await keeper.claims("n")) == 2:
                return

    asyncio.run(main())


def exits_while_etcd_is_away(given: Given) -> None:
    """sys.exit, with an etcd that has stopped answering; the test sees to that before it says go."""
    KEPT.append(acquire(given))
    say("ready")
    sys.stdin.readline()
    sys.exit(0)


def is_terminated(given: Given) -> None:
    """SIGTERM with its default action."""
    KEPT.append(acquire(given))
    os.kill(os.getpid(), signal.SIGTERM)


def loses_a_thread(given: Given) -> None:
    """A thread dies of an error and drops its lease; the program goes on (C18)."""

    def work() -> None:
        lease = acquire(given)
        raise KeyError("the thread's own error", lease.name)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    del thread
    say("thread_died")
    sys.stdin.readline()


SCENARIOS = {
    f.__name__: f
    for f in (
        returns,
        exits_with_a_global,
        exits_with_a_cycle,
        raises,
        exits_while_others_wait,
        exits_after_asyncio,
        exits_while_etcd_is_away,
        is_terminated,
        loses_a_thread,
    )
}

if __name__ == "__main__":
    SCENARIOS[options()["scenario"]](options())
