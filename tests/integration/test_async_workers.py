"""Workers of asyncio against a real etcd: the same as those of threads, and what cancelling means."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from leasekeeper import AsyncKeeper, Misuse
from leasekeeper.runs.aio import AsyncRun
from leasekeeper.runs.aio_worker import AsyncWorker
from leasekeeper.runs.alert import Alert
from leasekeeper.testing import EtcdServer
from tests.raw import RawEtcd
from tests.working import EVERY_S, kinds

pytestmark = pytest.mark.usefixtures("quick", "silent")
WAIT_S = 30.0
Work = Callable[[AsyncKeeper], Coroutine[Any, Any, None]]


@pytest.fixture
def working(etcd: EtcdServer, namespace: str) -> Callable[[Work], None]:
    """Runs what a test does with a keeper, on a loop of its own, within a bound."""

    async def bounded(work: Work) -> None:
        async with AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper:
            await asyncio.wait_for(work(keeper), WAIT_S)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, "a worker leaves no task behind"

    return lambda work: asyncio.run(bounded(work))


async def until(predicate: Callable[[], object]) -> None:
    """Poll until it is true; the test's own bound ends it."""
    while not predicate():  # noqa: ASYNC110 - nobody sets an event for what a test looks at
        await asyncio.sleep(0.02)


async def begin(keeper: AsyncKeeper, *names: str) -> None:
    """Runs for a worker."""
    for name in names:
        assert await keeper.begin("order", id=name, ttl=5)


def worker(keeper: AsyncKeeper, main: Callable[[AsyncRun], Awaitable[object]], **more: Any) -> AsyncWorker:
    """A worker of one workflow."""
    return keeper.worker({"order": main}, **{"every": EVERY_S, "ttl": 5, **more})


def test_what_is_no_coroutine_function_is_refused_early(working: Callable[[Work], None]) -> None:
    """A plain function would block the loop and give nothing to await: Misuse when the worker is made."""

    async def work(keeper: AsyncKeeper) -> None:
        with pytest.raises(Misuse, match="coroutine function"):
            keeper.worker({"order": lambda run: None})  # type: ignore[dict-item,return-value]

    working(work)


def test_a_forgotten_await_finishes_nothing(working: Callable[[Work], None], raw: RawEtcd, namespace: str) -> None:
    """A function that returns its step instead of awaiting it would finish its run undone: it fails instead."""
    calls: list[str] = []

    async def main(run: AsyncRun) -> object:
        return run.do("act", calls.append, "acted")

    async def work(keeper: AsyncKeeper) -> None:
        await begin(keeper, "1")
        async with worker(keeper, main) as workers:
            await until(lambda: workers.failed >= 1)

    working(work)
    assert calls == []
    assert "finished" not in kinds(raw, namespace, "order/1")


def test_so_many_at_once(working: Callable[[Work], None]) -> None:
    """A worker goes on with ``concurrency`` runs at once, not more, and with each once."""
    calls: Counter[str] = Counter()
    now, most = 0, 0

    async def main(run: AsyncRun) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await run.do("act", lambda: calls.update([run.id]))
        await asyncio.sleep(0.05)
        now -= 1

    async def work(keeper: AsyncKeeper) -> None:
        await begin(keeper, *map(str, range(12)))
        async with worker(keeper, main, concurrency=3) as workers:
            await until(lambda: workers.finished == 12)

    working(work)
    assert most == 3
    assert set(calls.values()) == {1}


def test_cancelling_cancels_what_is_under_way(working: Callable[[Work], None], raw: RawEtcd, namespace: str) -> None:
    """A cancelled `run` ends at once and gives its runs back; the step in the middle of its call is in doubt."""
    entered = asyncio.Event()

    async def endless() -> None:
        entered.set()
        await asyncio.Event().wait()

    async def main(run: AsyncRun) -> None:
        await run.do("act", endless)

    async def work(keeper: AsyncKeeper) -> None:
        await begin(keeper, "1")
        workers = worker(keeper, main)
        running = asyncio.ensure_future(workers.run())
        await entered.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await workers.stop()
        assert workers.failed == 0
        lease = await keeper.acquire("run/order/1", ttl=5, timeout=10)
        await lease.release()

    working(work)
    found = kinds(raw, namespace, "order/1")
    assert found[:3] == ["opened", "opened", "intent"]
    assert not {"outcome", "raised", "finished"} & set(found), "nobody knows what became of the call"


