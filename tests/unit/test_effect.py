"""Effects as they are declared: what cannot hold is refused where it stands, in words that say what would be right."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from leasekeeper import ConfigError, Misuse, effect
from leasekeeper.runs.effect import as_effect, gives_to_await, is_awaited

DURATIONS = ("key_ttl", "need", "preflight_max_age", "settle", "spool_every")


def plain(step: object) -> None:
    """Does nothing."""


async def later(step: object) -> None:
    """The same for AsyncKeeper."""


def yields(step: object) -> Iterator[None]:
    """A generator function."""
    yield


async def yields_later(step: object) -> AsyncIterator[None]:
    """Another."""
    yield


class Later:
    """An object that is called as a coroutine function."""

    async def __call__(self, step: object) -> None:
        """Nothing."""


class Task(dict[str, str]):
    """Something to be done, by a name that asyncio has, too."""


def promised(step: object) -> Awaitable[None]:
    """A plain function that says that it gives something to await."""
    return later(step)


def tasks(step: object) -> Task:
    """A plain function of a plain result."""
    return Task()


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize(
    "value", ["x", "", "1e3", "5 s", "-1", True, b"1s", [], -1, float("nan"), float("inf"), 10**400]
)
def test_a_duration_that_is_none(name: str, value: Any) -> None:
    """Every duration of an effect: the error names it, shows the value and says how one is written, or between which bounds."""
    with pytest.raises(ConfigError, match=rf"^{name}=.*: expected (seconds, or .*500ms or 24h|from 0 to \d+ seconds)"):
        effect(**{"dedupes": name == "key_ttl", name: value})


@pytest.mark.parametrize("name", DURATIONS[1:])
def test_no_duration_is_none(name: str) -> None:
    """None is no length of time."""
    with pytest.raises(ConfigError, match=rf"^{name}=None: expected seconds, or .*500ms or 24h"):
        effect(**{name: None})  # type: ignore[call-overload]


@pytest.mark.parametrize("value", [None, 0, "0s"])
def test_dedupes_needs_a_time(value: Any) -> None:
    """For how long the callee remembers a key has no default, and no time at all is none."""
    with pytest.raises(ConfigError, match=rf"^key_ttl={value!r}: expected .*remembers.*seconds.*500ms or 24h"):
        effect(dedupes=True, key_ttl=value)


def test_a_time_needs_dedupes() -> None:
    """A key's time without a callee that looks at keys."""
    with pytest.raises(ConfigError, match=r"^key_ttl='24h': expected dedupes=True beside it"):
        effect(key_ttl="24h")


@pytest.mark.parametrize("function", [yields, yields_later, functools.partial(yields), 3, None])
def test_what_does_nothing_when_it_is_called(function: Any) -> None:
    """A generator function begins only when somebody iterates: as an effect, a preflight or a verify it is refused at once."""
    whole = effect(plain)
    refusing: list[Callable[[Any], object]] = [effect(), as_effect, whole.preflight, whole.verify]
    for refuse in refusing:
        with pytest.raises(Misuse, match=r"is no (effect|preflight of plain|verify of plain): .*expected a function"):
            refuse(function)


def test_what_is_to_be_awaited() -> None:
    """However it is wrapped, as far as it can be known before it is called; what is called a task elsewhere is no asyncio's."""
    partials: list[Any] = [functools.partial(later), functools.partial(functools.partial(Later()))]
    inner = later
    lambdas: list[Any] = [lambda step: later(step), lambda step: inner(step), lambda *args: later(*args)]
    for function in (later, Later(), *partials, promised, *lambdas):
        assert is_awaited(function) is (function not in lambdas)
        assert effect(function).awaited() == "effect"
    run = asyncio.run

    def within(step: object) -> object:
        def go(promise: Any) -> object:
            return asyncio.run(promise)

        return go(later(step))

    plain_ones: list[Any] = [
        *(plain, functools.partial(plain), tasks, print, within),
        *(lambda step: asyncio.run(later(step)), lambda step: run(later(step)), lambda step, go=run: go(later(step))),
    ]
    for function in plain_ones:
        assert not gives_to_await(function)
        assert not effect(function).awaited()
