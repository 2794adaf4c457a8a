"""The two APIs are one: what a thread finds in Keeper and Lease a task finds in AsyncKeeper and AsyncLease."""

from __future__ import annotations

import asyncio
import inspect
import re

import pytest

from leasekeeper import AsyncKeeper, AsyncLease, Keeper, Lease, Misuse
from leasekeeper.runs.aio import AsyncCheckpoint, AsyncPhase, AsyncRun, AsyncRunning
from leasekeeper.runs.run import Checkpoint, Phase, Run, Running

ENTERED = [(Keeper, AsyncKeeper), (Lease, AsyncLease)]
PAIRS = [*ENTERED, (Running, AsyncRunning), (Run, AsyncRun), (Checkpoint, AsyncCheckpoint), (Phase, AsyncPhase)]
# What only coroutines need.
ASYNC_ONLY = {"supervise"}
# What may block is awaited; what answers at once is plain in both.
AWAITED = {
    *("acquire", "try_acquire", "verify", "claims", "close", "wait", "release"),
    *("halt", "unhalt", "halts", "resolve", "begin", "prune"),
    *("do", "memo", "checkpoint", "phase", "last", "read", "commit", "put", "update", "now", "move"),
}
WALKED = {"names", "steps"}
TWINS = {"__enter__": "__aenter__", "__exit__": "__aexit__"}


def public(kind: type) -> set[str]:
    """The names that users see."""
    return {name for name in dir(kind) if not name.startswith("_")}


def plain(annotation: object) -> str:
    """An annotation as it reads without asyncio."""
    return re.sub(r"\bAwaitable\[(\w+)\]", r"\1", re.sub(r"\bAsync(?=[A-Z])", "", str(annotation)))


def shape(method: object) -> list[tuple[str, object, object, str]]:
    """Parameters with their kinds, defaults and annotations, and what comes back."""
    assert callable(method)
    signature = inspect.signature(method)
    parameters = [(p.name, p.kind, p.default, plain(p.annotation)) for p in signature.parameters.values()]
    return [*parameters, ("return", None, None, plain(signature.return_annotation))]


def members(names: set[str]) -> list[object]:
    """The methods of both pairs that are in ``names``."""
    found = [(blocking, aio, name) for blocking, aio in PAIRS for name in sorted(public(blocking) & names)]
    return [pytest.param(*case, id=f"{case[0].__name__}.{case[2]}") for case in found]


ALL = set().union(*(public(blocking) for blocking, _ in PAIRS))


@pytest.mark.parametrize(("blocking", "aio"), PAIRS)
def test_the_same_names(blocking: type, aio: type) -> None:
    """Each public name of one is a public name of the other; `supervise` alone belongs to tasks."""
    assert public(aio) - ASYNC_ONLY == public(blocking)


@pytest.mark.parametrize(("blocking", "aio"), PAIRS)
def test_the_same_construction(blocking: type, aio: type) -> None:
    """Both are made with the same arguments."""
    assert shape(blocking.__init__) == shape(aio.__init__)  # type: ignore[misc]


@pytest.mark.parametrize(("blocking", "aio", "name"), members(ALL))
def test_the_same_signatures(blocking: type, aio: type, name: str) -> None:
    """Parameters, their order, kinds, defaults and types, and results are equal, `Async` and await aside."""
    one, other = inspect.getattr_static(blocking, name), inspect.getattr_static(aio, name)
    assert type(one) is type(other)
    if isinstance(one, property):
        assert one.fget is not None
        assert other.fget is not None
        assert shape(one.fget) == shape(other.fget)
    elif callable(getattr(blocking, name)):
        assert shape(getattr(blocking, name)) == shape(getattr(aio, name))


@pytest.mark.parametrize(("blocking", "aio", "name"), members(ALL))
def test_awaited_where_it_can_block(blocking: type, aio: type, name: str) -> None:
    """What asks etcd or waits is awaited, walking over names is `async for`, everything else is the same plain call."""
    method = inspect.getattr_static(aio, name)
    assert inspect.iscoroutinefunction(method) == (name in AWAITED)
    assert inspect.isasyncgenfunction(method) == (name in WALKED)
    assert not inspect.iscoroutinefunction(inspect.getattr_static(blocking, name))


@pytest.mark.parametrize(("blocking", "aio"), ENTERED)
def test_both_are_entered(blocking: type, aio: type) -> None:
    """Where one is a context manager the other is an asynchronous one, of the same shape, and not both."""
    for name, twin in TWINS.items():
        assert shape(getattr(blocking, name)) == shape(getattr(aio, twin))
        assert inspect.iscoroutinefunction(getattr(aio, twin))
        assert not hasattr(aio, name)
        assert not hasattr(blocking, twin)


@pytest.mark.parametrize(("blocking", "aio", "name"), members(ALL))
def test_both_are_explained(blocking: type, aio: type, name: str) -> None:
    """Every public name has a docstring in both."""
    for kind in (blocking, aio):
        member = inspect.getattr_static(kind, name)
        if callable(member) or isinstance(member, (property, classmethod)):
            assert inspect.getdoc(getattr(kind, name)), f"{kind.__name__}.{name}"


def test_the_wrong_with_is_named() -> None:
    """`with` where it must be `async with`, and the other way round, is Misuse that says which; nothing is sent."""

    async def enter() -> None:
        async with Keeper("127.0.0.1:1").lease("name"):  # type: ignore[attr-defined]
            pass

    with pytest.raises(Misuse, match="use 'async with'"), AsyncKeeper("127.0.0.1:1").lease("name"):  # type: ignore[attr-defined]
        pass
    with pytest.raises(Misuse, match="use 'with'"):
        asyncio.run(enter())

    async def run() -> None:
        async with Keeper("127.0.0.1:1").run("order", id="1"):  # type: ignore[attr-defined]
            pass

    with pytest.raises(Misuse, match="use 'async with'"), AsyncKeeper("127.0.0.1:1").run("order", id="1"):  # type: ignore[attr-defined]
        pass
    with pytest.raises(Misuse, match="use 'with'"):
        asyncio.run(run())
