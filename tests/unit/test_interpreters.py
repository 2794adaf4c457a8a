"""The two interpreters of plans, as far as they are the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from leasekeeper.errors import NotAcquired
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.plan import RANGE, Call, Fault, Kind, Plan
from leasekeeper.runtime.aio import Asyncio
from leasekeeper.runtime.blocking import Blocking

NOTHING: Any = None


class Refusing:
    """In an engine's place: every call fails."""

    attempts = 0

    def exchange(self, *_: object) -> Any:
        """No attempt, and a fault."""
        yield from range(self.attempts)
        raise Fault(Kind.RETRY, text="an inner matter")


def in_a_thread(plan: Plan[None]) -> None:
    """Run a plan as Keeper does."""
    Blocking(Refusing(), NOTHING, NOTHING, lambda: 0.0).run(plan)  # type: ignore[arg-type]


def on_a_loop(plan: Plan[None]) -> None:
    """Run a plan as AsyncKeeper does."""
    asyncio.run(Asyncio(Refusing(), NOTHING, NOTHING, lambda: 0.0).run(plan))  # type: ignore[arg-type]


def turned_down() -> Plan[None]:
    """Comes to its end after a call that failed, and has something else to say."""
    try:
        yield Call(RANGE, pb.RangeRequest())
    except Fault:
        pass
    raise NotAcquired("somebody owns it")


@pytest.mark.parametrize("run", [in_a_thread, on_a_loop])
def test_what_a_plan_raises_does_not_drag_inner_faults_along(run: Callable[[Plan[None]], None]) -> None:
    """An error that a plan raises after a fault that it had dealt with is shown to users alone, without that fault."""
    with pytest.raises(NotAcquired) as caught:
        run(turned_down())
    assert caught.value.__context__ is None
