"""A worker for asyncio: goes on with runs that nobody goes on with. See `leasekeeper.runs.worker`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from leasekeeper.errors import LeasekeeperError, Misuse
from leasekeeper.protocol import unfinished
from leasekeeper.runs.aio import AsyncRunning
from leasekeeper.runs.failures import give
from leasekeeper.runs.pool import Attempt, Pool, check_came_to_its_end
from leasekeeper.runtime.aio import aside

if TYPE_CHECKING:
    from leasekeeper.aio import AsyncKeeper
    from leasekeeper.protocol.halt import Halt
    from leasekeeper.protocol.run_keys import RunName
    from leasekeeper.runs.aio import AsyncRun
    from leasekeeper.runs.options import AskedOfWorker

__all__ = ["AsyncWorker"]


class AsyncWorker:
    """Resumes unfinished runs, as `AsyncKeeper.worker` gives it, ``concurrency`` at once. Start it by `run`, or ``async with``.

    A function that raises leaves its run to be resumed, by this worker or another, after a rest that grows; also one that was
    cancelled from within. `KeyboardInterrupt` and `SystemExit` end the event loop, as they do from any task. Cancelling `run`
    cancels the runs under way: a step in the middle of its call is then in doubt, as after a crash.
    """

    def __init__(
        self,
        keeper: AsyncKeeper,
        resume: Mapping[str, Callable[[AsyncRun], Awaitable[object]]],
        *,
        concurrency: int,
        every: float | str,
        ttl: float | None,
        asked: AskedOfWorker,
    ) -> None:
        self._keeper = keeper
        self._pool = Pool(
            resume,
            concurrency=concurrency,
            every=every,
            now=keeper._core.now,
            asked=asked,
            awaits=True,
            holder=keeper._core.ctx.holder,
        )
        self._ttl = ttl
        keeper._core.want("any", ttl, None, "")
        self._started = False
        self._stopping = False
        self._looking = False
        self._pauses: set[asyncio.Task[None]] = set()
        self._goings: set[asyncio.Task[None]] = set()
        self._works: list[asyncio.Task[None]] = []
        self._running: asyncio.Task[None] | None = None

    @property
    def finished(self) -> int:
        """How many runs were finished here."""
        return self._pool.finished

    @property
    def failed(self) -> int:
        """How many attempts ended before that."""
        return self._pool.failed

    def __repr__(self) -> str:
        return f"<AsyncWorker {' '.join(self._pool.resume)} finished={self.finished} failed={self.failed}>"

    # ------------------------------------------------------------ its life

    async def run(self) -> None:
        """Work until `stop` is called, or this is cancelled."""
        if self._started or self._stopping:
            raise Misuse("this worker was started already: make another one")
        self._started = True
        self._works = works = [asyncio.ensure_future(self._work()) for _ in range(self._pool.concurrency)]
        try:
            await asyncio.gather(*works)
        finally:
            self._stopping = True
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    async def stop(self) -> None:
        """Take no more runs, and wait until those under way have ended. On the loop that runs it.

        Awaited by a function that it has called, it does not wait.
        """
        self._stopping = True
        self._wake()
        if asyncio.current_task() not in self._goings and self._works:
            await asyncio.wait(self._works)

    async def __aenter__(self) -> AsyncWorker:
        self._running = asyncio.ensure_future(self.run())
        await asyncio.sleep(0)  # let it begin
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        assert self._running is not None
        running = self._running
        try:
            if error is None or isinstance(error, Exception):
                await self.stop()
        finally:
            if not all(work.done() for work in self._works):
                running.cancel()
            await asyncio.wait((running,))
        if kind is None and not running.cancelled():
            running.result()

    def _wake(self) -> None:
        for pause in tuple(self._pauses):
            pause.cancel()

    # ------------------------------------------------------------ its work

    async def _work(self) -> None:
        while not self._stopping:
            name = await self._next()
            if name is not None:
                await self._take(name)

    async def _next(self) -> RunName | None:
        """The next run to try, after a pause if there is none for now, or none."""
        pool = self._pool
        if (name := pool.next()) is not None:
            return name
        if self._looking or not pool.is_due():
            await self._pause(pool.pause_s() if self._looking else pool.until_due_s())
            return None
        self._looking = True
        try:
            await self._look()
        finally:
            self._looking = False
            self._wake()
        return None

    async def _pause(self, pause_s: float) -> None:
        pause = asyncio.ensure_future(asyncio.sleep(pause_s))
        self._pauses.add(pause)
        try:
            await asyncio.wait((pause,))
        finally:
            self._pauses.discard(pause)
            pause.cancel()

    async def _look(self) -> None:
        """Look for runs: one task for all of them."""
        core, pool = self._keeper._core, self._pool
        halted: list[Halt] = []
        try:
            until, going = core.until(), (lambda: not self._stopping)
            plan = unfinished.look(core.ctx, pool.workflows, pool.place, until, going, halted.append)
            names, place = await core.arun(plan)
        except LeasekeeperError as error:
            self._stopping = self._stopping or core.closed or core.forked
            if not self._stopping:
                pool.missed(error)
        else:
            pool.found(names, place, halted)

    async def _take(self, name: RunName) -> None:
        """Go on with a run, if nobody else does; what comes of it is in its records.

        In a task of its own: a function that cancels itself is told from a worker that is cancelled.
        """
        attempt = Attempt(name)
        going = asyncio.ensure_future(self._go_on(attempt))
        self._goings.add(going)
        try:
            await asyncio.wait((going,))
        finally:
            self._goings.discard(going)
            while not going.done():
                going.cancel()
                await asyncio.wait((going,))
        alert = self._pool.ended(attempt, asyncio.CancelledError() if going.cancelled() else going.exception())
        if alert is not None:
            hook, observe = self._pool.alert, self._keeper._core.observe
            passed_on = await aside(lambda: give(alert, hook, observe), "leasekeeper-alarm")
            self._pool.told(name, alert, passed_on=passed_on)

    async def _go_on(self, attempt: Attempt) -> None:
        keeper, core, name = self._keeper, self._keeper._core, attempt.name
        attempt.stand = await core.arun(unfinished.stand(core.ctx, name, core.until(), self._pool.snag(name)))
        if not self._pool.may_try(attempt):
            return
        options = self._pool.options(name)
        lease = await keeper.try_acquire(name.lease, ttl=self._ttl)
        if lease is None:
            return
        async with AsyncRunning(keeper, options, self._ttl, None, keeper._passing, lease=lease) as run:
            if run._read:  # somebody finished it between the look and the lease
                attempt.stand = unfinished.Stand("finished")
                return
            attempt.begun = True
            check_came_to_its_end(name.workflow, await self._pool.resume[name.workflow](run))
