"""Many at once on one run: threads and tasks, steps, states and phases; and the run object where it no longer owns anything."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from leasekeeper import (
    AsyncKeeper,
    IllegalTransition,
    InDoubt,
    Keeper,
    LeaseLost,
    Misuse,
    RunFinished,
    StaleCheckpoint,
    StepBusy,
)
from leasekeeper.protocol.history import Walk
from leasekeeper.protocol.run_keys import RunKeys, RunName
from leasekeeper.runs.aio import AsyncRunning
from leasekeeper.runs.options import options
from leasekeeper.runs.run import Run
from leasekeeper.testing import EtcdServer
from tests.raw import RawEtcd
from tests.support import until

THREADS = 32


@dataclass(frozen=True)
class Count:
    """A state."""

    total: int = 0


@pytest.fixture
def keeper(etcd: EtcdServer, namespace: str) -> Iterator[Keeper]:
    """A keeper of this test."""
    with Keeper(etcd.endpoint, namespace=namespace) as made:
        yield made


def chain_is_whole(keeper: Keeper, name: str = "1") -> int:
    """Walk over all records of run ``order/NAME``: how many there are."""
    core = keeper._core
    walk = Walk(RunKeys(core.ctx.keys, RunName("order", name)))
    while core.run(walk.next_page(core.ctx, 10**6, core.until())):
        found = core.run(_last(core, name))
        if walk.seq >= found:
            break
    return walk.seq


def _last(core: Any, name: str) -> Any:
    from leasekeeper.protocol.history import last

    found = yield from last(core.ctx, RunKeys(core.ctx.keys, RunName("order", name)), core.until())
    assert found is not None
    return found[0].seq


def in_threads(count: int, work: Callable[[int], Any], bound_s: float = 60.0) -> list[Any]:
    """Do something in so many threads at the same moment: what each came to, errors raised."""
    together = threading.Barrier(count)

    def one(index: int) -> Any:
        together.wait(30)
        return work(index)

    with ThreadPoolExecutor(count) as pool:
        return [each.result(bound_s) for each in [pool.submit(one, index) for index in range(count)]]


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


def test_an_update_is_applied_anew_to_what_is_there(keeper: Keeper) -> None:
    """B9: somebody is faster between read and commit: the function runs again on the fresh state; no effect does."""
    calls: list[int] = []
    with keeper.run("order", id="1", signer=None) as run:
        run.do("effect", calls.append, 1)
        mine, other = run.checkpoint("count", Count), run.checkpoint("count", Count)
        seen: list[int] = []

        def add(now: Count | None) -> Count:
            seen.append(0 if now is None else now.total)
            if len(seen) <= 2:
                other.update(lambda at: Count((at or Count()).total + 10))
            return Count((now or Count()).total + 1)

        assert mine.update(add) == Count(21)
        assert seen == [0, 10, 20]
        assert mine.read() == Count(21)
        with pytest.raises(StaleCheckpoint):
            mine.update(lambda now: (other.update(lambda at: Count(99)), Count(1))[1], tries=3)
    assert calls == [1]


def test_a_commit_on_an_old_state_is_refused(keeper: Keeper) -> None:
    """B8: commit and put change what this handle has read, or nothing."""
    with keeper.run("order", id="1", signer=None) as run:
        mine, other = run.checkpoint("count", Count), run.checkpoint("count", Count)
        other.commit(total=5)
        changes: list[Callable[[], Any]] = [lambda: mine.commit(total=1), lambda: mine.put(Count(2))]
        for change in changes:
            with pytest.raises(StaleCheckpoint) as told:
                change()
            assert (told.value.expected, told.value.found) == (0, 1)
        assert mine.read() == Count(5)
        assert mine.commit(total=6) == Count(6)


def test_a_state_goes_with_its_step(keeper: Keeper) -> None:
    """B5: a step's outcome and the state it makes are one transaction; who was faster with the state does not undo the step."""
    with keeper.run("order", id="1", signer=None) as run:
        state, other = run.checkpoint("count", Count), run.checkpoint("count", Count)
        assert run.do("one", lambda: 1, commit=lambda result: state.change(total=result)) == 1
        assert state.value == Count(1)
        record = run.last()
        assert record.kind == "outcome"
        assert record.data["checkpoint"]["data"] == {"total": 1}
        other.read()
        other.commit(total=50)
        with pytest.raises(StaleCheckpoint):
            run.do("two", lambda: 2, commit=lambda result: state.change(total=result))
        assert run.do("two", lambda: 3) == 2
        assert state.read() == Count(50)


