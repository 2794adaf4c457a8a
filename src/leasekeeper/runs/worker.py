"""A worker: goes on with runs that nobody goes on with, one replica beside others.

It looks through the unfinished runs of its workflows, takes the lease of one that is free, and calls the workflow's function
with the run. What that function recorded before it died is not done again. A run that dies again and again without getting on
is quarantined (``restarts``), and somebody is told once.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from leasekeeper.errors import LeasekeeperError, Misuse, StopWork
from leasekeeper.protocol import unfinished
from leasekeeper.runs.pool import Pool, tell_failure
from leasekeeper.runs.run import Running
from leasekeeper.wire.worker import begin

if TYPE_CHECKING:
    from leasekeeper.keeper import Keeper
    from leasekeeper.protocol.run_keys import RunName
    from leasekeeper.runs.options import Asked
    from leasekeeper.runs.run import Run

__all__ = ["Worker"]

log = logging.getLogger("leasekeeper")


class Worker:
    """Resumes unfinished runs, as `Keeper.worker` gives it. Start it by `run`, or by ``with``.

    A function that raises leaves its run to be resumed, by this worker or another, after a rest that grows. Its threads are
    daemons: nothing relies on their getting to an end.
    """

    def __init__(
        self,
        keeper: Keeper,
        resume: Mapping[str, Callable[[Run], object]],
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
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._found: deque[RunName] = deque()
        self._alive = 0
        self._idle = threading.Event()
        self.finished = 0
        self.failed = 0

    def __repr__(self) -> str:
        return f"<Worker {' '.join(self._pool.resume)} finished={self.finished} failed={self.failed}>"

    # ------------------------------------------------------------ its life

    def start(self) -> None:
        """Begin, on threads of its own."""
        with self._lock:
            if self._alive or self._stop.is_set():
                raise Misuse("this worker was started already: make another one")
            self._alive = self._pool.concurrency
        for number in range(self._pool.concurrency):
            begin(self._work, f"leasekeeper-worker-{number}")

    def stop(self, timeout: float | None = None) -> bool:
        """Take no more runs, and wait until those under way have ended; whether they have within ``timeout`` seconds."""
        self._stop.set()
        return self._alive == 0 or self._idle.wait(timeout)

    def run(self) -> None:
        """Work until `stop` is called from elsewhere, or Ctrl-C."""
        self.start()
        try:
            while not self._idle.wait(1.0):
                pass
        finally:
            self._stop.set()

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------ its work

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    name = self._next()
                except LeasekeeperError as error:
                    log.warning("a worker could not look for runs: %s", error)
                    name = None
                if name is None:
                    self._stop.wait(self._pool.pause_s())
                else:
                    self._take(name)
        finally:
            with self._lock:
                self._alive -= 1
                if not self._alive:
                    self._idle.set()

    def _next(self) -> RunName | None:
        """The next run to try; None when there is none for now."""
        with self._lock:
            if not self._found:
                self._found.extend(self._pool.shuffled(self._look()))
            return self._found.popleft() if self._found else None

    def _look(self) -> list[RunName]:
        core = self._keeper._core
        found: list[RunName] = []
        for workflow in self._pool.resume:
            start: bytes | None = None
            while not self._stop.is_set():
                names, start = core.run(unfinished.page(core.ctx, workflow, start, core.until()))
                found += names
                if start is None:
                    break
        return found

    def _take(self, name: RunName) -> None:
        """Go on with a run, if nobody else does; what comes of it is in its records."""
        try:
            done = self._go_on(name)
        except (Exception, StopWork) as error:  # noqa: BLE001 - the worker outlives whatever a run does
            tell_failure(name, error)
            with self._lock:
                self._pool.failed(name)
                self.failed += 1
        else:
            if done:
                with self._lock:
                    self._pool.done(name)
                    self.finished += 1

    def _go_on(self, name: RunName) -> bool:
        keeper, core = self._keeper, self._keeper._core
        if not core.run(unfinished.waits(core.ctx, name, core.until())):
            with self._lock:
                self._pool.failed(name)  # it waits for a person; looked at again, but not soon
            return False
        lease = keeper.try_acquire(name.lease, ttl=self._ttl)
        if lease is None:
            return False
        with Running(keeper, self._pool.options(name), self._ttl, None, keeper._passing, lease=lease) as run:
            self._pool.resume[name.workflow](run)
        return True
