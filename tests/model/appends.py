"""What tests of adding to a run on the model share: what it can be struck with, and what came of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leasekeeper.protocol import messages as m
from leasekeeper.protocol.append import Appended, Entry
from leasekeeper.protocol.plan import Call, Fault, Kind, Plan
from tests.model.runs import Owner, entry
from tests.model.world import Strike


def lost() -> Fault:
    """A reply that never came."""
    return Fault(Kind.UNKNOWN, text="the reply was lost", operation="Txn")


def unsent() -> Fault:
    """A connection that could not be made."""
    return Fault(Kind.NOT_SENT, text="no connection", operation="Txn")


STRIKES = [
    pytest.param(Strike(KeyboardInterrupt, "none"), id="Ctrl-C before it is sent"),
    pytest.param(Strike(KeyboardInterrupt, "now"), id="Ctrl-C after it was done"),
    pytest.param(Strike(KeyboardInterrupt, "late"), id="Ctrl-C and it comes late"),
    pytest.param(Strike(asyncio.CancelledError, "now"), id="cancelled after it was done"),
    pytest.param(Strike(lost, "none"), id="the request was lost"),
    pytest.param(Strike(lost, "now"), id="the reply was lost"),
    pytest.param(Strike(lost, "late"), id="the request comes late"),
    pytest.param(Strike(unsent, "none"), id="no connection"),
]


def texts(owner: Owner) -> list[str]:
    """The notes that are recorded, in order."""
    return [receipt.step for receipt in owner.records() if receipt.kind == "note"]


def calls(run: Any) -> int:
    """How many calls a plan made."""
    return sum(isinstance(operation, Call) for operation in run.trace)


def result(run: Any) -> Appended:
    """What an append that succeeded came to."""
    assert isinstance(run.result, Appended)
    return run.result


def go_on(owner: Owner, plan: Plan[Any], operation: Any) -> Any:
    """Perform what a plan wants from here on, to its end: its result."""
    try:
        while True:
            operation = plan.send(owner.client._perform(operation))
    except StopIteration as done:
        return done.value


def writes(owner: Owner, key: bytes, value: bytes, **more: Any) -> Entry:
    """Something that also writes a key, which must not be there."""
    return entry(owner, value.decode(), puts=lambda _: (m.put(key, value),), expects=((key, 0),), **more)
