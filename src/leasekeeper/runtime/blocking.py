"""Runs a plan in this thread."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import TYPE_CHECKING, Any, TypeVar

from leasekeeper.protocol.plan import Call, Detach, Plan, Signal, Sleep, Wait, Watch
from leasekeeper.runtime.mailbox import Mailbox
from leasekeeper.runtime.signals import WatchFlag
from leasekeeper.wire.engine import block

if TYPE_CHECKING:
    from leasekeeper.wire.engine import Engine
    from leasekeeper.wire.route import Route
    from leasekeeper.wire.watch import WatchHub

__all__ = ["Blocking", "jittered"]

T = TypeVar("T")

# Waits look at the clock at least this often: the lock's own timeout stands still while the machine is suspended.
SLICE_S = 5.0


def jittered(seconds: float) -> float:
    """Half of it for certain, the rest by chance."""
    return seconds * (0.5 + random.random() / 2)


class Blocking:
    """The interpreter for threads. Whatever interrupts an operation is thrown into the plan, once.

    ``route`` is which way its calls take; ``closing`` ends its sleeps.
    """

    def __init__(
        self,
        engine: Engine,
        hub: WatchHub,
        detach: Callable[[Callable[[], Plan[object]]], None],
        now: Callable[[], float],
        *,
        route: Route | None = None,
        closing: Signal | None = None,
    ) -> None:
        self._engine = engine
        self._hub = hub
        self._detach = detach
        self._now = now
        self._route = route
        self._closing = () if closing is None else (closing,)

    def run(self, plan: Plan[T]) -> T:
        """Run it to its end: its result, or what it raised."""
        # In a list, and taken out of it: an exception in a variable of a frame that it passes through is garbage for long,
        # and with it everything that those frames held.
        struck: list[BaseException] = []
        while True:
            try:
                return self._drive(plan, struck)
            except BaseException as error:
                if inspect.getgeneratorstate(plan) == inspect.GEN_CLOSED:
                    raise
                # Ctrl-C, between two operations: the plan has not ended and has yet to hear of it.
                struck[:] = [error]

    def _drive(self, plan: Plan[T], struck: list[BaseException]) -> T:
        result: Any = None
        try:
            operation = plan.throw(struck.pop()) if struck else next(plan)
            while True:
                try:
                    result = (
                        block(self._engine.exchange(operation, self._route))
                        if isinstance(operation, Call)
                        else self._perform(operation)
                    )
                except BaseException as error:  # noqa: BLE001 - Ctrl-C, too, has to reach the plan's clean-up
                    struck.append(error)
                # Not in the except clause: what the plan raises next would carry the error as its context, for all to see.
                operation = plan.throw(struck.pop()) if struck else plan.send(result)
        except StopIteration as done:
            value: T = done.value
            return value

    def _perform(self, operation: Sleep | Watch | Wait | Detach) -> Any:
        match operation:
            case Wait():
                return self._wait(operation)
            case Watch():
                return WatchFlag(self._hub, operation.keys, operation.start_revision)
            case Detach():
                return self._detach(operation.plan)
            case Sleep():
                # Cut short when the keeper is closed: the next call then says so.
                return self._wait(Wait(self._closing, self._now() + jittered(operation.seconds)))

    def _wait(self, operation: Wait) -> bool:
        # Not an Event: Ctrl-C in the middle of its Python code can leave its lock taken, and whoever rings then hangs.
        bell: Mailbox[None] = Mailbox()
        ring = partial(bell.put, None)
        try:
            for signal in operation.signals:
                signal.subscribe(ring)
            while not any(signal.is_set() for signal in operation.signals):
                left_s = SLICE_S if operation.until is None else min(SLICE_S, operation.until - self._now())
                if left_s <= 0:
                    return False
                try:
                    bell.get(timeout=left_s)
                except Empty:
                    pass
            return True
        finally:
            for signal in operation.signals:
                signal.unsubscribe(ring)
