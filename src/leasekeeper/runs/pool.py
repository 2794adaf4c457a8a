"""What workers share, under threads and asyncio: which runs they may take, when to look for more, when to leave one alone."""

from __future__ import annotations

import inspect
import logging
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasekeeper.durations import duration_s
from leasekeeper.errors import ConfigError, Misuse, StoreRewound, TryLater, shown
from leasekeeper.protocol.halt import Halt
from leasekeeper.protocol.keys import check_name
from leasekeeper.protocol.unfinished import BEGINNING, Snag, Stand
from leasekeeper.runs import failures
from leasekeeper.runs.effect import gives_to_await, is_awaited, is_generator
from leasekeeper.runs.options import check_asked_of_worker, options

if TYPE_CHECKING:
    from leasekeeper.protocol.run_keys import RunName
    from leasekeeper.protocol.unfinished import Place
    from leasekeeper.runs.alert import Alert
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
HALTS_MAX = 1000
WAITS = Stand("waits")
EXPECTED = 'a dict of workflow to the function that is given the run, such as {"order": order_main}'


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at a run. ``begun``: its function was called; if not, ``stand`` may say why."""

    name: RunName
    stand: Stand = WAITS
    begun: bool = False


@dataclass(slots=True, eq=False)
class Rest:
    """A run that is left alone until ``until_s``, after ``rest_s``; ``times`` in a row it has failed for the reason ``sort``.

    With a ``snag`` it is left alone as long as that is there, or until ``tried_s``. ``about`` is the run, kind and step of the
    alert that was given, ``alert`` that which nobody could be told yet.
    """

    until_s: float = 0.0
    rest_s: float = 0.0
    sort: str = ""
    times: int = 0
    snag: Snag | None = None
    tried_s: float = float("inf")
    about: tuple[str, str, str] | None = None
    alert: Alert | None = None


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
        holder: str = "",
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
        self.alert = asked.get("alert")
        self._asked = asked
        self._now = now
        self._found: deque[RunName] = deque()
        self._look_at_s = float("-inf")
        self._missed = 0
        self._holder = holder
        self._barred = False
        self._resting: OrderedDict[str, Rest] = OrderedDict()
        self._halts: OrderedDict[tuple[str, int], None] = OrderedDict()
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

    def found(self, names: list[RunName], place: Place, halted: Sequence[Halt] = ()) -> None:
        """Take in what a look has found: those that may be tried now, in an order of this worker's own.

        So replicas do not all try one first. ``halted`` are the halts that cover others.
        """
        for halt in halted:
            self._tell_halt(halt)
        now_s = self._now()
        ready = [name for name in names if not self._rests(name, now_s)]
        random.shuffle(ready)
        self._found.extend(ready)
        self.place = place
        self._missed = 0
        self._look_at_s = now_s + self.pause_s()

    def missed(self, error: BaseException) -> None:
        """There is no asking etcd now; what was found is found again. Logged the 1st, 2nd, 4th, 8th … time in a row.

        An etcd that was set back is no run's matter either; it waits for a person, and is logged once.
        """
        self._found.clear()
        self._look_at_s = self._now() + self.pause_s()
        if isinstance(error, StoreRewound):
            if not self._barred:
                log.error("a worker can take no run: %s", error)
            self._barred = True
            return
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

    def snag(self, name: RunName) -> Snag | None:
        """Why it was of no use to go on with a run when it was tried last."""
        rest = self._resting.get(name.text)
        return None if rest is None else rest.snag

    def may_try(self, attempt: Attempt) -> bool:
        """Whether, as it stands, it is of use to go on with it."""
        rest = self._resting.get(attempt.name.text)
        snagged = attempt.stand.snagged and rest is not None and self._now() < rest.tried_s
        return attempt.stand.standing == "waits" and not snagged

    def ended(self, attempt: Attempt, error: BaseException | None) -> Alert | None:
        """What became of an attempt. The alert that somebody is to be told now: then say whether that was done (`told`)."""
        name, standing = attempt.name, attempt.stand.standing
        self._barred = self._barred and not attempt.begun
        if error is None and (attempt.begun or standing == "finished"):
            self._resting.pop(name.text, None)
            self.finished += attempt.begun
            # Who gets on looks again at once; who does not, after a pause.
            self._look_at_s = float("-inf") if attempt.begun else self._look_at_s
        elif error is None:
            if standing != "waits" or attempt.stand.snagged:
                return _due(self._rest(name, WAIT_MAX_S))
        elif isinstance(error, (TryLater, StoreRewound)) and not attempt.begun:
            self.missed(error)
        else:
            self.failed += 1
            return self._failed(attempt, error)
        return None

    def told(self, name: RunName, alert: Alert, *, passed_on: bool) -> None:
        """Whether somebody was told; if not, it is tried again when the run is looked at the next time."""
        rest = self._resting.get(name.text)
        if not passed_on and rest is not None and rest.about == _about(alert):
            rest.alert = alert

    def _failed(self, attempt: Attempt, error: BaseException) -> Alert | None:
        name, alert = attempt.name.text, failures.alert_due(error, self._holder)
        snag = _snag(attempt, alert)
        if (halted := failures.halted_by(error)) is not None and alert is None:
            self._tell_halt(Halt(halted.scope, halted.reason, halted.by, halted.at_ms, 0))
            rest = self._rest(attempt.name, WAIT_MAX_S)
        elif snag is not None:
            rest = self._rest(attempt.name, WAIT_MAX_S)
        else:
            # Each try costs the run a life: one that can help only when something was mended elsewhere is not made at once.
            least_s = REST_MAX_S if alert is not None or failures.is_drift(error) else 0.0
            rest = self._rest(attempt.name, REST_MAX_S, least_s)
        sort = failures.sort_of(error)
        rest.sort, rest.times = sort, rest.times + 1 if rest.sort == sort else 1
        if alert is None or rest.about != _about(alert) or (rest.snag is not None and not attempt.stand.snagged):
            rest.about, rest.alert = None if alert is None else _about(alert), alert
            failures.tell(name, error, rest.times, alert)
        else:  # it was told before, and nothing has changed since
            failures.tell(name, error, rest.times, None)
        rest.snag = snag
        rest.tried_s = float("inf") if snag is None or snag.step else self._now() + REST_MAX_S
        return _due(rest)

    def _tell_halt(self, halt: Halt) -> None:
        """Runs are left alone for a halt: logged once for each."""
        key = (halt.scope, halt.at_ms)
        if key not in self._halts:
            by, why = f" by {halt.by}" if halt.by else "", f": {halt.reason}" if halt.reason else ""
            log.info("a worker leaves runs alone: %r was halted%s%s", halt.scope, by, why)
        self._halts[key] = None
        while len(self._halts) > HALTS_MAX:
            self._halts.popitem(last=False)

    def _rests(self, name: RunName, now_s: float) -> bool:
        rest = self._resting.get(name.text)
        return rest is not None and rest.until_s > now_s

    def _rest(self, name: RunName, most_s: float, least_s: float = 0.0) -> Rest:
        """Leave it alone for a while, twice as long as the last time."""
        rest = self._resting.pop(name.text, None) or Rest(rest_s=REST_FIRST_S / 2)
        rest.rest_s = min(most_s, max(least_s, 2 * rest.rest_s))
        rest.until_s = self._now() + rest.rest_s * (0.5 + random.random() / 2)
        self._resting[name.text] = rest
        while len(self._resting) > RESTING_MAX:
            self._resting.popitem(last=False)
        return rest


def _snag(attempt: Attempt, alert: Alert | None) -> Snag | None:
    """What has to change before it is of use to try a run again that an error has stopped of which an alert tells."""
    if alert is None or alert.run != attempt.name.text:
        return None
    if alert.kind == "conflict":
        return Snag(alert.step)
    return Snag(head=None if attempt.begun else attempt.stand.head)


def _about(alert: Alert) -> tuple[str, str, str]:
    return alert.run, alert.kind, alert.step


def _due(rest: Rest) -> Alert | None:
    """What nobody was told yet, for one to tell."""
    alert, rest.alert = rest.alert, None
    return alert


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
