"""Holding a coroutine at its awaits, step by step under a scripted loop, and its ends under a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any

import pytest

from leasekeeper.errors import LeaseLost
from leasekeeper.runtime import supervise as module
from leasekeeper.runtime.supervise import Supervised, _Gated
from tests.loops import on_loop


class Point(Awaitable[Any]):
    """An await that a scripted loop sees by name; what the loop sends is its result."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __await__(self) -> Generator[str, Any, Any]:
        return (yield self.name)


class Gate:
    """A gate that a test opens and shuts. While it is shut one waits at "gate"; ``raises`` is what it says instead."""

    def __init__(self) -> None:
        self.shut = False
        self.raises: BaseException | None = None
        self.asked = 0

    def __call__(self) -> Awaitable[object] | None:
        """None, something to wait for, or an error."""
        self.asked += 1
        if self.raises is not None:
            raise self.raises
        return Point("gate") if self.shut else None


def begin(coro: Any, gate: Gate) -> Generator[str, Any, Any]:
    """The coroutine behind the gate, to be driven by hand."""
    return _Gated(coro, gate).__await__()


def result_of(step: Any) -> Any:
    """What a run returns with its next step."""
    with pytest.raises(StopIteration) as done:
        step()
    return done.value.value


# ---------------------------------------------------------------- step by step


def test_values_and_awaits_pass_through() -> None:
    """An open gate is not noticed: the loop sees the coroutine's awaits, and its result comes out."""

    async def work() -> str:
        assert await Point("one") is None
        await Point("two")
        return "done"

    run = begin(work(), Gate())
    assert run.send(None) == "one"
    assert run.send(None) == "two"
    assert result_of(lambda: run.send(None)) == "done"


@pytest.mark.parametrize("value", [None, 0, StopIteration(5), ValueError("a value")], ids=repr)
def test_any_value_can_be_the_result(value: Any) -> None:
    """Also one that looks like an exception, and also when there was no await at all."""

    async def at_once() -> Any:
        return value

    async def later() -> Any:
        await Point("one")
        return value

    assert result_of(lambda: begin(at_once(), Gate()).send(None)) is value
    run = begin(later(), Gate())
    run.send(None)
    assert result_of(lambda: run.send(None)) is value


def test_it_is_held_before_its_first_step() -> None:
    """Nothing of it runs while the gate is shut."""
    steps: list[str] = []

    async def work() -> None:
        steps.append("began")

    gate = Gate()
    gate.shut = True
    run = begin(work(), gate)
    assert run.send(None) == "gate"
    assert run.send(None) == "gate"
    assert steps == []
    gate.shut = False
    assert result_of(lambda: run.send(None)) is None
    assert steps == ["began"]


def test_it_is_held_when_it_would_go_on_from_an_await() -> None:
    """G5: what it waits for may end while the gate is shut; it goes on only when the gate is open."""
    steps: list[str] = []

    async def work() -> None:
        await Point("one")
        steps.append("went on")

    gate = Gate()
    run = begin(work(), gate)
    assert run.send(None) == "one"
    gate.shut = True
    assert run.send(None) == "gate"
    assert steps == []
    gate.shut = False
    result_of(lambda: run.send(None))
    assert steps == ["went on"]


def test_the_gate_is_asked_again_after_waiting_for_it() -> None:
    """That waiting is over does not mean that the way is free."""

    async def work() -> None:
        await Point("one")

    gate = Gate()
    gate.shut = True
    run = begin(work(), gate)
    for _ in range(3):
        assert run.send(None) == "gate"
    assert gate.asked == 3
    run.close()


def test_an_error_of_the_coroutine_comes_out() -> None:
    """Its own errors are not touched."""

    async def work() -> None:
        await Point("one")
        raise ValueError("its own")

    run = begin(work(), Gate())
    run.send(None)
    with pytest.raises(ValueError, match="its own"):
        run.send(None)


def test_what_the_loop_throws_reaches_the_await() -> None:
    """A cancellation finds the coroutine where it waits, and its clean-up may await in turn."""
    steps: list[str] = []

    async def work() -> None:
        try:
            await Point("one")
        finally:
            await Point("clean up")
            steps.append("cleaned up")

    run = begin(work(), Gate())
    run.send(None)
    assert run.throw(asyncio.CancelledError()) == "clean up"
    with pytest.raises(asyncio.CancelledError):
        run.send(None)
    assert steps == ["cleaned up"]


def test_a_cancellation_that_is_turned_into_a_result_is_a_result() -> None:
    """A coroutine may catch what is thrown into it and return: that is its result, not an error of the machinery."""

    async def work() -> str:
        try:
            await Point("one")
        except asyncio.CancelledError:
            return "finished early"
        return "finished"

    run = begin(work(), Gate())
    run.send(None)
    assert result_of(lambda: run.throw(asyncio.CancelledError())) == "finished early"


