"""A worker: goes on with runs that nobody goes on with, one replica beside others.

It looks through the unfinished runs of its workflows, takes the lease of one that is free, and calls the workflow's function
with the run. What that function recorded before it died is not done again. A run that dies again and again without getting on
is quarantined (``restarts``), and somebody is told once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from leasekeeper.errors import LeasekeeperError, Misuse
from leasekeeper.protocol import unfinished
from leasekeeper.runs.failures import give
from leasekeeper.runs.pool import Attempt, Pool, check_came_to_its_end
from leasekeeper.runs.run import Running
from leasekeeper.runtime.fork import HERE
from leasekeeper.wire.worker import begin

if TYPE_CHECKING:
    from leasekeeper.keeper import Keeper
    from leasekeeper.protocol.halt import Halt
    from leasekeeper.protocol.run_keys import RunName
    from leasekeeper.runs.alert import Alert
    from leasekeeper.runs.options import AskedOfWorker
    from leasekeeper.runs.run import Run

__all__ = ["Worker"]


class Worker:
    """Resumes unfinished runs, as `Keeper.worker` gives it. Start it by `run`, or by ``with``.

    A function that raises, whatever it raises, leaves its run to be resumed, by this worker or another, after a rest that grows:
    also `sys.exit`, which ends that life of the run and not the worker. Its threads are daemons: nothing relies on their getting
    to an end. It ends by `stop`, or when its keeper is closed; it does not live on in a forked child.
    """

    def __init__(
        self,
        keeper: Keeper,
        resume: Mapping[str, Callable[[Run], object]],
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
            awaits=False,
            holder=keeper._core.ctx.holder,
        )
        self._ttl = ttl
        keeper._core.want("any", ttl, None, "")
        # Guards the pool and all below; whoever changes something tells those who wait.
        self._news = threading.Condition()
        self._threads: set[threading.Thread] = set()
        self._started = False
        self._stopping = False
        self._looking = False

    @property
    def finished(self) -> int:
        """How many runs were finished here."""
        return self._pool.finished

    @property
    def failed(self) -> int:
        """How many attempts ended before that."""
        return self._pool.failed

    def __repr__(self) -> str:
        return f"<Worker {' '.join(self._pool.resume)} finished={self.finished} failed={self.failed}>"

    # ------------------------------------------------------------ its life

    def start(self) -> None:
        """Begin, on threads of its own. RuntimeError when no thread can be started just now; nothing is left behind then."""
        with self._news:
            if self._started or self._stopping:
                raise Misuse("this worker was started already: make another one")
            self._started = True
        try:
            for number in range(self._pool.concurrency):
                begin(self._work, f"leasekeeper-worker-{number}")
        except BaseException:
            self._tell_stop()
            raise

    def stop(self, timeout: float | None = None) -> bool:
        """Take no more runs, and wait until those under way have ended; whether they have within ``timeout`` seconds.

        Called by a function that it has called, it does not wait for that one: False.
        """
        self._tell_stop()
        if self._is_elsewhere():
            return True
        with self._news:
            if threading.current_thread() in self._threads:
                return False
            return self._news.wait_for(lambda: not self._threads, timeout)

    def run(self) -> None:
        """Work until `stop` is called from elsewhere, or Ctrl-C, which leaves the runs under way to themselves."""
        self.start()
        try:
            with self._news:
                while not self._stopping or self._threads:
                    self._news.wait(1.0)
        finally:
            self._tell_stop()

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _tell_stop(self) -> None:
        self._stopping = True
        if not self._is_elsewhere():
            with self._news:
                self._news.notify_all()

    def _is_elsewhere(self) -> bool:
        """Whether this is a forked child: its threads do not exist here, and one of them may hold the lock for ever."""
        return self._keeper._core.forked or not HERE[0]

    # ------------------------------------------------------------ its work

    def _work(self) -> None:
        me = threading.current_thread()
        with self._news:
            self._threads.add(me)
        try:
            while not self._stopping:
                name = self._next()
                if name is not None:
                    self._take(name)
        finally:
            if not self._is_elsewhere():
                with self._news:
                    self._threads.discard(me)
                    self._news.notify_all()

    def _next(self) -> RunName | None:
        """The next run to try, after a pause if there is none for now, or none."""
        pool = self._pool
        with self._news:
            if (name := pool.next()) is not None or self._stopping:
                return name
            if self._looking or not pool.is_due():
                # Who looks tells the others when that is over.
                self._news.wait(pool.pause_s() if self._looking else pool.until_due_s())
                return None
            self._looking = True
        try:
            self._look()
        finally:
            with self._news:
                self._looking = False
                self._news.notify_all()
        return None

    def _look(self) -> None:
        """Look for runs: one thread for all of them."""
        core, pool = self._keeper._core, self._pool
        halted: list[Halt] = []
        try:
            until, going = core.until(), (lambda: not self._stopping)
            plan = unfinished.look(core.ctx, pool.workflows, pool.place, until, going, halted.append)
            names, place = core.run(plan)
        except LeasekeeperError as error:
            if core.closed or core.forked:
                self._tell_stop()
                return
            with self._news:
                pool.missed(error)
        else:
            with self._news:
                pool.found(names, place, halted)

    def _take(self, name: RunName) -> None:
        """Go on with a run, if nobody else does; what comes of it is in its records."""
        attempt, error = Attempt(name), None
        try:
            self._go_on(attempt)
        except BaseException as raised:  # noqa: BLE001 - the worker outlives whatever a run does
            error = raised
        if self._is_elsewhere():
            self._stopping = True  # the function has forked, and this is the child
            return
        with self._news:
            alert = self._pool.ended(attempt, error)
        if alert is not None:
            self._give(name, alert)

    def _give(self, name: RunName, alert: Alert) -> None:
        """Tell somebody, beside what other threads do."""
        passed_on = give(alert, self._pool.alert, self._keeper._core.observe)
        if self._is_elsewhere():
            self._stopping = True  # the hook has forked, and this is the child
            return
        with self._news:
            self._pool.told(name, alert, passed_on=passed_on)

    def _go_on(self, attempt: Attempt) -> None:
        keeper, core, name = self._keeper, self._keeper._core, attempt.name
        with self._news:
            snag = self._pool.snag(name)
        attempt.stand = core.run(unfinished.stand(core.ctx, name, core.until(), snag))
        with self._news:
            if not self._pool.may_try(attempt):
                return
        options = self._pool.options(name)
        lease = keeper.try_acquire(name.lease, ttl=self._ttl)
        if lease is None:
            return
        with Running(keeper, options, self._ttl, None, keeper._passing, lease=lease) as run:
            if run._read:  # somebody finished it between the look and the lease
                attempt.stand = unfinished.Stand("finished")
                return
            attempt.begun = True
            check_came_to_its_end(name.workflow, self._pool.resume[name.workflow](run))
