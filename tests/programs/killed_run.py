"""A run that is killed in the middle of a step: `python killed_run.py ENDPOINT NAMESPACE HOLDER`.

The first life looks something up, asks something, and is killed by the call that charges, after the call went out. Whoever comes
after it finds an intent without an outcome, and no help declared: it stops in doubt, and exits with 78.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from leasekeeper import InDoubt, Keeper

TTL_S = 2


def fetch(order: str) -> dict[str, Any]:
    """Read the order."""
    return {"id": order, "cents": 4200}


def plan(prompt: str) -> str:
    """Ask somebody what to do."""
    return f"charge it ({prompt})"


def charge(cents: int) -> None:
    """The request goes out, and nobody hears the answer."""
    print(f"charging {cents}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def main(endpoint: str, namespace: str, holder: str) -> int:
    """One life."""
    with Keeper(endpoint, namespace=namespace, holder=holder) as keeper:
        try:
            with keeper.run("order", id="order-42", ttl=TTL_S, input={"order": "order-42"}, signer=None) as run:
                order = run.do("fetch", fetch, "order-42")
                run.memo("plan", plan, "what now?")
                run.do("charge", charge, order["cents"])
        except InDoubt:
            return 78
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