def test_stopping_lets_it_end(working: Callable[[Work], None]) -> None:
    """`stop` takes nothing new, and waits for what is under way; an idle worker is woken by it."""
    entered, let_go = asyncio.Event(), asyncio.Event()

    async def main(run: AsyncRun) -> None:
        entered.set()
        await let_go.wait()

    async def work(keeper: AsyncKeeper) -> None:
        await begin(keeper, "1", "2")
        workers = worker(keeper, main)
        running = asyncio.ensure_future(workers.run())
        await entered.wait()
        stopping = asyncio.ensure_future(workers.stop())
        await asyncio.sleep(5 * EVERY_S)
        assert not stopping.done()
        let_go.set()
        await stopping
        await running
        assert (workers.finished, workers.failed) == (1, 0)

        idle = worker(keeper, main, every=3600)
        running = asyncio.ensure_future(idle.run())
        await until(lambda: idle.finished == 1)
        await idle.stop()
        await running

    working(work)


def test_a_function_that_stops_its_worker(working: Callable[[Work], None]) -> None:
    """`stop`, awaited from within, does not wait for itself."""

    async def work(keeper: AsyncKeeper) -> None:
        async def main(run: AsyncRun) -> None:
            await workers.stop()

        workers = worker(keeper, main)
        await begin(keeper, "1", "2")
        await workers.run()
        assert workers.finished == 1

    working(work)


def test_a_function_that_is_cancelled_from_within(working: Callable[[Work], None]) -> None:
    """A run whose function ends as cancelled is one that failed: the worker goes on, with it and with others."""
    once: list[str] = []

    async def main(run: AsyncRun) -> None:
        if not once:
            once.append(run.id)
            part = asyncio.ensure_future(asyncio.sleep(3600))
            part.cancel()
            await part
        await run.do("act", lambda: 1)

    async def work(keeper: AsyncKeeper) -> None:
        await begin(keeper, "1", "2")
        async with worker(keeper, main) as workers:
            await until(lambda: workers.finished == 2)
        assert workers.failed == 1

    working(work)


def test_an_error_in_the_block_ends_the_worker(working: Callable[[Work], None]) -> None:
    """``async with`` waits for what is under way, and the block's own error comes out."""

    async def main(run: AsyncRun) -> None:
        await run.do("act", lambda: 1)

    async def work(keeper: AsyncKeeper) -> None:
        workers = worker(keeper, main)
        with pytest.raises(ValueError, match="the block's"):
            async with workers:
                raise ValueError("the block's")
        with pytest.raises(Misuse, match="started already"):
            await workers.run()

    working(work)


def test_a_poison_run(working: Callable[[Work], None]) -> None:
    """A25: put aside after its budget, told once, lifted by an operator, done; others go on meanwhile."""
    alerts: list[Alert] = []
    done: list[str] = []
    cured = False

    async def main(run: AsyncRun) -> None:
        if run.id == "poison" and not cured:
            raise ValueError("again")
        await run.do("act", lambda: done.append(run.id))

    async def work(keeper: AsyncKeeper) -> None:
        nonlocal cured
        await begin(keeper, "poison", "a")
        async with worker(keeper, main, restarts=2, alert=alerts.append) as workers:
            await until(lambda: alerts)
            await until(lambda: workers.finished == 1)
            cured = True
            await keeper.resolve("order/poison", evidence="mended")
            await until(lambda: workers.finished == 2)

    working(work)
    assert [each.kind for each in alerts] == ["quarantined"]
    assert sorted(done) == ["a", "poison"]


def test_a_worker_ends_with_its_keeper(etcd: EtcdServer, namespace: str) -> None:
    """Closing the keeper ends what works with it."""

    async def main(run: AsyncRun) -> None:
        raise AssertionError("there is no run")

    async def work() -> None:
        keeper = AsyncKeeper(etcd.endpoint, namespace=namespace)
        running = asyncio.ensure_future(worker(keeper, main, concurrency=2).run())
        await asyncio.sleep(3 * EVERY_S)
        await keeper.close()
        await asyncio.wait_for(running, WAIT_S)

    asyncio.run(work())
