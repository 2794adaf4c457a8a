"""A worker for asyncio: goes on with runs that nobody goes on with. See `leasekeeper.runs.worker`."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from leasekeeper.errors import LeasekeeperError, Misuse, StopWork
from leasekeeper.protocol import unfinished
from leasekeeper.runs.aio import AsyncRunning
from leasekeeper.runs.pool import Pool, tell_failure

if TYPE_CHECKING:
    from leasekeeper.aio import AsyncKeeper
    from leasekeeper.protocol.run_keys import RunName
    from leasekeeper.runs.aio import AsyncRun
    from leasekeeper.runs.options import Asked

__all__ = ["AsyncWorker"]

log = logging.getLogger("leasekeeper")


class AsyncWorker:
    """Resumes unfinished runs, as `AsyncKeeper.worker` gives it, ``concurrency`` of them at once. Start it by `run`.

    A function that raises leaves its run to be resumed, by this worker or another, after a rest that grows. Cancelling `run`
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
        asked: Asked,
    ) -> None:
        self._keeper = keeper
        self._pool = Pool(resume, concurrency=concurrency, every=every, now=keeper._core.now, asked=asked)
        self._ttl = ttl
        keeper._core.want("any", ttl, None, "")
        self._stopping = False
        self._running = False
        self._found: deque[RunName] = deque()
        self._pauses: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Event | None = None
        self.finished = 0
        self.failed = 0

    def __repr__(self) -> str:
        return f"<AsyncWorker {' '.join(self._pool.resume)} finished={self.finished} failed={self.failed}>"

    async def run(self) -> None:
        """Work until `stop` is called, or this is cancelled."""
        if self._running or self._stopping:
            raise Misuse("this worker was started already: make another one")
        self._running, self._ended = True, asyncio.Event()
        works = [asyncio.ensure_future(self._work()) for _ in range(self._pool.concurrency)]
        try:
            await asyncio.gather(*works)
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            self._running = False
            self._ended.set()

    async def stop(self) -> None:
        """Take no more runs, and wait until those under way have ended. On the loop that runs it."""
        self._stopping = True
        for pause in tuple(self._pauses):
            pause.cancel()
        if self._running and self._ended is not None:
            await self._ended.wait()

    # ------------------------------------------------------------ its work

    async def _work(self) -> None:
        while not self._stopping:
            try:
                name = await self._next()
            except LeasekeeperError as error:
                log.warning("a worker could not look for runs: %s", error)
                name = None
            if name is None:
                await self._pause()
            else:
                await self._take(name)

    async def _pause(self) -> None:
        pause = asyncio.ensure_future(asyncio.sleep(self._pool.pause_s()))
        self._pauses.add(pause)
        try:
            await asyncio.wait((pause,))
        finally:
            self._pauses.discard(pause)
            pause.cancel()

    async def _next(self) -> RunName | None:
        if not self._found:
            self._found.extend(self._pool.shuffled(await self._look()))
        return self._found.popleft() if self._found else None

    async def _look(self) -> list[RunName]:
        core = self._keeper._core
        found: list[RunName] = []
        for workflow in self._pool.resume:
            start: bytes | None = None
            while not self._stopping:
                names, start = await core.arun(unfinished.page(core.ctx, workflow, start, core.until()))
                found += names
                if start is None:
                    break
        return found

    async def _take(self, name: RunName) -> None:
        """Go on with a run, if nobody else does; what comes of it is in its records."""
        try:
            done = await self._go_on(name)
        except (Exception, StopWork) as error:  # noqa: BLE001 - the worker outlives whatever a run does
            tell_failure(name, error)
            self._pool.failed(name)
            self.failed += 1
        else:
            if done:
                self._pool.done(name)
                self.finished += 1

    async def _go_on(self, name: RunName) -> bool:
        keeper, core = self._keeper, self._keeper._core
        if not await core.arun(unfinished.waits(core.ctx, name, core.until())):
            self._pool.failed(name)  # it waits for a person; looked at again, but not soon
            return False
        lease = await keeper.try_acquire(name.lease, ttl=self._ttl)
        if lease is None:
            return False
        options = self._pool.options(name)
        async with AsyncRunning(keeper, options, self._ttl, None, keeper._passing, lease=lease) as run:
            await self._pool.resume[name.workflow](run)
        return True
