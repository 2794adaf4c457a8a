"""What workers share, under threads and asyncio: which runs they may take, when to look for more, when to leave one alone."""

from __future__ import annotations

import inspect
import logging
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasekeeper.durations import duration_s
from leasekeeper.errors import ConfigError, LeaseLost, Misuse, TryLater, shown
from leasekeeper.protocol.keys import check_name
from leasekeeper.protocol.unfinished import BEGINNING
from leasekeeper.run_errors import Conflict, Drift, InDoubt, Quarantined, RunHalted
from leasekeeper.runs.effect import gives_to_await, is_awaited, is_generator
from leasekeeper.runs.options import check_asked_of_worker, options

if TYPE_CHECKING:
    from leasekeeper.protocol.run_keys import RunName
    from leasekeeper.protocol.unfinished import Place, Standing
    from leasekeeper.runs.options import AskedOfWorker, RunOptions

__all__ = ["Attempt", "Pool", "check_came_to_its_end"]

log = logging.getLogger("leasekeeper")

CONCURRENCY_MAX = 256
# Looking without a pause would keep etcd busy for nothing.
EVERY_MIN_S = 0.05
# A run that failed is left alone for a while, longer each time; so many are remembered.
REST_FIRST_S = 1.0
REST_MAX_S = 300.0
# One that waits for a person, or for a halt to be lifted: to look at it costs a read, and then it should go on soon.
WAIT_MAX_S = 30.0
RESTING_MAX = 10_000
EXPECTED = 'a dict of workflow to the function that is given the run, such as {"order": order_main}'


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at a run. ``begun``: its function was called; if not, ``standing`` may say why."""

    name: RunName
    standing: Standing = "waits"
    begun: bool = False


class Pool:
    """The workflows that a worker resumes, the runs it has found, and how it spaces its attempts.

    Used by one thread, or one loop, at a time. ``finished`` and ``failed`` count the attempts that ended so.
    """

    def __init__(
        self,
        resume: Mapping[str, Callable[..., Any]],
        *,
        concurrency: int,
        every: float | str,
        now: Callable[[], float],
        asked: AskedOfWorker,
        awaits: bool,
    ) -> None:
        mains = _mains(resume, awaits=awaits)
        check_asked_of_worker(asked)
        if type(concurrency) is not int or not 1 <= concurrency <= CONCURRENCY_MAX:
            raise ConfigError(
                field="concurrency", value=concurrency, expected=f"a whole number from 1 to {CONCURRENCY_MAX}"
            )
        self.resume = mains
        self.workflows = tuple(self.resume)
        self.concurrency = concurrency
        self.every_s = max(EVERY_MIN_S, duration_s("every", every))
        self.place: Place = BEGINNING
        self.finished = 0
        self.failed = 0
        self._asked = asked
        self._now = now
        self._found: deque[RunName] = deque()
        self._look_at_s = float("-inf")
        self._missed = 0
        self._resting: OrderedDict[str, tuple[float, float]] = OrderedDict()
        for workflow in self.resume:
            options(workflow, id="any", **asked)  # what cannot be is said now

    def options(self, name: RunName) -> RunOptions:
        """How a run is opened."""
        return options(name.workflow, id=name.id, **self._asked)

    # ------------------------------------------------------------ looking

    def next(self) -> RunName | None:
        """The next run to try; None when there is none for now."""
        return self._found.popleft() if self._found else None

    def is_due(self) -> bool:
        """Whether it is time to look for more."""
        return not self._found and self._now() >= self._look_at_s

    def found(self, names: list[RunName], place: Place) -> None:
        """Take in what a look has found: those that may be tried now, in an order of this worker's own.

        So replicas do not all try one first.
        """
        now_s = self._now()
        ready = [name for name in names if self._resting.get(name.text, (0.0, 0.0))[0] <= now_s]
        random.shuffle(ready)
        self._found.extend(ready)
        self.place = place
        self._missed = 0
        self._look_at_s = now_s + self.pause_s()

    def missed(self, error: BaseException) -> None:
        """There is no asking etcd now; what was found is found again. Logged the 1st, 2nd, 4th, 8th … time in a row."""
        self._found.clear()
        self._look_at_s = self._now() + self.pause_s()
        self._missed += 1
        if not self._missed & (self._missed - 1):
            log.warning("a worker could not look for runs, %d times in a row: %s", self._missed, error)

    def until_due_s(self) -> float:
        """How long to wait until it is time to look."""
        return max(EVERY_MIN_S, self._look_at_s - self._now())

    def pause_s(self) -> float:
        """How long to wait before looking again, never the same for two replicas."""
        return self.every_s * (0.5 + random.random())

    # ------------------------------------------------------------ attempts

    def ended(self, attempt: Attempt, error: BaseException | None) -> None:
        """What became of an attempt."""
        name = attempt.name
        if error is None and (attempt.begun or attempt.standing == "finished"):
            self._resting.pop(name.text, None)
            self.finished += attempt.begun
            # Who gets on looks again at once; who does not, after a pause.
            self._look_at_s = float("-inf") if attempt.begun else self._look_at_s
        elif error is None:
            if attempt.standing != "waits":
                self._rest(name, WAIT_MAX_S)
        elif isinstance(error, TryLater) and not attempt.begun:
            self.missed(error)
        else:
            self.failed += 1
            self._rest(name, WAIT_MAX_S if isinstance(error, RunHalted) else REST_MAX_S)
            _tell_failure(name, error)

    def _rest(self, name: RunName, most_s: float) -> None:
        """Leave it alone for a while, twice as long as the last time."""
        _, rest_s = self._resting.pop(name.text, (0.0, REST_FIRST_S / 2))
        rest_s = min(most_s, 2 * rest_s)
        self._resting[name.text] = (self._now() + rest_s * (0.5 + random.random() / 2), rest_s)
        while len(self._resting) > RESTING_MAX:
            self._resting.popitem(last=False)


def _mains(resume: object, *, awaits: bool) -> dict[str, Callable[..., Any]]:
    """What a worker was given to resume, checked."""
    if not isinstance(resume, Mapping) or not resume:
        raise ConfigError(field="resume", value=resume, expected=EXPECTED)
    mains = dict(resume)
    for workflow, main in mains.items():
        check_name(workflow, "workflow")
        _check_main(workflow, main, awaits=awaits)
    return mains


def _check_main(workflow: str, main: object, *, awaits: bool) -> None:
    if not callable(main):
        expected = "a function that is given the run"
    elif is_generator(main):
        expected = "a function that does its work when it is called; one with yield only begins when it is iterated"
    elif awaits and not is_awaited(main):
        expected = "a coroutine function"
    elif not awaits and gives_to_await(main):
        expected = "a plain function; AsyncKeeper takes coroutine functions"
    elif not _takes_one(main):
        expected = "a function that can be given the run, and nothing else"
    else:
        return
    raise Misuse(f"resume[{workflow!r}]={shown(main)}: expected {expected}")


def _takes_one(main: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(main)
    except (TypeError, ValueError):
        return True  # written in C, say: it is found out when it is called
    try:
        signature.bind(None)
    except TypeError:
        return False
    return True


def check_came_to_its_end(workflow: str, result: object) -> None:
    """Misuse when what a function gave shows that its work was not done: its run would be finished without it."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise Misuse(f"the function of {workflow!r} gave something to await: await it in there, under AsyncKeeper")
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise Misuse(f"the function of {workflow!r} gave a generator, which has done nothing yet")


def _tell_failure(name: RunName, error: BaseException) -> None:
    """Log why a run did not get to its end: with where it was raised, unless an alert or its records have said it already."""
    if isinstance(error, (LeaseLost, RunHalted, Quarantined, InDoubt, Drift)):
        log.info("run %s did not get to its end here: %s", name, error)
    elif isinstance(error, Conflict):  # nobody was told of it yet; where it was raised is in its step's record
        log.error("run %s did not get to its end here: %s", name, error)
    else:
        log.error("run %s did not get to its end here: %s", name, error, exc_info=error)
