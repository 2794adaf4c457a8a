"""Drivers of conducts (`leasekeeper.protocol.conduct`): one for threads, one for asyncio."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from leasekeeper.errors import LeaseSuspended, Misuse
from leasekeeper.protocol.append import Fenced
from leasekeeper.protocol.conduct import Alarm, Conduct, Gate, Invoke, Operation, Talk, Tell
from leasekeeper.protocol.gate import gone, lost
from leasekeeper.protocol.plan import Fault
from leasekeeper.runtime.aio import aside
from leasekeeper.runtime.fork import HERE, check_process

if TYPE_CHECKING:
    from leasekeeper.runtime.held import Held

__all__ = ["Footing", "Passing", "carry", "carry_async", "drive", "drive_async", "nowhere"]

T = TypeVar("T")

# Told the name of each point that a conduct passes; the testing kit ends the process at one of them.
Passing = Callable[[str], None]


def nowhere(point: str) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class Footing:
    """What a conduct stands on: the lease, who is told, and, in tests, who wants to know where it is."""

    held: Held
    tell: Callable[[Tell], None]
    alarm: Callable[[Alarm], Any]
    passing: Passing = nowhere


def carry(conduct: Conduct[T], perform: Callable[[Operation], Any]) -> T:
    """Run a conduct in this thread: ``perform`` does what it yields, and what came of that it is sent, or has thrown in."""
    result: Any = None
    struck: list[BaseException] = []
    try:
        operation = next(conduct)
        while True:
            try:
                result = perform(operation)
            except BaseException as error:  # noqa: BLE001 - Ctrl-C, too, has to reach the conduct's clean-up
                struck.append(error)
            operation = conduct.throw(struck.pop()) if struck else conduct.send(result)
    except StopIteration as done:
        value: T = done.value
        return value
    finally:
        conduct.close()  # Ctrl-C between two operations: it has yet to hear of it


async def carry_async(conduct: Conduct[T], perform: Callable[[Operation], Awaitable[Any]]) -> T:
    """`carry` under asyncio."""
    result: Any = None
    struck: list[BaseException] = []
    try:
        operation = next(conduct)
        while True:
            try:
                result = await perform(operation)
            except BaseException as error:  # noqa: BLE001 - a cancellation, too, has to reach the conduct's clean-up
                struck.append(error)
            operation = conduct.throw(struck.pop()) if struck else conduct.send(result)
    except StopIteration as done:
        value: T = done.value
        return value
    finally:
        conduct.close()


def drive(on: Footing, conduct: Conduct[T]) -> T:
    """Run a conduct in this thread, with the errors that users see."""
    try:
        return carry(conduct, partial(_perform, on))
    except (Fenced, Fault) as error:
        raise public(on.held, error) from None


def _perform(on: Footing, operation: Operation) -> Any:
    match operation:
        case Talk(plan, name):
            on.passing(f"{name}:send")
            _check_here(on.held)
            result = on.held._core.blocking.run(plan)
            on.passing(f"{name}:reply")
            return result
        case Invoke(call, name):
            on.passing(f"{name}:call")
            result = call()
            if inspect.isawaitable(result):
                raise _not_here(name, result)
            on.passing(f"{name}:return")
            return result
        case Gate(need_s):
            while not _passes(on.held, need_s):
                on.held._core.blocking.run(on.held._waiting(need_s, None))
            return None
        case Tell():
            return on.tell(operation)
    return on.alarm(operation)


async def drive_async(on: Footing, conduct: Conduct[T]) -> T:
    """Run a conduct under asyncio, with the errors that users see. What it calls may be a coroutine function."""
    try:
        return await carry_async(conduct, partial(_perform_async, on))
    except (Fenced, Fault) as error:
        raise public(on.held, error) from None


async def _perform_async(on: Footing, operation: Operation) -> Any:
    match operation:
        case Talk(plan, name):
            on.passing(f"{name}:send")
            _check_here(on.held)
            result = await on.held._core.asyncio.run(plan)
            on.passing(f"{name}:reply")
            return result
        case Invoke(call, name):
            on.passing(f"{name}:call")
            # What we have called for it, as files and networks, is not let block the loop; what users give runs on it.
            result = call() if name in ("preflight", "effect", "verify") else await aside(call, f"leasekeeper-{name}")
            if inspect.isawaitable(result):
                result = await result
            on.passing(f"{name}:return")
            return result
        case Gate(need_s):
            while not _passes(on.held, need_s):
                await on.held._core.asyncio.run(on.held._waiting(need_s, None))
            return None
        case Tell():
            return on.tell(operation)
    return await aside(lambda: on.alarm(operation), "leasekeeper-alarm")


def public(held: Held, error: Fenced | Fault) -> BaseException:
    """What users see of an error that never leaves the library."""
    if isinstance(error, Fenced):
        if held.state.final:
            return lost(held._authority)  # given back here, or lost and known: nobody else has taken the key away
        held._core.heart.key_gone(held._authority)
        return gone(held._authority, held._now())
    if held._authority.loss is not None:
        return lost(held._authority)
    return held._core.engine.public(error)


def _check_here(held: Held) -> None:
    """LeaseLost in a forked child, where a conduct of the parent's may go on: the claim is the parent's, and so is the word."""
    if not HERE[0]:
        check_process()
    if held._core.forked:
        raise lost(held._authority)


def _passes(held: Held, need_s: float) -> bool:
    """Whether the gate lets through at this moment; LeaseLost when it never will."""
    try:
        held.check(need_s)
    except LeaseSuspended:
        return False
    return True


def _not_here(name: str, result: Any) -> Misuse:
    """The error for what nothing in this thread awaits.

    A coroutine that was never awaited has done nothing; whoever made it may have, before, and only it knows.
    """
    if inspect.iscoroutine(result):
        result.close()
    return Misuse(f"the {name} gave something to await: give it to AsyncKeeper, or take a function that does it itself")