def test_a_commit_that_is_none(keeper: Keeper) -> None:
    """What ``commit`` makes is no change, or of another run's state, or fails: the outcome lands alone, and who asked is told."""
    with keeper.run("order", id="1", signer=None) as run, keeper.run("order", id="2", signer=None) as other:
        foreign = other.checkpoint("count", Count)
        bad: list[Callable[[Any], Any]] = [
            lambda result: None,
            lambda result: {"total": result},
            lambda result: foreign.change(total=result),
            lambda result: run.checkpoint("count", Count).change(nothing=result),
        ]
        for number, commit in enumerate(bad):
            with pytest.raises(Misuse):
                run.do(f"s{number}", lambda number=number: number, commit=commit)
            assert run.do(f"s{number}", lambda: -1) == number
        assert foreign.read() is None
        assert run.checkpoint("count", Count).value is None


def test_what_became_of_a_value_is_not_committed(keeper: Keeper) -> None:
    """A19: a state that the program changed in its own memory does not slip into the next change."""
    with keeper.run("order", id="1", signer=None) as run:
        state = run.checkpoint("any", dict)
        state.commit(a=1)
        assert state.value is not None
        state.value["sneaked"] = True
        run.do("one", lambda: 1, commit=lambda result: state.change(b=result))
        assert state.read() == {"a": 1, "b": 1}
        assert state.value is not None
        state.value["sneaked"] = True
        assert state.commit(c=1) == {"a": 1, "b": 1, "c": 1}


def test_whatever_a_handle_remembers_wrongly_writes_nothing_wrong(keeper: Keeper) -> None:
    """A19, B10: the remembered state or revision of a handle, changed: the commit is right or refused."""
    with keeper.run("order", id="1", signer=None) as run:
        for wrong in ((None, 0), ("loaded", 1), (None, "revision")):
            state = run.checkpoint("any", dict)
            state.commit(a=1)
            loaded, revision = state._seen
            state._seen = (loaded if wrong[0] else None, revision if wrong[1] == "revision" else int(wrong[1]))
            try:
                state.commit(b=2)
            except StaleCheckpoint:
                pass
            found = state.read()
            assert found is not None
            assert found["a"] == 1
            state.put({})


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


# ---------------------------------------------------------------- when it is over


def uses(run: Run) -> list[Callable[[], Any]]:
    """Everything that could write."""
    state = run.checkpoint("count", Count)
    phase = run.phase("keys", {"a": ["b"]})
    return [
        lambda: run.do("late", lambda: 1),
        lambda: run.memo("late memo", lambda: 1),
        lambda: state.commit(total=9),
        lambda: state.put(Count(9)),
        lambda: state.update(lambda now: Count(9)),
        lambda: phase.move("b"),
        lambda: run.checkpoint("another", Count).commit(total=1),
    ]


