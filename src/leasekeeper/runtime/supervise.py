"""Holding a coroutine at its next await while a lease is SUSPENDED, and ending it when the lease is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

__all__ = ["Gated"]

T = TypeVar("T")


class Gated(Awaitable[T]):
    """A coroutine that passes a gate each time before it goes on from an await.

    ``gate`` returns None when the way is free, else an awaitable that ends when it is, or raises. What is thrown in from
    outside (a cancellation) goes through at once: nobody is kept from stopping.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], gate: Callable[[], Awaitable[object] | None]) -> None:
        self._coroutine = coroutine
        self._gate = gate

    def __await__(self) -> Generator[Any, Any, T]:
        try:
            while True:
                yield from self._pass()
                yield from self._hand_out(self._coroutine.send(None))
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            self._coroutine.close()

    def _pass(self) -> Generator[Any, Any, None]:
        while (waiting := self._gate()) is not None:
            yield from waiting.__await__()

    def _hand_out(self, awaited: Any) -> Generator[Any, Any, None]:
        """Let the loop wait for what the coroutine waits for; what the loop throws goes into the coroutine."""
        while True:
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001 - passed on, not swallowed
                awaited = self._coroutine.throw(error)
            else:
                return
