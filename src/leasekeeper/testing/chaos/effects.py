"""The guarded resource in a process of its own, with a ledger that is on the disk before an answer goes out.

Run as ``python -m leasekeeper.testing.chaos.effects CONFIG``. It knows nothing of etcd or leases. Each write is given to the
*adapter*, which takes it or refuses it; one after the other, so that the ledger's order is the order in which the resource
decided. The usual one is the fence rule over one number in memory; somebody's own is named as ``module:attribute`` and is the
same that `leasekeeper.testing.assert_fenced` takes: ``write(resource, lease, value)``, or an object with such a method (a class
is called first). It refuses by StaleToken, or by returning False. Writes come twice, and late, as they do to a real resource.
A write that hangs, and a ledger that cannot be written, end this process, and with it the storm.
"""

from __future__ import annotations

import importlib
import json
import os
import socketserver
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from leasekeeper.clock import boottime
from leasekeeper.errors import ConfigError, StaleToken, StopWork
from leasekeeper.fencing import Admitted, admits
from leasekeeper.testing.trial import Target, Writer

__all__ = ["Fenced", "Ledger", "load_target"]

NAME = "effect"
LINE_MAX = 4096
# A write takes far less on any machine that can hold a lease.
WRITE_MAX_S = 30.0
WATCH_S = 0.5
FAILED = 3


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
    if not (module and attribute):
        raise ConfigError(field="target", value=named, expected="module:attribute, with the colon")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        return Target.of(found() if isinstance(found, type) else found, StaleToken)
    except (Exception, StopWork, SystemExit) as error:  # noqa: BLE001 - a module of somebody else's may do whatever it likes
        why = " ".join(f"{type(error).__name__}: {error}".split())
        expected = f"module:attribute of an adapter as assert_fenced takes it ({why})"
        raise ConfigError(field="target", value=named, expected=expected) from None


class Ledger:
    """Decides and writes down, one write after the other."""

    def __init__(self, path: Path, target: Target, zero_s: float) -> None:
        self._file = path.open("ab")
        self._target = target
        self._zero_s = zero_s
        self._turn = threading.Lock()
        self._number = 0
        self._since_s: float | None = None

    @property
    def busy_s(self) -> float:
        """For how long the target has been at its present write."""
        since_s = self._since_s
        return 0.0 if since_s is None else boottime() - since_s

    def write(self, request: dict[str, Any]) -> dict[str, Any]:
        """What became of a write; it is on the disk."""
        lease = Writer(str(request["holder"]), int(request["token"]), str(request["claim"]), NAME)
        work = str(request["work"])
        with self._turn:
            self._since_s = boottime()
            accepted, error = self._decide(lease, work)
            self._since_s = None
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
        except BaseException as error:  # noqa: BLE001 - the target is somebody else's: its failure is a fact of the ledger
            return False, f"{type(error).__name__}: {error}"[:200]


def serve(ledger: Ledger) -> socketserver.ThreadingTCPServer:
    """A TCP server on 127.0.0.1: one JSON line a write, one JSON line an answer, on one connection for each write."""

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline(LINE_MAX)
            if not line.endswith(b"\n"):
                return
            try:
                answer = ledger.write(json.loads(line))
            except OSError as error:
                # What was decided and is not written down can never be judged.
                end(f"the ledger cannot be written: {error}")
            with suppress(OSError):  # who asked may be dead
                self.wfile.write(json.dumps(answer).encode() + b"\n")

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session)
    server.daemon_threads = True
    return server


def end(why: str) -> NoReturn:
    """End this process at once, from whichever thread, and say why."""
    os.write(2, f"\n{why}\n".encode())
    os._exit(FAILED)


def watch(ledger: Ledger) -> None:
    """End this process when a write hangs: nothing that comes after it could be judged."""
    while True:
        time.sleep(WATCH_S)
        if ledger.busy_s > WRITE_MAX_S:
            end(f"a write did not return within {WRITE_MAX_S:g} s")


def main() -> None:
    """Serve until the process is ended."""
    config = json.loads(sys.argv[1])
    sys.path[:0] = config["path"]
    ledger = Ledger(Path(config["ledger"]), load_target(config["target"]), config["zero_s"])
    threading.Thread(target=watch, args=(ledger,), name="leasekeeper-chaos-watch", daemon=True).start()
    server = serve(ledger)
    port = Path(config["port"])
    draft = port.with_suffix(".new")
    draft.write_text(str(server.server_address[1]))
    draft.rename(port)
    server.serve_forever()


if __name__ == "__main__":
    main()