def test_after_the_block(keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """A19: once the block is left, nothing can be added through the run, its states or its phases; nothing is called."""
    with keeper.run("order", id="1", signer=None) as run:
        late = uses(run)
    revision = raw.revision()
    for use in late:
        with pytest.raises(LeaseLost) as told:
            use()
        assert told.value.reason == "released"
    assert raw.revision() == revision
    with pytest.raises(RunFinished), keeper.run("order", id="1", signer=None) as again:
        again.do("late", lambda: 1)


def test_after_the_lease_is_lost(keeper: Keeper, raw: RawEtcd) -> None:
    """A19: when somebody else may own the run, every use says LeaseLost, and the records are as they were."""

    def lose() -> None:
        with keeper.run("order", id="1", signer=None, ttl=5) as run:
            late.extend(uses(run))
            raw.delete(run.lease.key)
            for use in late:
                with pytest.raises(LeaseLost):
                    use()
            records.append(chain_is_whole(keeper))
            run.do("once more", lambda: 1)

    late: list[Callable[[], Any]] = []
    records: list[int] = []
    with pytest.raises(LeaseLost):
        lose()
    assert records == [1] == [chain_is_whole(keeper)]


def test_lost_while_the_call_is_under_way(keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """The lease goes during a call: LeaseLost, no outcome, a hint of what was seen; the next owner is in doubt."""

    def effect() -> str:
        raw.delete(run.lease.key)
        return "seen"

    with pytest.raises(LeaseLost), keeper.run("order", id="1", signer=None, ttl=5) as run:
        run.do("s", effect)
    (late,) = raw.keys(f"leasekeeper/{namespace}/run/order/1/late/")
    assert b'"seen"' in late.value
    with pytest.raises(InDoubt), keeper.run("order", id="1", signer=None, ttl=5) as run:
        run.do("s", effect)


def test_in_a_forked_child(keeper: Keeper, raw: RawEtcd) -> None:
    """In the child of a fork the run is lost; the parent's goes on, and the child has added nothing."""
    with keeper.run("order", id="1", signer=None) as run:
        run.do("one", lambda: 1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run.do("two", lambda: 1)
            except (LeaseLost, Misuse):
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert run.do("three", lambda: 3) == 3
        assert [step.key for step in run.steps()] == ["one", "three"]


def test_it_is_not_pickled_or_copied(keeper: Keeper) -> None:
    """A run, a state, a phase: none is pickled or copied; each says so, and shows no more than its name."""
    with keeper.run("order", id="1", signer=None) as run:
        for each in (run, run.checkpoint("count", Count), run.phase("keys", {"a": []})):
            for use in (pickle.dumps, copy.deepcopy):
                with pytest.raises(TypeError, match="cannot pickle or copy"):
                    use(each)
            assert "order/1" in repr(each)
        with pytest.raises(TypeError, match="cannot pickle or copy"):
            copy.copy(run)


def test_nothing_is_kept_of_a_run_that_is_over(keeper: Keeper) -> None:
    """A run that was left is garbage at once: neither keeper nor heart holds it."""
    import weakref

    def live() -> weakref.ref[Run]:
        with keeper.run("order", id="1", signer=None) as run:
            run.do("one", lambda: 1)
            in_threads(4, lambda index: run.do(f"t{index}", lambda: index))
            return weakref.ref(run)

    ref = live()

    def gone() -> bool:
        gc.collect()
        return ref() is None

    until(gone)


# ---------------------------------------------------------------- cancelled


@pytest.mark.parametrize(
    "where",
    ["find:send", "intent:send", "intent:reply", "effect:call", "effect:return", "outcome:send", "outcome:reply"],
)
def test_a_step_that_is_cancelled_anywhere(etcd: EtcdServer, namespace: str, where: str) -> None:
    """C43: cancelled in each phase of a step: the run goes on, other steps are not harmed, and the effect is never made twice."""
    calls: list[int] = []

    async def effect() -> int:
        calls.append(1)
        await asyncio.sleep(0)
        return 7

    async def main() -> None:
        tasks: list[asyncio.Task[Any]] = []
        struck: list[str] = []

        def passing(point: str) -> None:
            if point == where and tasks and asyncio.current_task() is tasks[0] and not struck:
                struck.append(point)
                tasks[0].cancel()

        async with (
            AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper,
            AsyncRunning(keeper, options("order", id="1", signer=None), 10, 10, passing) as run,
        ):
            tasks.append(asyncio.ensure_future(run.do("s", effect)))
            others = [asyncio.ensure_future(run.do(f"o{index}", lambda: 1)) for index in range(5)]
            await asyncio.wait(tasks)
            assert await asyncio.gather(*others) == [1] * 5
            assert tasks[0].cancelled() == bool(struck)
            try:
                assert await run.do("s", effect) == 7
            except InDoubt:
                await keeper.resolve(run.run, "s", applied=bool(calls), evidence="looked", result=7, signer=None)
                assert await run.do("s", effect) == 7
            assert len(calls) == 1

    asyncio.run(main())


def test_tasks_of_a_loop_that_is_closed(etcd: EtcdServer, namespace: str) -> None:
    """C43: a keeper used from one loop after the other: a step left hanging in the first does not block the run's next life."""
    keeper = AsyncKeeper(etcd.endpoint, namespace=namespace)

    async def first() -> None:
        run = await keeper.run("order", id="1", signer=None, ttl=5).__aenter__()
        asyncio.ensure_future(run.do("s", lambda: 1))  # noqa: RUF006 - left behind
        await asyncio.sleep(0)
        await run.lease.release()

    async def second() -> None:
        async with keeper.run("order", id="1", signer=None, ttl=5, timeout=20) as run:
            assert await run.do("other", lambda: 2) == 2
        await keeper.close()

    asyncio.run(first())
    asyncio.run(second())


def test_what_blocks_does_not_block_the_loop(etcd: EtcdServer, namespace: str) -> None:
    """C11: a blob store, an anchor or an alert that blocks is called beside the loop, which goes on meanwhile."""
    released = threading.Event()
    waiting: list[str] = []
    kept: dict[str, bytes] = {}

    def block(name: str) -> None:
        waiting.append(name)
        assert released.wait(30), "the loop did not go on"
        released.clear()

    class Blobs:
        def put(self, digest: str, data: bytes, /) -> None:
            kept[digest] = data
            block("put")

        def get(self, digest: str, /) -> bytes:
            block("get")
            return kept[digest]

    async def release() -> None:
        while True:
            await asyncio.sleep(0.005)
            if waiting and not released.is_set():
                done.append(waiting.pop())
                released.set()

    async def life() -> None:
        releasing = asyncio.ensure_future(release())
        async with (
            AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper,
            keeper.run("order", id="1", signer=None, blobs=Blobs(), alert=lambda told: block(told.kind)) as run,
        ):
            assert await run.do("large", lambda: "x" * 100_000) == "x" * 100_000
            with pytest.raises(ZeroDivisionError):
                await run.do("broken", lambda: 1 // 0)
            try:
                await run.do("broken", lambda: 1 // 0)
            finally:
                releasing.cancel()

    done: list[str] = []
    for _ in range(2):
        with pytest.raises((InDoubt, ZeroDivisionError)):
            asyncio.run(life())
    assert done[:2] == ["put", "in_doubt"]
    assert "get" in done


@pytest.mark.parametrize("where", ["intent:send", "intent:reply", "effect:return", "outcome:send", "outcome:reply"])
def test_a_block_that_is_cancelled_sends_what_it_was_about_to_record(
    etcd: EtcdServer, namespace: str, where: str
) -> None:
    """C43: a task that is cancelled while it records leaves no doubt: that its call was made, or was not, is sent on leaving."""
    calls: list[int] = []

    async def life(struck: list[str]) -> Any:
        def passing(point: str) -> None:
            task = asyncio.current_task()
            if point == where and not struck and task is not None:
                struck.append(point)
                task.cancel()

        async with (
            AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper,
            AsyncRunning(keeper, options("order", id="1", signer=None), 10, 10, passing) as run,
        ):
            return await run.do("s", lambda: calls.append(1))

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(life([]))
    assert len(calls) == (0 if where == "intent:send" else 1)
    assert asyncio.run(life(["no more"])) is None
    assert len(calls) == 1
