"""How a program of the tests speaks: JSON lines on stdout, each with the time of the machine's common clock."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from leasekeeper.clock import boottime

_lock = threading.Lock()


def options() -> dict[str, Any]:
    """What the test asked for."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def say(event: str, **facts: Any) -> None:
    """Report something now."""
    with _lock:
        print(json.dumps({"event": event, "at": boottime(), **facts}), flush=True)
