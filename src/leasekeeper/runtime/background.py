"""Clean-up that could not be confirmed in the foreground, retried within a bound on one thread."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from queue import Empty
from typing import TYPE_CHECKING

from leasekeeper.errors import StopWork
from leasekeeper.protocol.plan import Fault, Plan
from leasekeeper.runtime.blocking import jittered
from leasekeeper.runtime.mailbox import Mailbox
from leasekeeper.wire.worker import Worker

if TYPE_CHECKING:
    from leasekeeper.runtime.blocking import Blocking

__all__ = ["Background"]

PlanFactory = Callable[[], Plan[object]]

# More than this at once means that etcd has been away for long; the oldest then goes, and its lease runs out by itself.
JOBS_MAX = 10_000
# How long one clean-up is tried. A claim that outlives this is found again by the heart, which reads it back each TTL.
TRY_FOR_S = 60.0
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 2.0


class _Job:
    __slots__ = ("due_s", "over_s", "pause_s", "plan")

    def __init__(self, plan: PlanFactory, now_s: float) -> None:
        self.plan = plan
        self.due_s = now_s
        self.over_s = now_s + TRY_FOR_S
        self.pause_s = PAUSE_FIRST_S

    def __lt__(self, other: _Job) -> bool:
        return self.due_s < other.due_s


class Background:
    """Retries detached plans. Its thread starts with the first of them and ends with `close`."""

    def __init__(self, now: Callable[[], float], failed: Callable[[str], None]) -> None:
        self._now = now
        self._failed = failed
        # A Mailbox: its put is safe even inside a garbage collection.
        self._inbox: Mailbox[_Job | None] = Mailbox()
        self._jobs: list[_Job] = []
        self._worker = Worker(self._run, "leasekeeper-background")
        self._closed = False
        self._over_s = 0.0
        self.interpreter: Blocking | None = None

    def detach(self, plan: PlanFactory) -> None:
        """Run the plan soon, and again until it succeeds or its time is over. Never blocks, never fails."""
        if self._closed:
            return
        self._inbox.put(_Job(plan, self._now()))
        try:
            self._worker.start()
        except RuntimeError:
            pass  # no thread can be started just now: the next one tries again, or the lease runs out by itself

    def close(self, timeout_s: float = 1.0) -> None:
        """Give what is queued one last try, within a bound, and end the thread."""
        self._over_s = self._now() + timeout_s
        self._closed = True
        self._inbox.put(None)
        self._worker.join(timeout_s)

    def _run(self) -> None:
        while not self._closed:
            self._take(self._jobs[0].due_s - self._now() if self._jobs else None)
            while (job := self._due()) is not None:
                self._try(job)
        self._take(0.0)
        while self._jobs and self._now() < self._over_s:
            self._once(heapq.heappop(self._jobs))

    def _due(self) -> _Job | None:
        due = not self._closed and self._jobs and self._jobs[0].due_s <= self._now()
        return heapq.heappop(self._jobs) if due else None

    def _take(self, timeout_s: float | None) -> None:
        """Take in what has come; None only wakes."""
        try:
            job = self._inbox.get(timeout=None if timeout_s is None else max(0.0, timeout_s))
            while True:
                if job is not None:
                    self._add(job)
                job = self._inbox.get_nowait()
        except Empty:
            return

    def _add(self, job: _Job) -> None:
        heapq.heappush(self._jobs, job)
        if len(self._jobs) > JOBS_MAX:
            self._jobs.remove(min(self._jobs, key=lambda j: j.over_s))
            heapq.heapify(self._jobs)
            self._failed("too many clean-ups at once")

    def _try(self, job: _Job) -> None:
        fault = self._once(job)
        if fault is None:
            return
        now_s = self._now()
        if fault.lasting or now_s >= job.over_s:
            self._failed(f"{fault.operation}: {fault.text or fault.cause.value}")
            return
        job.due_s = now_s + jittered(job.pause_s)
        job.pause_s = min(PAUSE_MAX_S, 2 * job.pause_s)
        heapq.heappush(self._jobs, job)

    def _once(self, job: _Job) -> Fault | None:
        assert self.interpreter is not None
        try:
            self.interpreter.run(job.plan())
        except Fault as fault:
            return fault
        except (StopWork, Exception) as error:  # noqa: BLE001 - one broken job must not end the thread that all others need
            self._failed(repr(error))
        return None
