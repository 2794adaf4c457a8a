"""The outside world as a process of its own: ``python -m leasekeeper.testing.outside --ledger FILE``.

Prints its address once it serves, and serves until it is ended. Started again on the same ledger it goes on where it was.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from leasekeeper.testing import ports
from leasekeeper.testing.outside.server import OutsideServer

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m leasekeeper.testing.outside", description=__doc__)
    parser.add_argument("--ledger", type=Path, required=True, help="the file that everything is written down in")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0 draws a free one")
    parser.add_argument("--key-ttl-ms", type=int, default=0, help="when payments forget a key; 0 is never")
    given = parser.parse_args(arguments)
    with OutsideServer(ports.listener(given.port), given.ledger, key_ttl_ms=given.key_ttl_ms) as server:
        host, port = server.server_address[:2]
        print(f"http://{host!s}:{port}", flush=True)  # noqa: T201 -- a program
        server.serve_forever()


if __name__ == "__main__":
    main()
