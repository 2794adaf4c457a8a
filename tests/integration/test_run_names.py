"""Names of runs, keys and scopes: which are refused, and that odd ones are just names and reach into nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leasekeeper import (
    ConfigError,
    Keeper,
)
from tests.effects import Effect, ends_with
from tests.raw import RawEtcd

ODD = [
    "a/b",
    "a%2Fb",
    "%",
    "../x",
    "ключ",
    "🔑",
    "a b",
    "step/key",
    "r/000000000001",
    ".",
    "*",
    'q"uote',
    "back\\slash",
]


@pytest.mark.parametrize("bad", ["", "x" * 256, "line\nbreak", "\x00", "\ud800", None, 7, b"bytes"])
def test_a_key_that_can_be_none(keeper: Keeper, raw: RawEtcd, bad: Any) -> None:
    """A step's, state's or phase's key that can be none is ConfigError, which names it; nothing is sent or called."""
    made = Effect()
    with keeper.run("order", id="1", signer=None) as run:
        revision = raw.revision()
        uses: list[Callable[[], Any]] = [
            lambda: run.do(bad, made),
            lambda: run.memo(bad, made),
            lambda: run.checkpoint(bad, dict),
            lambda: run.phase("p", {bad: []}),
        ]
        for use in uses:
            with pytest.raises(ConfigError):
                use()
        assert raw.revision() == revision
    assert made.calls == []


@pytest.mark.parametrize("part", ["workflow", "id"])
@pytest.mark.parametrize("bad", ["", "x" * 101, "/" * 34, "\n", "\ud800", None, 7])
def test_a_run_that_can_have_no_such_name(keeper: Keeper, bad: Any, part: str) -> None:
    """A workflow or id that cannot be spelled in a lease's name is refused before anything is asked of etcd."""
    names: dict[str, Any] = {"workflow": "order", "id": "1", part: bad}
    with pytest.raises(ConfigError):
        keeper.run(names["workflow"], id=names["id"])


def test_odd_keys_are_just_keys(keeper: Keeper) -> None:
    """Keys with "/", "%" and whatever else, up to 255 characters, are told apart, listed as given, and found again."""
    keys = [*ODD, "x" * 255, "/" * 255]
    with ends_with(KeyError), keeper.run("order", id="1", signer=None) as run:
        for number, key in enumerate(keys):
            assert run.do(key, lambda number=number: number) == number
            run.checkpoint(key, dict).commit(number=number)
        assert {step.key for step in run.steps()} == set(keys)
        raise KeyError
    with keeper.run("order", id="1", signer=None) as run:
        for number, key in enumerate(keys):
            assert run.do(key, lambda: -1) == number
            assert run.checkpoint(key, dict).value == {"number": number}


def test_no_run_reaches_into_another(keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """Runs whose names hold "/" keep to themselves: nothing of one is under the keys of another, nor is it seen there."""
    names = [
        ("a", "b"),
        ("a/b", "c"),
        ("a", "b/c"),
        ("a", "b/step/s"),
        ("a", "b%2Fc"),
        ("a%2Fb", "c"),
        ("a", "b/ck"),
        *(("a", odd) for odd in ODD),
    ]
    for number, (workflow, name) in enumerate(names):
        with keeper.run(workflow, id=name, signer=None, input=number) as run:
            run.do("s", lambda number=number: number)
            assert [step.key for step in run.steps()] == ["s"]
    for number, (workflow, name) in enumerate(names):
        with keeper.run(workflow, id=name, signer=None) as run:
            assert run.input == number
            assert run.do("s", lambda: -1) == number
    roots = {
        key.key.removeprefix(f"leasekeeper/{namespace}/run/").rsplit("/", 1)[0]
        for key in raw.keys(f"leasekeeper/{namespace}/run/")
        if key.key.endswith("/head")
    }
    assert len(roots) == len(set(names))
    assert all(root.count("/") == 1 for root in roots)


def test_halts_and_resolve_name_runs_as_they_are_written(keeper: Keeper) -> None:
    """A run with "/" in its id is named workflow/id with %2F for what stands inside; anything else is refused, saying so."""
    with keeper.run("order", id="a/b", signer=None) as run:
        assert run.run == "order/a%2Fb"
    for bad in ("order/a/b", "order", "/x", "x/", "", 7, None):
        with pytest.raises(ConfigError, match="workflow/id"):
            keeper.resolve(bad, "s", applied=True, evidence="x")  # type: ignore[arg-type]
    for scope in ("", "a/b/c", "a*b", "**", "order", 7, "x\n*"):
        with pytest.raises(ConfigError):
            keeper.halt(scope)  # type: ignore[arg-type]
