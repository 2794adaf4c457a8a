"""How the block of a run is left: with steps under way, with steps whose error was swallowed, while others begin more."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from leasekeeper import (
    AsyncKeeper,
    Conflict,
    InDoubt,
    Keeper,
    LeaseLost,
    Misuse,
    NotApplied,
    Observed,
    State,
    StepsOpen,
    effect,
)
from leasekeeper.protocol import closing
from leasekeeper.protocol.history import record
from leasekeeper.testing import EtcdServer
from tests.effects import Effect, ends_with
from tests.raw import RawEtcd
from tests.support import until


def fails() -> None:
    """A call of which nobody knows how it ended."""
    raise OSError("no answer")


class Slow:
    """A call that takes its time."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def __call__(self) -> int:
        """Do it."""
        self.begun.set()
        time.sleep(0.3)
        return 7


def kinds(keeper: Keeper) -> list[str]:
    """What was recorded last, and how the steps stand."""
    with ends_with(KeyError), keeper.run("order", id="1", signer=None) as run:
        found: list[str] = [step.state for step in run.steps()]
        raise KeyError
    return found


# ---------------------------------------------------------------- an error that was swallowed


def test_an_error_that_was_swallowed_does_not_finish_the_run(keeper: Keeper) -> None:
    """How a step ended that raised is not known, so its run is not finished, says why, and the next life has to ask."""
    with ends_with(StepsOpen) as told, keeper.run("order", id="1", signer=None) as run:
        run.do("first", Effect())
        with pytest.raises(OSError, match="no answer"):
            run.do("mail", fails)
    assert told.value.run == "order/1"
    assert told.value.steps == ("mail",)
    assert "'mail'" in str(told.value)
    with ends_with(InDoubt) as doubt, keeper.run("order", id="1", signer=None) as run:
        assert run.last().kind == "opened"
        run.do("mail", fails)
    assert doubt.value.step == "mail"


def test_why_the_run_is_not_finished_is_recorded(keeper: Keeper) -> None:
    """Whoever looks at the run finds the error that its life ended with."""
    with ends_with(StepsOpen), keeper.run("order", id="1", signer=None) as run:
        with pytest.raises(OSError, match="no answer"):
            run.do("mail", fails)
        log = run._life.log
    assert log.head.status == "running"
    core = keeper._core
    receipt = core.run(record(core.ctx, log.keys, log.head.seq, core.until()))
    assert receipt.kind == "failed"
    assert receipt.data["type"] == "StepsOpen"


def test_many_that_were_swallowed_are_named_in_part(keeper: Keeper) -> None:
    """The error stays short, however many there are."""
    with ends_with(StepsOpen, "and 4 more") as told, keeper.run("order", id="1", signer=None) as run:
        for number in range(9):
            with pytest.raises(OSError, match="no answer"):
                run.do(f"s{number}", fails)
    assert len(told.value.steps) == 5


def test_what_a_run_may_finish_with(keeper: Keeper) -> None:
    """A memo that failed has done no harm; what was surely not applied, or by somebody else, is known."""

    def surely_not() -> None:
        raise NotApplied("the card was declined")

    other = effect(Effect())
    other.preflight(lambda step: Observed(applied=True))
    with keeper.run("order", id="1", signer=None) as run:
        with pytest.raises(OSError, match="no answer"):
            run.memo("ask", fails)
        with pytest.raises(NotApplied):
            run.do("charge", surely_not)
        with pytest.raises(Conflict):
            run.do("other", other)
        assert sorted(step.state for step in run.steps()) == ["cleared", "conflict", "intent"]
    with keeper.run("order", id="1", signer=None) as run:
        assert run._life.log.head.status == "finished"


