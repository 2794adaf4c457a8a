"""Runs a plan under asyncio, on whichever event loop calls.

The calls themselves go through classic grpc, whose threads do not belong to any loop: one keeper can be used from several
loops, one after the other or at once, and nothing is cached per loop.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from leasekeeper.errors import StopWork
from leasekeeper.protocol.plan import Call, Cause, Detach, Fault, Kind, Plan, Signal, Sleep, Wait, Watch
from leasekeeper.runtime.blocking import SLICE_S, jittered
from leasekeeper.runtime.signals import WatchFlag
from leasekeeper.wire.engine import Attempt
from leasekeeper.wire.standing import stand_by
from leasekeeper.wire.worker import begin

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from leasekeeper.wire.engine import Engine, Exchange, Outcome, Step
    from leasekeeper.wire.watch import WatchHub

__all__ = ["Asyncio", "aside", "on_thread"]

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
        *,
        closing: Signal | None = None,
    ) -> None:
        self._engine = engine
        self._hub = hub
        self._detach = detach
        self._now = now
        self._closing = () if closing is None else (closing,)

    async def run(self, plan: Plan[T]) -> T:
        """Run it to its end: its result, or what it raised."""
        abandon = partial(self._abandon, plan)
        struck: list[BaseException] = []
        result: Any = None
        try:
            operation = next(plan)
            while True:
                try:
                    result = (
                        await self._exchange(self._engine.exchange(operation), abandon)
                        if isinstance(operation, Call)
                        else await self._perform(operation, abandon)
                    )
                except GeneratorExit:
                    # Dropped together with its loop: no await is possible any more.
                    self._abandon(plan)
                    raise
                except BaseException as error:  # noqa: BLE001 - a cancellation, too, has to reach the plan's clean-up
                    struck.append(error)
                # Not in the except clause: what the plan raises next would carry the error as its context, for all to see.
                operation = plan.throw(struck.pop()) if struck else plan.send(result)
        except StopIteration as done:
            value: T = done.value
            return value

    def _abandon(self, plan: Plan[T]) -> None:
        """Let the plan hand its clean-up to the background. Its loop is gone; called from any thread, also twice."""
        fault = Fault(Kind.NOT_SENT, Cause.CLOSED, "the event loop is gone")
        try:
            # Not GeneratorExit: that closes the plans that a plan delegates to, and a closed plan cannot hand anything over.
            operation = plan.throw(asyncio.CancelledError())
            for _ in range(ABANDON_STEPS):
                if isinstance(operation, Detach):
                    self._detach(operation.plan)
                    operation = plan.send(None)
                else:
                    operation = plan.throw(fault)
        except (asyncio.CancelledError, StopWork, Exception):  # noqa: BLE001 - nobody is left to be told
            return

    async def _perform(self, operation: Sleep | Watch | Wait | Detach, abandon: Callable[[], None]) -> Any:
        match operation:
            case Wait():
                return await self._wait(operation, abandon)
            case Watch():
                return WatchFlag(self._hub, operation.keys, operation.start_revision)
            case Detach():
                return self._detach(operation.plan)
            case Sleep():
                # Cut short when the keeper is closed: the next call then says so.
                return await self._wait(Wait(self._closing, self._now() + jittered(operation.seconds)), abandon)

    async def _exchange(self, exchange: Exchange, abandon: Callable[[], None]) -> Message:
        try:
            attempt = next(exchange)
            while True:
                if isinstance(attempt, Attempt):
                    stand_by(attempt.connection)
                result = await _answer(attempt, abandon)
                attempt = exchange.throw(result) if isinstance(result, Fault) else exchange.send(result)
        except StopIteration as done:
            reply: Message = done.value
            return reply

    async def _wait(self, operation: Wait, abandon: Callable[[], None]) -> bool:
        """Not by `asyncio.wait_for`: before Python 3.12 it loses a cancellation that comes together with the signal."""
        loop = asyncio.get_running_loop()
        bell = _Bell(loop)
        # Signals live long: one that held the waiter would keep a task of a closed loop from ever being collected.
        wake = partial(_wake, loop, weakref.ref(bell), abandon)
        for signal in operation.signals:
            signal.subscribe(wake)
        try:
            while not any(signal.is_set() for signal in operation.signals):
                left_s = SLICE_S if operation.until is None else min(SLICE_S, operation.until - self._now())
                if left_s <= 0:
                    return False
                await bell.rung(left_s)
            return True
        finally:
            for signal in operation.signals:
                signal.unsubscribe(wake)


async def _answer(attempt: Step, abandon: Callable[[], None]) -> Message | Fault | None:
    """What became of an attempt; cancelled with whoever waits for it."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Message | Fault | None] = loop.create_future()

    def settle(outcome: Outcome) -> None:
        if not answer.done():
            answer.set_result(outcome())

    def done(outcome: Outcome) -> None:
        try:
            loop.call_soon_threadsafe(settle, outcome)
        except RuntimeError:
            abandon()  # the loop was closed

    cancel = attempt.start(done)
    try:
        return await answer
    except BaseException:
        cancel()
        raise


class _Bell:
    """What one waiting coroutine listens to. Its timer is what keeps the coroutine alive meanwhile."""

    __slots__ = ("__weakref__", "_loop", "_news")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._news: asyncio.Future[None] = loop.create_future()

    def ring(self) -> None:
        """Wake the coroutine; on its loop."""
        if not self._news.done():
            self._news.set_result(None)

    async def rung(self, timeout_s: float) -> None:
        """Until it rings or the time is over."""
        self._news = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, self.ring)
        try:
            await self._news
        finally:
            timer.cancel()


def _wake(loop: asyncio.AbstractEventLoop, ref: weakref.ref[_Bell], abandon: Callable[[], None]) -> None:
    bell = ref()
    try:
        if bell is not None:
            loop.call_soon_threadsafe(bell.ring)
    except RuntimeError:
        abandon()  # the loop was closed


async def aside(call: Callable[[], T], name: str) -> T:
    """What a call that blocks comes to, made on a thread of its own: the loop goes on. Cancelling it stops the waiting only."""
    came_to: list[T] = []
    struck: list[BaseException] = []

    def run() -> None:
        try:
            came_to.append(call())
        except BaseException as error:  # noqa: BLE001 - whoever waits is told
            struck.append(error)

    await on_thread(run, name)
    if struck:
        raise struck.pop()
    return came_to.pop()


async def on_thread(call: Callable[[], None], name: str) -> None:
    """Wait for a call that blocks, on a thread of its own: the loop's pool may be full of what users block it with.

    Cancelling it stops the waiting only.
    """
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def run() -> None:
        try:
            call()
        finally:
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:
                pass  # the loop was closed; nobody waits any more

    begin(run, name)
    await done.wait()
