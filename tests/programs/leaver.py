"""A process that owns names and ends without giving anything back, in the way it is asked to, or waits to be killed.

Options: endpoint, namespace, names (each with a keeper of its own), ttl, ``end``: ``exit`` (the interpreter ends normally),
``_exit`` (at once), ``raise`` (an error nobody catches), ``wait`` (for a signal). Reports ``acquired`` with the tokens, and
while it waits ``proof``: when the last confirmed beat of each keeper was sent.
"""

from __future__ import annotations

import os
import time

from leasekeeper import Keeper, Timing
from tests.programs.voice import options, say


def main() -> None:
    """Own, and leave."""
    given = options()
    timing = Timing(ttl=given["ttl"])
    keepers = [Keeper(given["endpoint"], namespace=given["namespace"], timing=timing) for _ in given["names"]]
    leases = [keeper.acquire(name, timeout=20) for keeper, name in zip(keepers, given["names"], strict=True)]
    say("acquired", tokens=[lease.token for lease in leases])
    if given["end"] == "_exit":
        os._exit(0)
    if given["end"] == "raise":
        raise RuntimeError("on purpose")
    while given["end"] == "wait":
        say("proof", sent=[lease._session.proof_s for lease in leases])
        time.sleep(0.02)


if __name__ == "__main__":
    main()
