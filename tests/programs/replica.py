"""A process that works on runs, one replica beside others: charges each order once, at a till that knows no keys.

Options: endpoint, namespace, url (of the outside world), ttl, concurrency, restarts, aio; ``poison``: the id of a run that kills
whoever goes on with it, as long as the file ``cured`` is not there; ``run``: work until Ctrl-C. Reports ``ready``, ``alert``;
ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from leasekeeper import AsyncKeeper, Keeper
from leasekeeper.runs.aio import AsyncRun
from leasekeeper.runs.run import Run
from leasekeeper.testing.outside import call
from tests.programs.voice import options, say

__all__ = ["acharge", "charge", "main"]


def charge(url: str, order: str) -> Any:
    """Charge an order; charged twice if it is asked for twice."""
    return call(url, "POST", "/till/charges", {"order": order, "amount_cents": 999})["id"]


async def acharge(url: str, order: str) -> Any:
    """The same under asyncio."""
    return await asyncio.to_thread(charge, url, order)


class Replica:
    """What the test asked for."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._url = told["url"]
        self._poison = told.get("poison")
        self._cured = Path(told.get("cured", "/nonexistent"))
        self.how = {
            "every": 0.2,
            "ttl": told["ttl"],
            "concurrency": told.get("concurrency", 1),
            "restarts": told.get("restarts", 10),
            "signer": None,
            "alert": lambda alert: say("alert", kind=alert.kind, run=alert.run),
        }

    def order(self, run: Run) -> None:
        """The workflow."""
        self._live_or_die(run.id)
        run.do("charge", charge, self._url, run.id)

    async def aorder(self, run: AsyncRun) -> None:
        """The same under asyncio."""
        self._live_or_die(run.id)
        await run.do("charge", acharge, self._url, run.id)

    def _live_or_die(self, id_: str) -> None:
        if id_ == self._poison and not self._cured.exists():
            os.kill(os.getpid(), signal.SIGKILL)


async def under_asyncio(keeper: AsyncKeeper, replica: Replica) -> None:
    """Work until stdin ends."""
    async with keeper, keeper.worker({"order": replica.aorder}, **replica.how):
        say("ready")
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    """Work until stdin ends."""
    told = options()
    replica = Replica(told)
    if told.get("aio"):
        asyncio.run(under_asyncio(AsyncKeeper(told["endpoint"], namespace=told["namespace"]), replica))
        return
    keeper = Keeper(told["endpoint"], namespace=told["namespace"])
    if told.get("run"):
        say("ready")
        keeper.worker({"order": replica.order}, **replica.how).run()
        return
    with keeper, keeper.worker({"order": replica.order}, **replica.how):
        say("ready")
        sys.stdin.read()


if __name__ == "__main__":
    main()