def test_what_is_thrown_at_the_gate_reaches_the_coroutine() -> None:
    """Held at the gate it can be cancelled like anywhere else, and cleans up with awaits."""

    async def work() -> None:
        try:
            await Point("one")
        finally:
            await Point("clean up")

    gate = Gate()
    run = begin(work(), gate)
    run.send(None)
    gate.shut = True
    assert run.send(None) == "gate"
    gate.shut = False
    assert run.throw(asyncio.CancelledError()) == "clean up"
    with pytest.raises(asyncio.CancelledError):
        run.send(None)


def test_what_the_gate_raises_is_raised_at_the_await() -> None:
    """A gate that says no for good does so inside of the coroutine, which can clean up."""
    seen: list[BaseException] = []

    async def work() -> None:
        try:
            await Point("one")
        except BaseException as error:
            seen.append(error)
            raise

    gate = Gate()
    run = begin(work(), gate)
    run.send(None)
    gate.raises = LeaseLost("over")
    with pytest.raises(LeaseLost):
        run.send(None)
    assert seen == [gate.raises]


def test_a_coroutine_that_never_ran_is_closed() -> None:
    """Neither a refusal at the gate nor a dropped run leaves a coroutine that was never awaited."""

    async def work() -> None:
        raise AssertionError("it ran")

    gate = Gate()
    gate.raises = LeaseLost("over")
    with pytest.raises(LeaseLost):
        begin(work(), gate).send(None)
    gate.raises, gate.shut = None, True
    run = begin(work(), gate)
    run.send(None)
    run.close()


def test_a_dropped_run_closes_its_coroutine() -> None:
    """When the loop drops the task, the coroutine's own clean-up runs as far as it can without a loop."""
    steps: list[str] = []

    async def work() -> None:
        try:
            await Point("one")
        finally:
            steps.append("closed")

    run = begin(work(), Gate())
    run.send(None)
    run.close()
    assert steps == ["closed"]


# ---------------------------------------------------------------- under a real loop


class FakeLease:
    """Passes, waits and ends as a test says."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.lost = False

    def passes(self) -> bool:
        """Whether work may go on."""
        return self.open.is_set() and not self.lost

    async def wait(self) -> None:
        """Until it may; LeaseLost when it never may again."""
        await self.open.wait()
        if self.lost:
            raise LeaseLost("over")

    def supervise(self, coro: Any) -> Supervised:
        """A run under this lease."""
        return Supervised(coro, passes=self.passes, wait=self.wait)


@on_loop
async def test_the_end_of_the_lease_cancels_once() -> None:
    """However often it is told, the coroutine is cancelled once, and its clean-up is left alone."""
    lease, struck = FakeLease(), 0

    async def work() -> str:
        nonlocal struck
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            struck += 1
        run.end()
        for _ in range(5):
            await asyncio.sleep(0)
        return "cleaned up"

    run = lease.supervise(work())
    asyncio.get_running_loop().call_later(0.01, run.end)
    assert await run.finish() == "cleaned up"
    assert struck == 1
    assert run.ended


@on_loop
async def test_a_loss_while_it_is_held_cancels_it() -> None:
    """Held at the gate of a lease that is lost, it is cancelled there and cleans up without being held again."""
    lease, steps, moved = FakeLease(), list[str](), asyncio.Event()

    async def work() -> None:
        try:
            await moved.wait()
            steps.append("went on")
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            steps.append("cleaned up")

    run = lease.supervise(work())
    finishing = asyncio.ensure_future(run.finish())
    await asyncio.sleep(0.01)
    lease.open.clear()
    moved.set()
    await asyncio.sleep(0.01)
    assert not finishing.done()
    lease.lost = True
    lease.open.set()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    assert steps == ["cleaned up"]
    assert run.ended


@on_loop
async def test_who_goes_on_after_the_end_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coroutine that swallows its cancellation and works on is ended, whatever it catches."""
    monkeypatch.setattr(module, "CLEAN_UP_S", 0.05)
    lease, steps = FakeLease(), 0

    async def work() -> None:
        nonlocal steps
        while True:
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                pass
            steps += 1

    run = lease.supervise(work())
    asyncio.get_running_loop().call_later(0.01, run.end)
    with pytest.raises(asyncio.CancelledError):
        await run.finish()
    before = steps
    await asyncio.sleep(0.03)
    assert steps == before


@on_loop
async def test_a_cancellation_from_outside_is_told_apart() -> None:
    """Whoever supervises can tell that it was not the lease that ended the work."""
    lease = FakeLease()
    run = lease.supervise(asyncio.sleep(3600))
    finishing = asyncio.ensure_future(run.finish())
    await asyncio.sleep(0.01)
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    assert run.outside is not None
    assert not run.ended
