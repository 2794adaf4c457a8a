"""Running a coroutine under a lease: held at its next await while authority cannot be proven, cancelled when it is over.

The coroutine gets a task of its own. Each time before it goes on from an await it passes a gate. What the gate or the loop
raises there is raised in the coroutine, so that a cancellation, whoever it comes from, finds it as it would without a gate:
its clean-up runs and may await. A coroutine that swallows the cancellation and goes on without a lease is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

from leasekeeper.errors import LeaseLost

__all__ = ["Supervised"]

T = TypeVar("T")

# So long may the clean-up of a cancelled coroutine await; at its first await after that it is closed.
CLEAN_UP_S = 5.0


class _Expelled(BaseException):
    """The coroutine went on long after its cancellation. Ends it whatever it catches."""


class Supervised:
    """One run of a coroutine under a lease.

    ``passes`` tells whether work may go on now, ``wait`` waits until it may (LeaseLost: never again). ``ended`` is True
    once the coroutine was cancelled because the lease is over; ``outside`` is the cancellation that came from elsewhere.
    """

    def __init__(
        self, coro: Coroutine[Any, Any, T], *, passes: Callable[[], bool], wait: Callable[[], Awaitable[object]]
    ) -> None:
        self._coro = coro
        self._passes = passes
        self._wait = wait
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._patience_over = False
        self.ended = False
        self.outside: asyncio.CancelledError | None = None

    async def finish(self) -> Any:
        """Run it to its end, however it comes: its result, or what it raised."""
        self._task = task = asyncio.ensure_future(self._run())
        try:
            while not task.done():
                try:
                    await asyncio.wait({task})
                except asyncio.CancelledError as error:
                    self.outside = error
                    task.cancel()
            return task.result()
        except _Expelled:
            raise self.outside or asyncio.CancelledError from None
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def end(self) -> None:
        """The lease is over: cancel the coroutine, once. On the event loop only."""
        if self.ended:
            return
        self.ended = True
        task = self._task or asyncio.current_task()  # an eager task runs before it is known
        assert task is not None
        task.cancel()
        self._timer = asyncio.get_running_loop().call_later(CLEAN_UP_S, self._lose_patience, task)

    def _lose_patience(self, task: asyncio.Task[Any]) -> None:
        self._patience_over = True
        task.cancel()

    async def _run(self) -> Any:
        return await _Gated(self._coro, self._gate)

    def _gate(self) -> Awaitable[object] | None:
        """None while the way is free, else what to await first."""
        if self._patience_over:
            raise _Expelled
        return None if self.ended or self._passes() else self._hold()

    async def _hold(self) -> None:
        try:
            await self._wait()
        except LeaseLost:
            self.end()
            await asyncio.sleep(0)  # where the cancellation strikes


class _Gated(Awaitable[T]):
    """A coroutine that passes ``gate`` before its first step and each time before it goes on from an await."""

    def __init__(self, coro: Coroutine[Any, Any, T], gate: Callable[[], Awaitable[object] | None]) -> None:
        self._coro = coro
        self._gate = gate

    def __await__(self) -> Generator[Any, Any, T]:
        try:
            yield from self._pass()
            awaited = self._coro.send(None)
            while True:
                go_on = yield from self._next_step(awaited)
                awaited = go_on()
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            self._coro.close()

    def _next_step(self, awaited: Any) -> Generator[Any, Any, Callable[[], Any]]:
        """Let the loop wait for what the coroutine waits for, pass the gate, and tell how the coroutine goes on."""
        try:
            yield awaited
            yield from self._pass()
        except (_Expelled, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - passed on, not swallowed
            return partial(self._coro.throw, error)
        return partial(self._coro.send, None)

    def _pass(self) -> Generator[Any, Any, None]:
        while (waiting := self._gate()) is not None:
            yield from waiting.__await__()
