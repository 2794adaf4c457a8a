"""Effects that give something to await, in a run of threads: refused before anything is recorded where that can be known."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from leasekeeper import AsyncKeeper, InDoubt, Keeper, Misuse, Observed, effect
from leasekeeper.testing import EtcdServer
from leasekeeper.testing.outside import records_of

ACTED: list[str] = []


async def later(*args: object) -> int:
    """A coroutine function."""
    ACTED.append("later")
    return 1


class Later:
    """An object that is called as one."""

    async def __call__(self) -> int:
        """Nothing else."""
        return await later()


def promised() -> Awaitable[int]:
    """A plain function that says what it gives."""
    return later()


def yields() -> Iterator[int]:
    """A generator function."""
    yield 1


def acts_first() -> Any:
    """A plain function that does something, and then gives something to await."""
    ACTED.append("first")
    return later()


@pytest.fixture
def keeper(etcd: EtcdServer, namespace: str) -> Iterator[Keeper]:
    """A keeper of threads; nothing has been done yet."""
    ACTED.clear()
    with Keeper(etcd.endpoint, namespace=namespace) as made:
        yield made


def steps(keeper: Keeper) -> list[str]:
    """What is recorded of steps."""
    return [record.kind for record in records_of(keeper, "order", "1") if record.step]


@pytest.mark.parametrize(
    "function",
    [later, functools.partial(later, 1), Later(), functools.partial(Later()), promised, yields, lambda: later(2)],
)
def test_what_can_be_known_is_refused_before_the_intent(keeper: Keeper, function: Callable[..., Any]) -> None:
    """A coroutine function, however wrapped, and a generator function leave no record: nobody is in doubt."""
    with pytest.raises(Misuse), keeper.run("order", id="1", signer=None) as run:
        run.do("act", function)
    assert steps(keeper) == []
    with keeper.run("order", id="1", signer=None) as run:
        assert run.do("act", lambda: 7) == 7


def test_what_acted_before_it_promised_is_in_doubt(keeper: Keeper) -> None:
    """A coroutine that nobody awaits has done nothing, but who made it may have: that is not for us to say, so no second call."""
    with pytest.raises(Misuse, match="AsyncKeeper"), keeper.run("order", id="1", signer=None) as run:
        run.do("act", acts_first)
    with pytest.raises(InDoubt), keeper.run("order", id="1", signer=None) as run:
        run.do("act", acts_first)
    assert steps(keeper)[:3] == ["intent", "raised", "in_doubt"]
    assert ACTED == ["first"]


def test_under_asyncio_it_is_awaited(keeper: Keeper, etcd: EtcdServer, namespace: str) -> None:
    """The same function is a right one for AsyncKeeper, also by its preflight's word after a doubt."""
    acts = effect(probe=True)(lambda step: acts_first())

    @acts.preflight
    def acted(step: Any) -> Any:
        return Observed(None, applied=False)

    with pytest.raises(Misuse, match="AsyncKeeper"), keeper.run("order", id="1", signer=None) as run:
        run.do("act", acts)

    async def once() -> None:
        async with (
            AsyncKeeper(etcd.endpoint, namespace=namespace) as again,
            again.run("order", id="1", signer=None) as run,
        ):
            assert await run.do("act", acts) == 1

    asyncio.run(once())
    assert ACTED == ["first", "first", "later"]
    assert steps(keeper) == ["intent", "raised", "intent", "outcome"]
