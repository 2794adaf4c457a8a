"""The guarded resource: a ledger in SQLite that asks the fence before it takes a write.

It knows nothing of etcd, leases or clocks. All that protects it is the token in each write.
"""

from __future__ import annotations

import json
import socketserver
import sqlite3
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leasekeeper.errors import StaleToken
from leasekeeper.guards.sqlite import Fence
from leasekeeper.testing.trial import Writer

__all__ = ["RESOURCE", "Ledger", "Written"]

RESOURCE = "ledger"


@dataclass(frozen=True, slots=True)
class Written:
    """One attempt to write, in order of arrival."""

    holder: str
    token: int
    accepted: bool


class _Server(socketserver.ThreadingTCPServer):
    """A thread for each connection; one that the end of the story or of its replica cuts short says nothing."""

    daemon_threads = True
    closing = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what went wrong, unless it was to be expected."""
        if not (self.closing or isinstance(sys.exc_info()[1], ConnectionError)):
            super().handle_error(request, client_address)


class Ledger:
    """A TCP server on 127.0.0.1: one JSON line a write, one JSON line an answer. Writes happen one at a time."""

    def __init__(self, home: Path, heard: Callable[[Written], None]) -> None:
        self._path = home / "ledger.sqlite"
        self._heard = heard
        self._turn = threading.Lock()
        self.attempts: list[Written] = []
        with sqlite3.connect(self._path) as connection:
            Fence.create(connection)
            connection.execute("CREATE TABLE entry (number INTEGER PRIMARY KEY, holder TEXT, token INTEGER)")
        connection.close()
        ledger = self

        class Session(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                line = self.rfile.readline(4096)
                if line:
                    self.wfile.write(json.dumps(ledger.write(json.loads(line))).encode() + b"\n")

        self._server = _Server(("127.0.0.1", 0), Session)
        threading.Thread(target=self._server.serve_forever, name="leasekeeper-demo-ledger", daemon=True).start()

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def write(self, request: dict[str, Any]) -> dict[str, Any]:
        """Decide and write in one transaction."""
        bearer = Writer(str(request["holder"]), int(request["token"]), str(request["claim"]), RESOURCE)
        with self._turn:
            answer = self._transaction(bearer)
            attempt = Written(bearer.holder, bearer.token, bool(answer["accepted"]))
            self.attempts.append(attempt)
        self._heard(attempt)
        return answer

    def _transaction(self, bearer: Writer) -> dict[str, Any]:
        connection = sqlite3.connect(self._path)
        try:
            with connection:
                Fence(connection).admit(RESOURCE, bearer)
                connection.execute("INSERT INTO entry (holder, token) VALUES (?, ?)", (bearer.holder, bearer.token))
        except StaleToken as stale:
            return {"accepted": False, "highest": stale.highest}
        finally:
            connection.close()
        return {"accepted": True}

    def close(self) -> None:
        """Stop listening."""
        self._server.closing = True
        self._server.shutdown()
        self._server.server_close()

    def backwards(self) -> int:
        """Accepted writes of an older owner after a newer one: two owners at once. Counted from the table itself."""
        connection = sqlite3.connect(self._path)
        try:
            tokens = [token for (token,) in connection.execute("SELECT token FROM entry ORDER BY number")]
        finally:
            connection.close()
        return sum(later < max(tokens[:index]) for index, later in enumerate(tokens) if index)
