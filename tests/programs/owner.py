"""A replica: waits for a name, then writes to the sink again and again, each time through the gate, until told to end.

Reports ``waiting``, ``acquired``, ``state`` changes, each ``wrote`` or ``refused`` write, ``lost``, ``released``,
``interrupted`` by Ctrl-C, ``stopping`` on SIGTERM. On stdin: ``release`` ends the work and gives the name back.

Options: endpoint, namespace, name, ttl, timeout (or none), sink (a port, or none), every_s between writes; ``freeze``: stop
this very process (SIGSTOP) once, at its third write, ``before_gate`` or ``after_gate``; ``finish_s``: on SIGTERM the work
takes so long to stop before the name is released.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from leasekeeper import Keeper, Lease, LeaseLost, NotAcquired, Timing
from tests.programs.voice import options, say

FREEZE_AT = 3


class Sink:
    """The connection to the sink, or a write to nowhere when there is none."""

    def __init__(self, port: int | None) -> None:
        self._file = None if port is None else socket.create_connection(("127.0.0.1", port)).makefile("rw")

    def write(self, token: int, claim: str, value: Any) -> bool:
        """One write: whether it was accepted."""
        if self._file is None:
            return True
        self._file.write(json.dumps({"token": token, "claim": claim, "value": value}) + "\n")
        self._file.flush()
        accepted: bool = json.loads(self._file.readline())["accepted"]
        return accepted


def freeze_once(at: str | None) -> Callable[[str, int], None]:
    """What stops this process when the given point is reached for the first time at the given write."""

    def point(name: str, number: int) -> None:
        if name == at and number == FREEZE_AT:
            say("freezing", point=name)
            os.kill(os.getpid(), signal.SIGSTOP)
            say("thawed")

    return point


def work(lease: Lease, given: dict[str, Any], ending: threading.Event) -> None:
    """Write until told to end or until the gate says that it is over."""
    sink = Sink(given.get("sink"))
    point = freeze_once(given.get("freeze"))
    number = 0
    while not ending.wait(given.get("every_s", 0.1)):
        number += 1
        point("before_gate", number)
        token = lease.wait()
        point("after_gate", number)
        accepted = sink.write(token, lease.claim, number)
        say("wrote" if accepted else "refused", number=number, token=token)


def main() -> None:
    """Live the life of a replica."""
    given = options()
    ending = threading.Event()

    def on_term(*_: object) -> None:
        say("stopping")
        time.sleep(given.get("finish_s", 0.0))
        ending.set()

    def listen() -> None:
        if sys.stdin.readline() == "release\n":
            ending.set()

    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=on_term, daemon=True).start())
    threading.Thread(target=listen, daemon=True).start()
    timing = Timing(ttl=given["ttl"], max_hold=given.get("max_hold"))
    with Keeper(given["endpoint"], namespace=given["namespace"], timing=timing) as keeper:
        say("waiting", holder=keeper._core.ctx.holder)
        try:
            with keeper.lease(given["name"], timeout=given.get("timeout")) as lease:
                lease.subscribe(lambda state: say("state", state=state.value))
                say("acquired", token=lease.token, claim=lease.claim, key=lease.key, lease_id=lease.lease_id)
                work(lease, given, ending)
                say("releasing")
            say("released")
        except LeaseLost as error:
            say("lost", reason=error.reason)
        except NotAcquired as error:
            say("not_acquired", text=str(error))
        except KeyboardInterrupt:
            say("interrupted")
    say("closed")


if __name__ == "__main__":
    main()
