"""Being told what happens to leases and runs: for logs, metrics, traces, and whatever else.

An observer is a callable that takes one event. Events are frozen records of facts, with times in seconds. `add` one and it
is told about every keeper of the process until it is removed::

    from leasekeeper import observe

    observe.add(print)

`Acquired`, `AcquireFailed` and `Released`, and what is told of runs but `RecordDelayed`, are told on the thread or event loop in
which it happens, before the call returns, so that an observer sees the caller's context; it must be quick and must not block.
Everything else is told on a thread of its own, in order, and may come late: nothing that an observer does holds up a heartbeat,
or a record. An exception that it raises is logged and goes no further.

========================  ===================================================================
`observe.log`             logs each event; added by default
`observe.metrics`         counters, gauges and histograms, for Prometheus and OpenTelemetry
`observe.tracing`         spans for acquiring, holding and runs, for OpenTelemetry
========================  ===================================================================
"""

from __future__ import annotations

import threading

from leasekeeper.errors import Misuse
from leasekeeper.observe.log import log_event
from leasekeeper.runtime.core import observers
from leasekeeper.runtime.events import (
    Acquired,
    AcquireFailed,
    AlertGiven,
    BeatMissed,
    CleanupFailed,
    Dropped,
    Event,
    Observer,
    RecordDelayed,
    Released,
    RunEnded,
    RunOpened,
    RunQuarantined,
    StateChanged,
    StepPassed,
)

__all__ = [
    "AcquireFailed",
    "Acquired",
    "AlertGiven",
    "BeatMissed",
    "CleanupFailed",
    "Dropped",
    "Event",
    "Observer",
    "RecordDelayed",
    "Released",
    "RunEnded",
    "RunOpened",
    "RunQuarantined",
    "StateChanged",
    "StepPassed",
    "add",
    "remove",
]

OBSERVERS_MAX = 64

_lock = threading.RLock()


def add(observer: Observer) -> None:
    """Tell ``observer`` of every event from now on. Adding one twice is as good as once; Misuse for more than 64."""
    if not callable(observer):
        raise Misuse(f"observe.add({observer!r}): expected something to call with an event")
    with _lock:
        if observer in observers:
            return
        if len(observers) >= OBSERVERS_MAX:
            raise Misuse(f"more than {OBSERVERS_MAX} observers: remove those that are not needed any more")
        # Replaced as a whole, so that whoever walks over it just now is not disturbed.
        observers[:] = [*observers, observer]


def remove(observer: Observer) -> None:
    """Tell ``observer`` nothing more; does nothing if it is not known. What is on its way to it may still arrive."""
    with _lock:
        observers[:] = [known for known in observers if known != observer]


# Both keepers import this module, so that what happens to leases is logged from the first one on.
add(log_event)
