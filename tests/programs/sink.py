"""A resource outside etcd that applies the fence rule: a ledger on disk, each line synced before its writer is answered.

Listens on a free port of 127.0.0.1 and reports it. A writer sends JSON lines ``{"token", "claim", "value"}`` and gets
``{"accepted", "highest"}`` for each. The ledger keeps every attempt, the refused ones too.
"""

from __future__ import annotations

import json
import os
import socketserver
import threading
from typing import IO, Any

from leasekeeper.clock import boottime
from leasekeeper.fencing import Admitted, admits
from tests.programs.voice import options, say


class Ledger:
    """What was written, and the highest owner seen; one attempt at a time."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._highest: Admitted | None = None

    def attempt(self, token: int, claim: str, value: Any) -> dict[str, Any]:
        """Accept or refuse one write; it is on disk when this returns."""
        with self._lock:
            accepted = admits(self._highest, token, claim)
            if accepted:
                self._highest = Admitted(token, claim)
            entry = {"at": boottime(), "token": token, "claim": claim, "value": value, "accepted": accepted}
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            return {"accepted": accepted, "highest": self._highest.token if self._highest else 0}


def main() -> None:
    """Serve until killed."""
    with open(options()["ledger"], "a", encoding="utf-8") as file:
        ledger = Ledger(file)

        class Writer(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    wish = json.loads(line)
                    answer = ledger.attempt(wish["token"], wish["claim"], wish["value"])
                    self.wfile.write(json.dumps(answer).encode() + b"\n")

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

        with Server(("127.0.0.1", 0), Writer) as server:
            say("listening", port=server.server_address[1])
            server.serve_forever()


if __name__ == "__main__":
    main()