def test_a_step_that_is_asked_again_is_not_open(keeper: Keeper) -> None:
    """An error that was answered by doing the step again, with a callee that dedupes, hinders nothing."""
    calls: list[int] = []

    @effect(dedupes=True, key_ttl="1h")
    def mail(step: Any) -> int:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("no answer")
        return 7

    with keeper.run("order", id="1", signer=None) as run:
        with pytest.raises(OSError, match="no answer"):
            run.do("mail", mail)
        assert run.do("mail", mail) == 7
    with keeper.run("order", id="1", signer=None) as run:
        assert run._life.log.head.status == "finished"


def test_a_step_that_the_life_before_has_left_open(keeper: Keeper) -> None:
    """A life that does not ask for a step which the one before began, and nobody knows of, does not finish the run."""
    with ends_with(OSError), keeper.run("order", id="1", signer=None) as run:
        run.do("mail", fails)
    with ends_with(StepsOpen), keeper.run("order", id="1", signer=None) as run:
        run.do("another", Effect())
    keeper.resolve("order/1", "mail", applied=False, evidence="the server's log", signer=None)
    with keeper.run("order", id="1", signer=None):
        pass


def test_an_error_that_was_swallowed_under_asyncio(etcd: EtcdServer, namespace: str) -> None:
    """The same for an AsyncRun."""

    async def main() -> None:
        async with AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper:
            with ends_with(StepsOpen) as told:
                async with keeper.run("order", id="1", signer=None) as run:
                    with pytest.raises(OSError, match="no answer"):
                        await run.do("mail", fails)
            assert told.value.steps == ("mail",)

    asyncio.run(main())


# ---------------------------------------------------------------- steps under way


def test_an_error_waits_for_the_steps_under_way(keeper: Keeper) -> None:
    """Where one thread's error ends the block, what another's call comes to is recorded: nobody is in doubt about it."""
    slow = Slow()
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(run.do("slow", slow)))
    with ends_with(KeyError), keeper.run("order", id="1", signer=None) as run:
        thread.start()
        assert slow.begun.wait(10)
        raise KeyError
    thread.join(10)
    assert results == [7]
    assert kinds(keeper) == ["done"]


def test_one_of_many_that_are_gathered_fails(etcd: EtcdServer, namespace: str) -> None:
    """asyncio.gather ends with the first error; the siblings' calls come to their end, and no step is begun any more."""
    made: list[str] = []

    async def slow(name: str) -> str:
        await asyncio.sleep(0.2)
        made.append(name)
        return name

    async def two(run: Any, name: str) -> str:
        first: str = await run.do(name, slow, name)
        return first + str(await run.do(f"{name}-more", slow, f"{name}-more"))

    async def soon() -> None:
        await asyncio.sleep(0.05)
        raise OSError("no answer")

    async def main() -> None:
        async with AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper:
            siblings: list[asyncio.Task[str]] = []
            with ends_with(OSError, "no answer"):
                async with keeper.run("order", id="1", signer=None) as run:
                    siblings += [asyncio.ensure_future(two(run, name)) for name in "abc"]
                    await asyncio.gather(*siblings, run.do("bad", soon))
            told = await asyncio.gather(*siblings, return_exceptions=True)
            assert {type(each) for each in told} == {Misuse}
            assert sorted(made) == ["a", "b", "c"]
            with ends_with(KeyError):
                async with keeper.run("order", id="1", signer=None) as run:
                    states = {step.key: step.state async for step in run.steps()}
                    raise KeyError
            assert states == {"a": "done", "b": "done", "bad": "intent", "c": "done"}

    asyncio.run(main())


def test_a_block_that_ends_too_early_waits_as_well(keeper: Keeper) -> None:
    """Left without an error while a step is under way, the run is not finished, and what the step came to is recorded."""
    slow = Slow()
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(run.do("slow", slow)))
    with ends_with(StepsOpen, "under way: 'slow'") as told, keeper.run("order", id="1", signer=None) as run:
        thread.start()
        assert slow.begun.wait(10)
    thread.join(10)
    assert told.value.steps == ("slow",)
    assert results == [7]
    assert kinds(keeper) == ["done"]


