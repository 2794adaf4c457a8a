"""Many at once on one run: threads and tasks, with steps, states and phases; none is done twice and no update is lost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from leasekeeper import (
    AsyncKeeper,
    IllegalTransition,
    Keeper,
    StaleCheckpoint,
    StepBusy,
)
from leasekeeper.testing import EtcdServer
from tests.crowds import Count, chain_is_whole, in_threads

THREADS = 32

# ---------------------------------------------------------------- steps


def test_steps_in_many_threads(keeper: Keeper) -> None:
    """C05: 32 threads with 6 steps each: each effect once, each result to whom it belongs, one chain without hole or fork."""
    calls: Counter[int] = Counter()

    def effect(number: int) -> int:
        calls[number] += 1
        return number * 2

    with keeper.run("order", id="1", signer=None) as run:
        results = in_threads(
            THREADS, lambda index: [run.do(f"s{index}-{part}", effect, index * 10 + part) for part in range(6)]
        )
        assert results == [[2 * (index * 10 + part) for part in range(6)] for index in range(THREADS)]
        assert len(calls) == sum(calls.values()) == THREADS * 6
        assert {step.state for step in run.steps()} == {"done"}
        assert len(list(run.steps())) == THREADS * 6
        assert chain_is_whole(keeper) == 1 + 2 * THREADS * 6


def test_steps_in_many_tasks(etcd: EtcdServer, namespace: str) -> None:
    """C05: a gather of 50 steps whose effects are coroutines; replayed in the next life, gathered too, none is called."""
    calls: list[int] = []

    async def effect(number: int) -> int:
        await asyncio.sleep(0.001 * (number % 3))
        calls.append(number)
        return number * 2

    async def life(die: bool) -> list[int]:
        async with (
            AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper,
            keeper.run("order", id="1", signer=None) as run,
        ):
            found = await asyncio.gather(*(run.do(f"s{number}", effect, number) for number in range(50)))
            if die:
                raise KeyError(found)
            return found

    with pytest.raises(KeyError) as died:
        asyncio.run(life(True))
    assert died.value.args[0] == [2 * number for number in range(50)]
    assert asyncio.run(life(False)) == [2 * number for number in range(50)]
    assert sorted(calls) == list(range(50))


def test_one_key_in_two_threads(keeper: Keeper) -> None:
    """StepBusy: of many threads that do one step at once just one does it; the others are told, or get its result."""
    calls: list[int] = []
    go_on = threading.Event()

    def effect() -> int:
        calls.append(1)
        go_on.wait(20)
        return 7

    def work(index: int) -> Any:
        try:
            return run.do("s", effect)
        except StepBusy as busy:
            if "'" not in str(busy):
                go_on.set()
            return busy

    with keeper.run("order", id="1", signer=None) as run:
        results = in_threads(8, work)
        assert len(calls) == 1
        assert [each for each in results if not isinstance(each, StepBusy)] == [7]
        assert run.do("s", effect) == 7
        assert len(calls) == 1


def test_one_key_in_two_tasks(etcd: EtcdServer, namespace: str) -> None:
    """StepBusy: also among tasks; the first one is not disturbed."""

    async def effect() -> int:
        await asyncio.sleep(0.05)
        return 7

    async def main() -> list[Any]:
        async with (
            AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper,
            keeper.run("order", id="1", signer=None) as run,
        ):
            return await asyncio.gather(*(run.do("s", effect) for _ in range(3)), return_exceptions=True)

    results = asyncio.run(main())
    assert results[0] == 7
    assert [type(each) for each in results[1:]] == [StepBusy] * 2


def test_a_step_inside_of_a_step(keeper: Keeper) -> None:
    """C37: an effect that does steps of its own: each has its record and is done once, also when it all is done again."""
    calls: list[str] = []

    def inner(name: str) -> str:
        calls.append(name)
        return name.upper()

    def outer(fail: bool) -> list[str]:
        found = [run.do(f"inner-{index}", inner, f"i{index}") for index in range(2)]
        calls.append("outer")
        if fail:
            raise ValueError("half of it")
        return found

    with pytest.raises(ValueError, match="half"), keeper.run("order", id="1", signer=None) as run:
        run.memo("outer", lambda: outer(fail=True))
    with keeper.run("order", id="1", signer=None) as run:
        assert run.memo("outer", lambda: outer(fail=False)) == ["I0", "I1"]
    assert calls == ["i0", "i1", "outer", "outer"]


# ---------------------------------------------------------------- states and phases


@pytest.mark.parametrize("each", [25, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(400)])])
def test_no_update_is_lost(keeper: Keeper, each: int) -> None:
    """B8: 8 threads with up to 500 updates each of one state through handles of their own: every one of them counts."""
    with keeper.run("order", id="1", signer=None) as run:

        def work(_: int) -> None:
            state = run.checkpoint("count", Count)
            for _ in range(each):
                state.update(lambda now: Count((now or Count()).total + 1), tries=10_000)

        in_threads(8, work, 350.0)
        state = run.checkpoint("count", Count)
        assert (state.value, state.n) == (Count(8 * each), 8 * each)
        assert chain_is_whole(keeper) == 1 + 8 * each


def test_no_update_is_lost_through_one_handle(keeper: Keeper) -> None:
    """B8: the same through one handle that all share."""
    with keeper.run("order", id="1", signer=None) as run:
        state = run.checkpoint("count", Count)

        def work(_: int) -> None:
            for _ in range(10):
                state.update(lambda now: Count((now or Count()).total + 1), tries=1000)

        in_threads(8, work)
        assert state.read() == Count(80)


def test_no_update_of_tasks_is_lost(etcd: EtcdServer, namespace: str) -> None:
    """B8: the same among tasks."""

    async def main() -> None:
        async with (
            AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper,
            keeper.run("order", id="1", signer=None) as run,
        ):
            states = [await run.checkpoint("count", Count) for _ in range(8)]

            async def work(index: int) -> None:
                for _ in range(10):
                    await states[index].update(lambda now: Count((now or Count()).total + 1), tries=1000)

            await asyncio.gather(*map(work, range(8)))
            assert await states[0].read() == Count(80)

    asyncio.run(main())


def test_phases_race(keeper: Keeper) -> None:
    """A9: of 8 threads that make one move at once, one does; nobody else's move is taken for theirs."""
    legal = {"staged": ["active"], "active": ["old"], "old": []}
    with keeper.run("order", id="1", signer=None) as run:

        def work(_: int) -> str:
            try:
                run.phase("keys", legal).move("active")
            except (StaleCheckpoint, IllegalTransition) as error:
                return type(error).__name__
            return "moved"

        told = Counter(in_threads(8, work))
        assert told["moved"] == 1
        phase = run.phase("keys", legal)
        assert phase.now() == "active"
        with pytest.raises(IllegalTransition) as refused:
            phase.move("staged")
        assert refused.value.legal == ("old",)
        with pytest.raises(IllegalTransition):
            phase.move("nowhere")
        phase.move("old")
        assert phase.now() == "old"
