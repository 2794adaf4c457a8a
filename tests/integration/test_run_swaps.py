"""Replicas that take a run over from each other after every step: none goes on by what it remembers of its own last turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

import pytest

from leasekeeper import AsyncKeeper, Keeper
from leasekeeper.runs.run import Run
from leasekeeper.testing import EtcdServer
from leasekeeper.testing.outside import records_of

STEPS = 9
LEGAL = {"part-0": ["part-1"], "part-1": ["part-2"], "part-2": []}


class Swapped(Exception):
    """Ends a replica's turn without ending the run."""


@dataclass(frozen=True)
class Sum:
    """A state that each step adds to."""

    total: int = 0
    by: str = ""


@pytest.fixture
def replicas(etcd: EtcdServer, namespace: str) -> Iterator[list[Keeper]]:
    """Three keepers that live as long as the test."""
    made = [Keeper(etcd.endpoint, namespace=namespace, holder=f"replica-{number}") for number in range(3)]
    yield made
    for keeper in made:
        keeper.close()


def turn(run: Run, who: str, calls: list[tuple[int, str]], upto: int) -> list[int]:
    """The run from its beginning, as far as one step more than before; every third step is the next phase's first."""
    state, phase = run.checkpoint("sum", Sum), run.phase("part", LEGAL)

    def act(number: int) -> int:
        calls.append((number, who))
        return number * number

    results = []
    for number in range(upto):
        last = number == upto - 1
        done = run.do(
            f"s{number}", act, number, commit=lambda got: state.change(total=_total(state.value) + got, by=who)
        )
        results.append(done)
        if last and number % 3 == 0 and number:
            phase.move(f"part-{number // 3}")
    return results


def _total(value: Sum | None) -> int:
    return 0 if value is None else value.total


def test_a_replica_swap_between_every_two_steps(replicas: list[Keeper]) -> None:
    """B10, A19: three replicas that live on swap a run after each step: each is called once, and state and phase go on."""
    calls: list[tuple[int, str]] = []
    squares = [number * number for number in range(STEPS)]
    for upto in range(1, STEPS + 1):
        keeper = replicas[upto % 3]
        with suppress(Swapped), keeper.run("order", id="1", signer=None) as run:
            assert turn(run, f"replica-{upto % 3}", calls, upto) == squares[:upto]
            assert run.checkpoint("sum", Sum).value == Sum(sum(squares[:upto]), f"replica-{upto % 3}")
            if upto < STEPS:
                raise Swapped
    assert calls == [(number, f"replica-{(number + 1) % 3}") for number in range(STEPS)]
    records = records_of(replicas[0], "order", "1")
    assert [record.holder for record in records if record.kind == "outcome"] == [who for _, who in calls]
    assert [record.kind for record in records].count("opened") == STEPS
    with replicas[1].run("order", id="1", signer=None) as run:
        assert run.checkpoint("sum", Sum).value == Sum(sum(squares), f"replica-{STEPS % 3}")
        assert run.phase("part", LEGAL).now() == "part-2"


def test_what_a_replica_still_has_from_its_last_turn_is_worth_nothing(replicas: list[Keeper]) -> None:
    """B10: handles of an earlier turn stay shut when its replica owns the run again, and change nothing."""
    with suppress(Swapped), replicas[0].run("order", id="1", signer=None) as run:
        old = run.checkpoint("sum", Sum)
        old.commit(total=1)
        before = run
        raise Swapped
    with suppress(Swapped), replicas[1].run("order", id="1", signer=None) as run:
        run.checkpoint("sum", Sum).commit(total=2)
        raise Swapped
    with replicas[0].run("order", id="1", signer=None) as run:
        for late in (lambda: old.commit(total=9), lambda: before.do("s", lambda: 1), old.read):
            with pytest.raises(BaseException, match="released"):
                late()
        state = run.checkpoint("sum", Sum)
        assert state.value == Sum(2)
        assert state.commit(total=3) == Sum(3)


def test_tasks_that_swap(etcd: EtcdServer, namespace: str) -> None:
    """B10: the same under asyncio."""
    calls: list[int] = []

    async def act(number: int) -> int:
        calls.append(number)
        return number * number

    async def main() -> None:
        async with AsyncExitStack() as stack:
            made = [await stack.enter_async_context(AsyncKeeper(etcd.endpoint, namespace=namespace)) for _ in range(2)]
            for upto in range(1, STEPS + 1):
                with suppress(Swapped):
                    async with made[upto % 2].run("order", id="1", signer=None) as run:
                        state = await run.checkpoint("sum", Sum)
                        for number in range(upto):
                            got = await run.do(f"s{number}", act, number)
                            assert got == number * number
                        await state.update(lambda now, upto=upto: Sum((now or Sum()).total + upto))  # type: ignore[misc]
                        if upto < STEPS:
                            raise Swapped
                        assert state.value == Sum(sum(range(STEPS + 1)))

    asyncio.run(main())
    assert calls == list(range(STEPS))
