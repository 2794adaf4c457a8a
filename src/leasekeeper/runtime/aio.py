"""Runs a plan under asyncio, on whichever event loop calls.

The calls themselves go through classic grpc, whose threads do not belong to any loop: one keeper can be used from several
loops, one after the other or at once, and nothing is cached per loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from leasekeeper.protocol.plan import Call, Cause, Detach, Fault, Kind, Operation, Plan, Sleep, Wait, Watch
from leasekeeper.runtime.blocking import SLICE_S, jittered
from leasekeeper.runtime.signals import WatchFlag

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from leasekeeper.wire.engine import Attempt, Engine, Exchange
    from leasekeeper.wire.watch import WatchHub

__all__ = ["Asyncio"]

T = TypeVar("T")

# A plan that is abandoned with its loop gets no more than this many steps to hand its clean-up over.
ABANDON_STEPS = 50


class Asyncio:
    """The interpreter for coroutines. A cancellation is thrown into the plan, whose clean-up may still await."""

    def __init__(
        self,
        engine: Engine,
        hub: WatchHub,
        detach: Callable[[Callable[[], Plan[object]]], None],
        now: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._hub = hub
        self._detach = detach
        self._now = now

    async def run(self, plan: Plan[T]) -> T:
        """Run it to its end: its result, or what it raised."""
        try:
            operation = next(plan)
            while True:
                try:
                    result = await self._perform(operation)
                except GeneratorExit:
                    # The loop is gone or drops us: no await is possible any more.
                    self._abandon(plan)
                    raise
                except BaseException as error:  # noqa: BLE001 - a cancellation, too, has to reach the plan's clean-up
                    operation = plan.throw(error)
                else:
                    operation = plan.send(result)
        except StopIteration as done:
            value: T = done.value
            return value

    def _abandon(self, plan: Plan[T]) -> None:
        """Let the plan hand its clean-up to the background."""
        fault = Fault(Kind.NOT_SENT, Cause.CLOSED, "the event loop is gone")
        try:
            operation = plan.throw(GeneratorExit())
            for _ in range(ABANDON_STEPS):
                if isinstance(operation, Detach):
                    self._detach(operation.plan)
                    operation = plan.send(None)
                else:
                    operation = plan.throw(fault)
        except (StopIteration, GeneratorExit, Exception):  # noqa: BLE001 - nobody is left to be told
            return

    async def _perform(self, operation: Operation) -> Any:
        match operation:
            case Call():
                return await self._exchange(self._engine.exchange(operation))
            case Wait():
                return await self._wait(operation)
            case Watch():
                return WatchFlag(self._hub, operation.keys, operation.start_revision)
            case Detach():
                return self._detach(operation.plan)
            case Sleep():
                return await asyncio.sleep(jittered(operation.seconds))

    async def _exchange(self, exchange: Exchange) -> Message:
        try:
            attempt = next(exchange)
            while True:
                try:
                    reply = await self._attempt(attempt)
                except Fault as fault:
                    attempt = exchange.throw(fault)
                else:
                    attempt = exchange.send(reply)
        except StopIteration as done:
            result: Message = done.value
            return result

    async def _attempt(self, attempt: Attempt) -> Message:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Message | Fault] = loop.create_future()

        def settle(result: Message | Fault) -> None:
            if not answer.done():
                answer.set_result(result)

        def done(result: Message | Fault) -> None:
            try:
                loop.call_soon_threadsafe(settle, result)
            except RuntimeError:
                pass  # the loop was closed; whoever waited is gone

        cancel = attempt.start(done)
        try:
            result = await answer
        except BaseException:
            cancel()
            raise
        if isinstance(result, Fault):
            raise result
        return result

    async def _wait(self, operation: Wait) -> bool:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(woken.set)
            except RuntimeError:
                pass

        for signal in operation.signals:
            signal.subscribe(wake)
        try:
            while not any(signal.is_set() for signal in operation.signals):
                left_s = SLICE_S if operation.until is None else min(SLICE_S, operation.until - self._now())
                if left_s <= 0:
                    return False
                try:
                    await asyncio.wait_for(woken.wait(), left_s)
                except asyncio.TimeoutError:
                    continue
            return True
        finally:
            for signal in operation.signals:
                signal.unsubscribe(wake)