def test_a_call_that_does_not_end_is_not_waited_for_without_bound(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is told that the run's lease was given back here, not that somebody else has taken the key away."""
    monkeypatch.setattr(closing, "STEPS_S", 0.2)
    begun, left = threading.Event(), threading.Event()
    told: list[tuple[str, object]] = []

    def slow() -> None:
        begun.set()
        left.wait(30)

    def aside() -> None:
        try:
            run.do("slow", slow)
        except LeaseLost as lost:
            told.append((lost.reason, lost.loss))

    thread = threading.Thread(target=aside)
    with ends_with(KeyError), keeper.run("order", id="1", signer=None) as run:
        thread.start()
        assert begun.wait(10)
        raise KeyError
    left.set()
    thread.join(10)
    assert told == [("released", None)]


def test_nobody_begins_a_step_in_a_block_that_is_left(keeper: Keeper) -> None:
    """A step that another thread asks for while the block is left is refused, before anything of it is recorded."""
    begun, asked = threading.Event(), threading.Event()
    told: list[BaseException] = []

    def slow() -> int:
        begun.set()
        asked.wait(20)
        return 7

    def late() -> None:
        while not run._life.leaving:
            time.sleep(0.01)
        try:
            run.do("late", Effect())
        except Misuse as refused:
            told.append(refused)
        finally:
            asked.set()

    threads = [threading.Thread(target=lambda: run.do("slow", slow)), threading.Thread(target=late)]
    with ends_with(KeyError), keeper.run("order", id="1", signer=None) as run:
        for thread in threads:
            thread.start()
        assert begun.wait(10)
        raise KeyError
    for thread in threads:
        thread.join(20)
    assert [str(each) for each in told] == ["step 'late' is not begun: the block of run order/1 is being left"]
    assert kinds(keeper) == ["done"]


# ---------------------------------------------------------------- a lease that is lost


@pytest.mark.parametrize("open_", [True, False], ids=["a step open", "nothing open"])
def test_a_lease_that_is_lost_comes_first(keeper: Keeper, raw: RawEtcd, open_: bool) -> None:
    """Left without an error, the block ends in LeaseLost, which no plain `except Exception` swallows, whatever else is amiss."""
    with ends_with(LeaseLost), keeper.run("order", id="1", signer=None) as run:
        if open_:
            with pytest.raises(OSError, match="no answer"):
                run.do("mail", fails)
        assert raw.delete(run.lease.key)
        until(lambda: run.lease.state is State.LOST)


def test_a_step_open_in_a_run_that_another_has_taken(
    keeper: Keeper, raw: RawEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the loss is not known yet when the block is left, it is the context of what the block ends with."""
    with ends_with(StepsOpen) as told, keeper.run("order", id="1", signer=None) as run:
        with pytest.raises(OSError, match="no answer"):
            run.do("mail", fails)
        monkeypatch.setattr(type(run.lease), "_check_not_over", lambda _: None)
        assert raw.delete(run.lease.key)
        until(lambda: run.lease.state is State.LOST)
    assert isinstance(told.value.__context__, LeaseLost)


def test_readers_of_a_finished_run_do_not_hinder_who_leaves(keeper: Keeper) -> None:
    """A replay in another thread, of a run that was finished before, is no step under way: the run stays finished."""
    begun, left = threading.Event(), threading.Event()
    made = effect(lambda step: 1)

    @made.verify
    def stands(step: Any, result: int) -> bool:
        begun.set()
        return not reading or left.wait(20)

    reading: list[bool] = []
    with keeper.run("order", id="1", signer=None) as run:
        run.do("a", made)
    begun.clear()
    reading.append(True)
    with keeper.run("order", id="1", signer=None) as run:
        thread = threading.Thread(target=lambda: run.do("a", made))
        thread.start()
        assert begun.wait(10)
    left.set()
    thread.join(20)
