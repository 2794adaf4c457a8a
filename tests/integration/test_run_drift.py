"""A step that was done and does not hold any more: what a replay says, and who decides what that means."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Literal

import pytest

from leasekeeper import AsyncKeeper, Drift, Keeper, effect
from leasekeeper.runs.effect import Effect
from leasekeeper.testing import EtcdServer
from leasekeeper.testing.outside import records_of

Policy = Literal["raise", "accept"]


class Unfinished(Exception):
    """Ends a life without ending the run."""


class World:
    """A resource that the run sets, and that somebody else can set back."""

    def __init__(self) -> None:
        self.version = 1
        self.calls = 0
        self.looks = 0

    def patching(self, drift: Policy = "raise") -> Effect:
        """An effect that sets it, with a postcondition that looks."""

        @effect(drift=drift)
        def patch(step: Any) -> int:
            self.calls += 1
            self.version = 2
            return self.version

        @patch.verify
        def patched(step: Any, result: int) -> bool:
            self.looks += 1
            return self.version == result

        return patch


def life(keeper: Keeper, doing: Effect, alerts: list[str], **options: Any) -> Any:
    """One life of the run, which does not end it: what the step came to."""
    step = options.pop("step", {})
    running = keeper.run("patch", id="1", signer=None, alert=lambda told: alerts.append(told.kind), **options)
    with suppress(Unfinished), running as run:
        result = run.do("s", doing, **step)
        raise Unfinished
    return result


def kinds(keeper: Keeper) -> list[str]:
    """What is recorded, in order, without the lives."""
    return [record.kind for record in records_of(keeper, "patch", "1") if record.kind not in ("opened", "failed")]


def test_by_default_it_is_drift(keeper: Keeper) -> None:
    """A33: reverted behind its back: a Drift receipt, told to somebody, and no success that was only remembered."""
    world, alerts = World(), list[str]()
    assert life(keeper, world.patching(), alerts) == 2
    assert life(keeper, world.patching(), alerts) == 2
    assert world.looks == 2, "a replay looks again"
    world.version = 1
    for _ in range(2):
        with pytest.raises(Drift):
            life(keeper, world.patching(), alerts)
    world.version = 2
    assert life(keeper, world.patching(), alerts) == 2
    assert world.calls == 1
    assert [kind for kind in kinds(keeper) if kind != "alerted"] == ["intent", "outcome", "drift", "drift"]
    assert alerts
    assert set(alerts) == {"drift"}


def test_an_effect_may_accept_it(keeper: Keeper) -> None:
    """A33: declared with ``drift="accept"`` the result is given, and that it does not hold is recorded all the same."""
    world, alerts = World(), list[str]()
    assert life(keeper, world.patching("accept"), alerts) == 2
    world.version = 1
    assert life(keeper, world.patching("accept"), alerts) == 2
    assert (world.calls, world.version) == (1, 1)
    assert [kind for kind in kinds(keeper) if kind != "alerted"] == ["intent", "outcome", "drift"]
    (drift,) = [record for record in records_of(keeper, "patch", "1") if record.kind == "drift"]
    assert drift.data["accepted"] is True


@pytest.mark.parametrize("given", ["run", "step"])
def test_who_goes_by_the_record_does_not_look(keeper: Keeper, given: str) -> None:
    """A33: only ``verify="recorded"``, of a run or a step, returns what is recorded without looking."""
    world, alerts = World(), list[str]()
    recorded = {"verify": "recorded"}
    options: dict[str, Any] = recorded if given == "run" else {"step": recorded}
    assert life(keeper, world.patching(), alerts, **options) == 2
    assert world.looks == 1, "the outcome itself is one whose postcondition held"
    world.version = 1
    assert life(keeper, world.patching(), alerts, **options) == 2
    assert (world.calls, world.looks) == (1, 1)
    with pytest.raises(Drift):
        life(keeper, world.patching(), alerts, verify="recorded", step={"verify": "always"})


def test_under_asyncio(etcd: EtcdServer, namespace: str) -> None:
    """A33: the same under asyncio."""
    world = World()

    async def once(**options: Any) -> Any:
        async with AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper:
            with suppress(Unfinished):
                async with keeper.run("patch", id="1", signer=None, **options) as run:
                    result = await run.do("s", world.patching())
                    raise Unfinished
            return result

    assert asyncio.run(once()) == 2
    world.version = 1
    with pytest.raises(Drift):
        asyncio.run(once())
    assert asyncio.run(once(verify="recorded")) == 2
    assert world.calls == 1
