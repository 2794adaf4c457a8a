"""What a run refuses of arguments, input and effects, with which error, and that nothing was written or called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from leasekeeper import (
    ArgumentsChanged,
    AsyncKeeper,
    ConfigError,
    Conflict,
    InDoubt,
    InputChanged,
    Keeper,
    Misuse,
    NotApplied,
    NotSerialisable,
    Observed,
    RecordTooLarge,
    effect,
)
from leasekeeper.runs.effect import Step
from leasekeeper.signing import HmacKey
from leasekeeper.testing import EtcdServer
from tests.effects import Effect, ends_with
from tests.raw import RawEtcd

# ---------------------------------------------------------------- arguments and input


@pytest.mark.parametrize(
    "bad", [object(), {1, 2}, b"bytes", float("nan"), float("inf"), {1: 2}, "\ud800", [[object()]], 10**700]
)
def test_arguments_that_are_no_json(keeper: Keeper, raw: RawEtcd, bad: object) -> None:
    """Arguments, questions and inputs that are no JSON: NotSerialisable, which names the part; nothing is recorded or called."""
    made = Effect()
    with keeper.run("order", id="1", signer=None) as run:
        revision = raw.revision()
        uses: list[Callable[[], Any]] = [
            lambda: run.do("s", made, 1, bad),
            lambda: run.memo("s", made, bad),
            lambda: run.memo("s", made, about={"x": bad}),
        ]
        for use in uses:
            with pytest.raises(ConfigError) as told:
                use()
            assert told.value.field
        assert raw.revision() == revision
    assert made.calls == []
    with pytest.raises(NotSerialisable):
        keeper.run("order", id="2", input=bad)


def test_an_input_that_is_too_large(keeper: Keeper) -> None:
    """An input above what a record holds is refused before anything is sent."""
    with pytest.raises((RecordTooLarge, NotSerialisable)):
        keeper.run("order", id="1", input="x" * 70_000)


def test_other_input(keeper: Keeper) -> None:
    """C23: a run is resumed with the input that it was begun with, or with none; other input is InputChanged."""
    for give, expected in (({"input": {"a": 1}}, {"a": 1}), ({}, {"a": 1}), ({"input": {"a": 1}}, {"a": 1})):
        with ends_with(KeyError), keeper.run("order", id="1", signer=None, **give) as run:  # type: ignore[arg-type]
            assert run.input == expected
            raise KeyError
    others: list[object] = [{"a": 2}, [1], "x", 0, {}]
    for other in others:
        with ends_with(InputChanged), keeper.run("order", id="1", signer=None, input=other):
            pass


def test_other_arguments(keeper: Keeper) -> None:
    """C23: a key with other arguments, or more or fewer of them, is ArgumentsChanged; the same in another spelling is not."""
    made = Effect()
    with ends_with(KeyError), keeper.run("order", id="1", signer=None) as run:
        run.do("s", made, {"a": 1})
        raise KeyError
    with keeper.run("order", id="1", signer=None) as run:
        uses: list[Callable[[], Any]] = [
            lambda: run.do("s", made, {"a": 2}),
            lambda: run.do("s", made),
            lambda: run.do("s", made, {"a": 1}, None),
        ]
        for use in uses:
            with pytest.raises(ArgumentsChanged):
                use()
        assert run.do("s", made, {"a": 1.0}) == 1
    assert len(made.calls) == 1


def test_an_effect_that_says_that_it_returns_no_json(keeper: Keeper, raw: RawEtcd) -> None:
    """An effect that is annotated to return bytes is refused before it is called."""

    def bytes_() -> bytes:
        raise AssertionError("it was called")

    with keeper.run("order", id="1", signer=None) as run:
        revision = raw.revision()
        with pytest.raises(NotSerialisable):
            run.do("s", bytes_)
        assert raw.revision() == revision


class Bank:
    """A callee whose calls are methods."""

    def charge(self, order: str, cents: int = 1) -> str:
        """One order."""
        return f"{order}: {cents}"


@effect()
def with_step(step: Step, order: str) -> str:
    """An effect of one argument beside the step."""
    return order


@effect()
def without_step(order: str) -> str:
    """An effect whose author forgot the step."""
    return order


@pytest.mark.parametrize(
    ("made", "args"),
    [
        (lambda order: order, ()),
        (lambda: 1, ("o",)),
        (Bank().charge, ()),
        (Bank().charge, ("o", 1, 2)),
        (with_step, ()),
        (without_step, ("o",)),
    ],
)
def test_an_effect_that_cannot_take_its_arguments(
    keeper: Keeper, raw: RawEtcd, made: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    """A call that cannot be made is refused before the intent: nothing is in doubt because of a slip of the pen."""
    with keeper.run("order", id="1", signer=None) as run:
        revision = raw.revision()
        with pytest.raises(Misuse, match="is given"):
            run.do("s", made, *args)
        assert raw.revision() == revision
        assert run.do("s", Bank().charge, "o") == "o: 1"
        assert run.do("t", lambda *words: list(words), 1, 2, 3) == [1, 2, 3]
        assert run.do("u", with_step, "o") == "o"


# ---------------------------------------------------------------- the effect itself


@pytest.mark.parametrize("first", ["do", "memo"])
def test_a_step_that_was_begun_as_the_other_kind(keeper: Keeper, first: str) -> None:
    """What was begun by do() is not repeated as a memo, and the other way round; the error says which it was."""

    def fails() -> None:
        raise OSError("no answer")

    other = "memo" if first == "do" else "do"
    with (
        ends_with(ArgumentsChanged, rf"begun by {first}\(\).*by {other}\(\)"),
        keeper.run("order", id="1", signer=None) as run,
    ):
        with pytest.raises(OSError, match="no answer"):
            getattr(run, first)("s", fails)
        getattr(run, other)("s", fails)


def test_a_coroutine_function_under_threads(keeper: Keeper, raw: RawEtcd) -> None:
    """An effect, a preflight or a verify that is a coroutine function is refused by a Keeper before anything is recorded."""

    async def later(*_: object) -> None:
        raise AssertionError("it ran")

    class Later:
        async def __call__(self) -> None:
            raise AssertionError("it ran")

    asks, verifies = effect(lambda step: 1), effect(lambda step: 1)
    asks.preflight(later)
    verifies.verify(later)
    with keeper.run("order", id="1", signer=None) as run:
        revision = raw.revision()
        for given in (later, Later(), effect(later), asks, verifies):
            with pytest.raises(Misuse, match="AsyncKeeper"):
                run.do("s", given)
        assert raw.revision() == revision
        with pytest.raises(Misuse, match="AsyncKeeper"):
            run.do("t", lambda: later())
        assert raw.revision() == revision


def test_a_need_that_no_lease_can_prove(keeper: Keeper, raw: RawEtcd) -> None:
    """A call that needs more authority than the TTL can ever prove is refused before it is recorded."""
    made = Effect()
    with keeper.run("order", id="1", signer=None, ttl=5) as run:
        revision = raw.revision()
        bad: list[Any] = [100, -1, float("nan"), "x"]
        for need in bad:
            with pytest.raises((Misuse, ConfigError)):
                run.do("s", made, need=need)
        assert raw.revision() == revision
        assert run.do("s", made, need=1.0) == 1


def test_what_an_effect_raises(keeper: Keeper) -> None:
    """What an effect raises comes out as it is; after NotApplied it is called again, after anything else it is in doubt."""

    def refuse() -> None:
        raise NotApplied("busy")

    def fail(number: int) -> None:
        raise errors[number]

    errors: list[BaseException] = [
        ValueError("x"),
        StopIteration("x"),
        TimeoutError(),
        ConfigError(field="f", value=1, expected="y"),
    ]
    made = Effect()
    with ends_with(InDoubt), keeper.run("order", id="1", signer=None) as run:
        for _ in range(2):
            with pytest.raises(NotApplied):
                run.do("s", refuse)
        assert run.do("s", made) == 1
        for number, error in enumerate(errors):
            with pytest.raises(RuntimeError if isinstance(error, StopIteration) else type(error)):
                run.do(f"f{number}", fail, number)
            assert run.last().kind == "raised"
            with pytest.raises(InDoubt):
                run.do(f"f{number}", fail, number)
    assert len(made.calls) == 1


def test_no_lease_is_taken_where_it_is_done_already(keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """A14: asked first, and somebody else has applied it: Conflict with a signed record, no claim, no key, no call."""
    made = Effect()

    @effect
    def patch(step: Step, host: str) -> None:
        made(host)

    @patch.preflight
    def patched(step: Step, host: str) -> Observed:
        return Observed({"host": host, "version": 2}, applied=True)

    key = HmacKey("k1", b"0123456789abcdef")
    with ends_with(Conflict) as told, keeper.run("patch", id="h1", signer=key, ask_first=(patch, "h1")):
        pass
    receipt = told.value.receipt
    assert receipt is not None
    assert (receipt.kind, receipt.key_id, receipt.data["pre"]["value"]) == (
        "conflict",
        "k1",
        {"host": "h1", "version": 2},
    )
    assert raw.claims(namespace) == []
    assert raw.keys(f"leasekeeper/{namespace}/run/") == []
    assert made.calls == []


def test_a_preflight_that_has_grown_old_is_asked_again(keeper: Keeper) -> None:
    """A15: between the first look and the call more time passes than that may be old: it is asked again, right before."""
    seen: list[int] = []

    @effect(preflight_max_age=0.0)
    def patch(step: Step) -> int:
        return 1

    @patch.preflight
    def patched(step: Step) -> Observed:
        seen.append(step.attempt)
        return Observed(None, applied=len(seen) > 1)

    with keeper.run("patch", id="1", signer=None) as run, pytest.raises(Conflict):
        run.do("s", patch)
    assert seen == [0, 1]


# ---------------------------------------------------------------- an operator's word


def test_under_asyncio(etcd: EtcdServer, namespace: str) -> None:
    """The same refusals under asyncio: nothing is recorded of what cannot be, and coroutine functions are welcome."""

    async def later(number: int) -> int:
        await asyncio.sleep(0)
        return number + 1

    async def main() -> None:
        async with (
            AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper,
            keeper.run("order", id="1", signer=None) as run,
        ):
            with pytest.raises(NotSerialisable):
                await run.do("s", later, object())
            with pytest.raises(ConfigError):
                await run.do("", later, 1)
            with pytest.raises(Misuse):
                await run.do("s", later, 1, need=1000)
            assert [step async for step in run.steps()] == []
            assert await run.do("s", later, 1) == 2
            with pytest.raises(ArgumentsChanged):
                await run.do("s", later, 2)
            assert await run.memo("m", later, 2) == 3

    asyncio.run(main())
