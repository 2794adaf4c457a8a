"""The guarded resource in a process of its own, with a ledger that is on the disk before an answer goes out.

Run as ``python -m leasekeeper.testing.chaos.effects CONFIG``. It knows nothing of etcd or leases. Each write is given to the
*adapter*, which takes it or refuses it; one after the other, so that the ledger's order is the order in which the resource
decided. The usual one is the fence rule over one number in memory; somebody's own is named as ``module:attribute`` and is the
same that `leasekeeper.testing.assert_fenced` takes: ``write(resource, lease, value)``, or an object with such a method (a class
is called first). It refuses by StaleToken, or by returning False. Writes come twice, and late, as they do to a real resource.
"""

from __future__ import annotations

import importlib
import json
import os
import socketserver
import sys
import threading
from pathlib import Path
from typing import Any

from leasekeeper.clock import boottime
from leasekeeper.errors import ConfigError, StaleToken
from leasekeeper.fencing import Admitted, admits
from leasekeeper.testing.trial import Target, Writer

__all__ = ["Fenced", "Ledger", "load_target"]

NAME = "effect"
LINE_MAX = 4096


class Fenced:
    """The usual resource: remembers the highest token and its claim."""

    def __init__(self) -> None:
        self._highest: Admitted | None = None

    def write(self, resource: str, lease: Writer, value: str) -> None:
        """Take it, or raise StaleToken."""
        token = lease.check()
        if not admits(self._highest, token, lease.claim):
            assert self._highest is not None
            raise StaleToken(token=token, highest=self._highest.token, holder=self._highest.holder)
        self._highest = Admitted(token, lease.claim, lease.holder)


def load_target(named: str) -> Target:
    """The adapter of a name; "" is the usual one. ConfigError for a name that leads to nothing that can write."""
    if not named:
        return Target.of(Fenced(), StaleToken)
    module, _, attribute = named.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        return Target.of(found() if isinstance(found, type) else found, StaleToken)
    except (ImportError, AttributeError, TypeError, ValueError, ConfigError) as error:
        expected = f"module:attribute of an adapter as assert_fenced takes it ({error})"
        raise ConfigError(field="target", value=named, expected=expected) from None


class Ledger:
    """Decides and writes down, one write after the other."""

    def __init__(self, path: Path, target: Target, zero_s: float) -> None:
        self._file = path.open("ab")
        self._target = target
        self._zero_s = zero_s
        self._turn = threading.Lock()
        self._number = 0

    def write(self, request: dict[str, Any]) -> dict[str, Any]:
        """What became of a write; it is on the disk."""
        lease = Writer(str(request["holder"]), int(request["token"]), str(request["claim"]), NAME)
        work = str(request["work"])
        with self._turn:
            accepted, error = self._decide(lease, work)
            self._number += 1
            line = {
                "number": self._number,
                "at_s": boottime() - self._zero_s,
                "holder": lease.holder,
                "token": lease.token,
                "claim": lease.claim,
                "work": work,
                "gate_s": float(request["gate_s"]),
                "accepted": accepted,
                "error": error,
            }
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        return {"accepted": accepted, "error": error}

    def close(self) -> None:
        """No more writes."""
        self._file.close()

    def _decide(self, lease: Writer, work: str) -> tuple[bool, str]:
        try:
            return self._target.write(NAME, lease, work) is not False, ""
        except StaleToken:
            return False, ""
        except Exception as error:  # noqa: BLE001 - the target is somebody else's: its failure is a fact of the ledger
            return False, f"{type(error).__name__}: {error}"[:200]


def serve(ledger: Ledger) -> socketserver.ThreadingTCPServer:
    """A TCP server on 127.0.0.1: one JSON line a write, one JSON line an answer, on one connection for each write."""

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline(LINE_MAX)
            if line.endswith(b"\n"):
                self.wfile.write(json.dumps(ledger.write(json.loads(line))).encode() + b"\n")

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session)
    server.daemon_threads = True
    return server


def main() -> None:
    """Serve until the process is ended."""
    config = json.loads(sys.argv[1])
    sys.path[:0] = config["path"]
    ledger = Ledger(Path(config["ledger"]), load_target(config["target"]), config["zero_s"])
    server = serve(ledger)
    port = Path(config["port"])
    draft = port.with_suffix(".new")
    draft.write_text(str(server.server_address[1]))
    draft.rename(port)
    server.serve_forever()


if __name__ == "__main__":
    main()
