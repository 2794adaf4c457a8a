"""What workers share: whom they take, how they space what they do, and what they refuse before anything is sent."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from leasekeeper import AsyncKeeper, ConfigError, Conflict, Drift, InDoubt, Keeper, Misuse, RunHalted, Unavailable
from leasekeeper.errors import LeaseLost, StoreRewound
from leasekeeper.protocol.halt import Halt
from leasekeeper.protocol.run_keys import RunName
from leasekeeper.protocol.unfinished import BEGINNING, Snag, Stand
from leasekeeper.run_errors import AnchorSkewed, CorruptState, NotSerialisable, RunRewound
from leasekeeper.runs.pool import (
    EVERY_MIN_S,
    HALTS_MAX,
    REST_FIRST_S,
    REST_MAX_S,
    RESTING_MAX,
    WAIT_MAX_S,
    Attempt,
    Pool,
    check_came_to_its_end,
)


class Now:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.s


def plain(run: Any) -> None:
    """A function of a workflow."""


async def awaited(run: Any) -> None:
    """A coroutine function of a workflow."""


def annotated(run: Any) -> Awaitable[None]:
    """A plain function that says what it gives."""
    return awaited(run)


def yields(run: Any) -> Iterator[None]:
    """A generator: called, it has done nothing yet."""
    yield


async def yields_later(run: Any) -> AsyncIterator[None]:
    """The same under asyncio."""
    yield


class Called:
    """An object that is called as a coroutine function."""

    async def __call__(self, run: Any) -> None:
        """Nothing."""


def pool(now: Now, *, every: float = 2.0, main: Any = plain, awaits: bool = False, **asked: Any) -> Pool:
    """A pool of one workflow."""
    return Pool({"order": main}, concurrency=1, every=every, now=now, asked={"signer": None, **asked}, awaits=awaits)  # type: ignore[typeddict-item]


def names(count: int) -> list[RunName]:
    """Some runs."""
    return [RunName("order", f"o-{number}") for number in range(count)]


def taken(of: Pool) -> list[RunName]:
    """All that it gives now."""
    return list(iter(of.next, None))


def failed(of: Pool, name: RunName, error: BaseException | None = None) -> None:
    """An attempt whose function raised."""
    of.ended(Attempt(name, begun=True), error or ValueError("no"))


@pytest.mark.parametrize(
    ("awaits", "main"),
    [
        (False, awaited),
        (False, functools.partial(awaited)),
        (False, Called()),
        (True, plain),
        (True, functools.partial(plain)),
        (True, lambda run: awaited(run)),
        (False, lambda run: awaited(run)),
        (False, functools.partial(Called())),
        (False, annotated),
        (False, yields),
        (True, yields),
        (False, yields_later),
        (True, yields_later),
        (False, lambda: None),
        (False, lambda run, more: None),
        (False, "plain"),
        (True, None),
    ],
)
def test_functions_of_the_wrong_kind_are_refused_early(awaits: bool, main: Any) -> None:
    """A worker is told at once, not when a run was opened, that a function cannot be called as it must be."""
    with pytest.raises(Misuse, match="order"):
        pool(Now(), main=main, awaits=awaits)


def test_functions_of_the_right_kind_are_taken() -> None:
    """Partial functions and objects that can be called count as what they are called like."""
    plain_ones: list[Any] = [plain, functools.partial(plain), print, lambda run, more=1: None, lambda *runs: None]
    for main in plain_ones:
        pool(Now(), main=main)
    awaited_ones: list[Any] = [awaited, functools.partial(awaited), Called(), functools.partial(Called()), annotated]
    for main in awaited_ones:
        pool(Now(), main=main, awaits=True)


@pytest.mark.parametrize("resume", [print, plain, None, "order", 1, {}, [], [("order", plain)], {"order"}])
@pytest.mark.parametrize("make", [Keeper, AsyncKeeper])
def test_what_is_no_dict_of_workflows_is_refused(make: Callable[[], Any], resume: Any) -> None:
    """Whatever is given for `resume`: one error that shows it and says what would be right, and nothing was started."""
    before = threading.active_count()
    with pytest.raises(ConfigError, match=r"^resume=.*: expected a dict of workflow to the function") as refused:
        make().worker(resume)
    assert refused.value.field == "resume"
    assert threading.active_count() == before


@pytest.mark.parametrize("name", ["", 1, None, "a\n", "x" * 256], ids=repr)
def test_workflows_have_names(name: Any) -> None:
    """What cannot be a workflow's name is refused as where a run is begun."""
    with pytest.raises(ConfigError, match=r"^workflow=.*: expected .*1 to 255 characters"):
        Pool({"order": plain, name: plain}, concurrency=1, every=1, now=Now(), asked={}, awaits=False)


@pytest.mark.parametrize(
    ("option", "value"),
    [("input", 3), ("input", None), ("id", "order-42"), ("generation", 2), ("ask_first", ()), ("timeout", 5.0)],
)
@pytest.mark.parametrize("make", [Keeper, AsyncKeeper])
def test_what_a_worker_has_no_use_for_is_refused(make: Callable[[], Any], option: str, value: object) -> None:
    """Options that begin a run, or wait for one, would be passed over in silence: they are named, with what says it instead."""
    with pytest.raises(Misuse, match=rf"^{option}=.* is no option of a worker: "):
        make().worker({"order": plain if make is Keeper else awaited}, signer=None, **{option: value})


def test_an_option_that_nobody_knows() -> None:
    """A word that is spelled wrongly is a TypeError, as of every Python function."""
    with pytest.raises(TypeError, match="'restart'"):
        Keeper().worker({"order": plain}, restart=3)  # type: ignore[call-arg]


async def _coroutine() -> None:
    """Nothing."""


def _generator() -> Iterator[None]:
    yield


@pytest.mark.parametrize("make", [_coroutine, _generator])
def test_work_that_was_not_done_finishes_nothing(make: Callable[[], object]) -> None:
    """A function that gives back its work undone, as where an `await` was forgotten; other results are nobody's matter."""
    with pytest.raises(Misuse, match="'order'"):
        check_came_to_its_end("order", make())
    results: list[object] = [None, 1, [], "x"]
    for result in results:
        check_came_to_its_end("order", result)


def test_options_are_checked_at_once() -> None:
    """What no run could be opened with is refused when the worker is made."""
    with pytest.raises(ConfigError, match="restarts"):
        pool(Now(), restarts=-1)
    with pytest.raises(ConfigError, match="resume"):
        Pool({}, concurrency=1, every=1, now=Now(), asked={}, awaits=False)
    with pytest.raises(ConfigError, match="concurrency"):
        Pool({"order": plain}, concurrency=0, every=1, now=Now(), asked={}, awaits=False)


def test_jitter() -> None:
    """A31: pauses differ, between half of `every` and one and a half; replicas try runs in different orders."""
    one = pool(Now(), every=2.0)
    pauses = [one.pause_s() for _ in range(1000)]
    assert min(pauses) >= 1.0
    assert max(pauses) <= 3.0
    assert len(set(pauses)) > 900
    orders = []
    for _ in range(5):
        replica = pool(Now())
        replica.found(names(50), BEGINNING)
        orders.append(tuple(taken(replica)))
    assert len(set(orders)) == 5
    assert all(sorted(order, key=str) == sorted(names(50), key=str) for order in orders)


def test_looking_has_a_least_pause() -> None:
    """A worker that is told to look without a pause does not keep etcd busy."""
    assert pool(Now(), every=0).pause_s() >= EVERY_MIN_S / 2


def test_rests_grow_and_are_bounded() -> None:
    """A run that fails rests twice as long each time, up to five minutes; one that a halt keeps back up to half a minute."""
    for error, most_s in ((ValueError("no"), REST_MAX_S), (RunHalted(), WAIT_MAX_S)):
        now = Now()
        one, (name,) = pool(now), names(1)
        rests = []
        for _ in range(20):
            failed(one, name, error)
            began_s = now.s
            while True:
                one.found([name], BEGINNING)
                if taken(one):
                    break
                now.s += 0.05
            rests.append(now.s - began_s)
        assert rests[0] <= REST_FIRST_S + 0.1
        assert all(later > earlier for earlier, later in itertools.pairwise(rests[:4]))
        assert most_s / 2 <= max(rests) <= most_s + 0.1
        one.ended(Attempt(name, begun=True), None)
        one.found([name], BEGINNING)
        assert taken(one) == [name], "what has got on rests no more"


def test_what_rests_is_bounded() -> None:
    """However many runs fail, so many are remembered."""
    one = pool(Now())
    logging.getLogger("leasekeeper").disabled = True
    try:
        for name in names(RESTING_MAX + 10):
            one.ended(Attempt(name, Stand("stopped")), None)
    finally:
        logging.getLogger("leasekeeper").disabled = False
    one.found(names(RESTING_MAX + 10), BEGINNING)
    assert len(taken(one)) == 10


def test_a_look_is_made_when_it_is_due() -> None:
    """While there are runs to try nobody looks; then after a pause, or at once where a run was finished."""
    now = Now()
    one = pool(now, every=2.0)
    assert one.is_due()
    one.found(names(1), BEGINNING)
    assert not one.is_due()
    (name,) = taken(one)
    assert not one.is_due()
    one.ended(Attempt(name, begun=True), None)
    assert one.is_due()
    one.found([], BEGINNING)
    assert not one.is_due()
    now.s += one.until_due_s() + 0.001
    assert one.is_due(), "one pause is enough"
    assert one.until_due_s() == EVERY_MIN_S
    assert (one.finished, one.failed) == (1, 0)


def test_an_etcd_that_is_away_is_nobodys_failure(caplog: pytest.LogCaptureFixture) -> None:
    """Attempts that could not even begin count against no run; it is logged the 1st, 2nd, 4th and 8th time in a row."""
    now = Now()
    one = pool(now)
    one.found(names(10), BEGINNING)
    with caplog.at_level(logging.DEBUG, "leasekeeper"):
        for _ in range(10):
            one.ended(Attempt(names(1)[0]), Unavailable("away"))
    assert len(caplog.records) == 4
    assert (one.finished, one.failed) == (0, 0)
    assert taken(one) == []
    one.found(names(10), BEGINNING)
    assert len(taken(one)) == 10, "none of them rests"


@pytest.mark.parametrize("make", [lambda: Unavailable("away"), lambda: SystemExit(3), lambda: KeyboardInterrupt()])
def test_whatever_a_function_raises_is_its_failure(make: Callable[[], BaseException]) -> None:
    """Once the function was called, all that it raises leaves its run to rest."""
    one, (name,) = pool(Now()), names(1)
    logging.getLogger("leasekeeper").disabled = True
    try:
        failed(one, name, make())
    finally:
        logging.getLogger("leasekeeper").disabled = False
    one.found([name], BEGINNING)
    assert taken(one) == []
    assert one.failed == 1


# ---------------------------------------------------------------- whom it tells


def lines(caplog: pytest.LogCaptureFixture, least: int = logging.INFO) -> list[str]:
    """What was logged."""
    return [f"{each.levelname} {each.getMessage()}" for each in caplog.records if each.levelno >= least]


@pytest.mark.parametrize("error", [InDoubt(run="order/o-0", step="s"), Drift(run="order/o-0", step="s")], ids=repr)
def test_what_the_run_tells_is_not_told_again(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """A25: an alert is one line at ERROR; that the attempt ended by it is told to those who read everything."""
    caplog.set_level(logging.DEBUG, "leasekeeper")
    one, (name,) = pool(Now()), names(1)
    assert one.ended(Attempt(name, begun=True), error) is None
    (record,) = caplog.records
    assert (record.levelno, record.exc_info) == (logging.DEBUG, None)


def test_a_conflict_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A16 A25: one alert, one line at ERROR; then the run is not tried until the conflict is gone; a new one is told anew."""
    caplog.set_level(logging.INFO, "leasekeeper")
    now = Now()
    one, (name,) = pool(now), names(1)
    met = Conflict(run="order/o-0", step="s")
    alert = one.ended(Attempt(name, begun=True), met)
    assert alert is not None
    assert (alert.kind, alert.run, alert.step, alert.command) == (
        "conflict",
        "order/o-0",
        "s",
        "leasekeeper runs explain order/o-0",
    )
    one.told(name, alert, passed_on=True)
    (line,) = lines(caplog)
    assert line == f"ERROR {alert.line}"
    assert caplog.records[0].__dict__["alert_kind"] == "conflict"
    assert one.snag(name) == Snag("s")
    for _ in range(5):
        now.s += 10_000
        seen = Attempt(name, Stand("waits", b"", True))
        assert not one.may_try(seen)
        assert one.ended(seen, None) is None
    word = Attempt(name, Stand("waits", b"", False), begun=True)
    assert one.may_try(word)
    assert one.ended(word, met) == alert
    assert len(lines(caplog)) == 2


def test_a_hook_that_could_not_tell_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    """A16: while one tells, nobody else does; who told nobody is asked when the run is looked at again; it is logged once."""
    caplog.set_level(logging.INFO, "leasekeeper")
    one, (name,) = pool(Now()), names(1)
    alert = one.ended(Attempt(name, begun=True), Conflict(run="order/o-0", step="s"))
    assert alert is not None
    seen = Attempt(name, Stand("waits", b"", True))
    assert one.ended(seen, None) is None
    for _ in range(2):
        one.told(name, alert, passed_on=False)
        assert one.ended(seen, None) == alert
    one.told(name, alert, passed_on=True)
    assert one.ended(seen, None) is None
    assert len(lines(caplog)) == 1


@pytest.mark.parametrize(
    "error", [RunRewound(run="order/o-0", have=3, known=5), AnchorSkewed(run="order/o-0", seq=4)], ids=repr
)
@pytest.mark.parametrize("begun", [False, True])
def test_what_was_set_back_is_told_once(error: BaseException, begun: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A16 A25: one alert; the run is tried again when its head has changed, or after five minutes, and not told again."""
    caplog.set_level(logging.INFO, "leasekeeper")
    now = Now()
    one, (name,) = pool(now), names(1)
    alert = one.ended(Attempt(name, Stand("waits", b"head"), begun=begun), error)
    assert alert is not None
    assert alert.kind == "rewound"
    one.told(name, alert, passed_on=True)
    assert one.snag(name) == Snag(head=None if begun else b"head")
    assert not one.may_try(Attempt(name, Stand("waits", b"head", True)))
    assert one.may_try(Attempt(name, Stand("waits", b"other", False)))
    now.s += REST_MAX_S + 1
    again = Attempt(name, Stand("waits", b"head", True))
    assert one.may_try(again)
    assert one.ended(again, error) is None
    assert not one.may_try(again)
    assert [line.startswith("ERROR rewound: ") for line in lines(caplog)].count(True) == 1


class Group(Exception):
    """As Python 3.11 makes it of what tasks raise."""

    def __init__(self, *each: BaseException) -> None:
        super().__init__(f"{len(each)} sub-exceptions")
        self.exceptions = each


def test_what_tasks_raise_is_told_as_if_it_were_raised_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A25: of a group each part is told, in one line; what is told elsewhere does not make it an error; a halt is one."""
    caplog.set_level(logging.INFO, "leasekeeper")
    halted = RunHalted(run="order/o-0", step="a", scope="*", reason="stop", by="ann", at_ms=1)
    failed(pool(Now()), names(1)[0], Group(halted, LeaseLost("gone")))
    assert lines(caplog) == ["INFO a worker leaves runs alone: '*' was halted by ann: stop"]
    failed(pool(Now()), names(1)[0], Group(halted, Unavailable("away"), Unavailable("full")))
    assert lines(caplog)[-1].startswith("WARNING run order/o-0 did not get to its end here: RunHalted: ")
    assert lines(caplog)[-1].endswith("; Unavailable: away; Unavailable: full")
    assert caplog.records[-1].exc_info is None


def test_an_alert_in_a_group_is_one(caplog: pytest.LogCaptureFixture) -> None:
    """A16: a conflict among what tasks of a program raise is an alert; what else they raise is a line of its own."""
    caplog.set_level(logging.INFO, "leasekeeper")
    one, (name,) = pool(Now()), names(1)
    alert = one.ended(Attempt(name, begun=True), Group(ValueError("no"), Group(Conflict(run="order/o-0", step="s"))))
    assert alert is not None
    assert alert.kind == "conflict"
    assert lines(caplog)[0] == f"ERROR {alert.line}"
    assert lines(caplog)[1].startswith("ERROR run order/o-0 did not get to its end here: ValueError: no; Conflict: ")
    assert len(lines(caplog)) == 2


def test_an_alert_about_another_run_does_not_hold_this_one_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    """A16: a function that opens other runs may meet the conflict of one: told once, and tried again after a long rest."""
    caplog.set_level(logging.INFO, "leasekeeper")
    now = Now()
    one, (name,) = pool(now), names(1)
    met = Conflict(run="other/1", step="s")
    assert one.ended(Attempt(name, begun=True), met) is not None
    assert one.snag(name) is None
    now.s += REST_MAX_S / 2 - 1
    one.found([name], BEGINNING)
    assert taken(one) == []
    now.s += REST_MAX_S
    one.found([name], BEGINNING)
    assert taken(one) == [name]
    assert one.ended(Attempt(name, begun=True), met) is None


def test_a_drift_rests_long_at_once() -> None:
    """Each try at it costs a life and finds it again, unless the outside world was mended meanwhile."""
    now = Now()
    one, (name,) = pool(now), names(1)
    one.ended(Attempt(name, begun=True), Drift(run="order/o-0", step="s"))
    now.s += REST_MAX_S / 2 - 1
    one.found([name], BEGINNING)
    assert taken(one) == []


# ---------------------------------------------------------------- what it logs


def test_the_same_failure_is_told_less_and_less(caplog: pytest.LogCaptureFixture) -> None:
    """A25: the 1st, 2nd, 4th, 8th time in a row, where it was raised the first time only; another failure is told at once."""
    caplog.set_level(logging.INFO, "leasekeeper")
    one, (name,) = pool(Now()), names(1)
    for number in range(10):
        failed(one, name, ValueError(f"no answer after {number} s"))
    told = lines(caplog)
    assert [line.partition("end here")[2] for line in told] == [
        ": ValueError: no answer after 0 s",
        ", 2 times in a row for the same reason: ValueError: no answer after 1 s",
        ", 4 times in a row for the same reason: ValueError: no answer after 3 s",
        ", 8 times in a row for the same reason: ValueError: no answer after 7 s",
    ]
    assert [record.exc_info is not None for record in caplog.records] == [True, False, False, False]
    failed(one, name, ValueError("refused"))
    failed(one, name, ValueError("no answer after 1 s"))
    assert [line.partition("end here")[2] for line in lines(caplog)[4:]] == [
        ": ValueError: refused",
        ": ValueError: no answer after 1 s",
    ]


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (NotSerialisable(field="result.when", value="a date", expected="JSON"), logging.ERROR),
        (CorruptState(where="run/order/o-0/head", why="it was\nchanged"), logging.ERROR),
        (Unavailable("away"), logging.WARNING),
    ],
    ids=repr,
)
def test_errors_of_ours_are_one_line(error: BaseException, level: int, caplog: pytest.LogCaptureFixture) -> None:
    """A25: they say what to do; where in leasekeeper it was noticed helps nobody. The class is named."""
    failed(pool(Now()), names(1)[0], error)
    (record,) = caplog.records
    assert (record.levelno, record.exc_info) == (level, None)
    said = f"run order/o-0 did not get to its end here: {type(error).__name__}: {' '.join(str(error).split())}"
    assert record.getMessage() == said


def test_where_the_programs_errors_were_raised(caplog: pytest.LogCaptureFixture) -> None:
    """A25: the frames of the program are shown, those of leasekeeper between them are not; the error itself keeps them all."""

    def refuses() -> float:
        raise ValueError("no")

    now = Now()
    one, (name,) = pool(now), names(1)
    one.is_due()
    one._now = refuses
    with pytest.raises(ValueError, match="no") as raised:
        one.is_due()
    one._now = now
    error = raised.value
    assert "pool.py" in "".join(traceback.format_exception(error))
    failed(one, name, error)
    (record,) = caplog.records
    assert record.exc_info is not None
    shown = "".join(traceback.format_exception(*record.exc_info))
    assert "in refuses" in shown
    assert "/runs/pool.py" not in shown
    assert "pool.py" in "".join(traceback.format_exception(error))


def test_what_leasekeeper_itself_gets_wrong_is_shown_whole(caplog: pytest.LogCaptureFixture) -> None:
    """An error that is none of ours and was raised in our code is a bug: all of its frames are needed."""
    one, (name,) = pool(Now()), names(1)
    with pytest.raises(AttributeError) as raised:
        one.snag(None)  # type: ignore[arg-type]
    failed(one, name, raised.value)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "in snag" in "".join(traceback.format_exception(*record.exc_info))


def test_an_etcd_that_was_set_back_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A25: it concerns all runs, so it is one line of the worker's and no run's failure; told anew after runs went on."""
    one = pool(Now())
    for _ in range(3):
        one.found(names(3), BEGINNING)
        for name in names(3):
            one.ended(Attempt(name), StoreRewound(seen=9, now=3))
    assert [line[:32] for line in lines(caplog)] == ["ERROR a worker can take no run: "]
    assert "leasekeeper epoch bump" in lines(caplog)[0]
    assert one.failed == 0
    one.ended(Attempt(names(1)[0], begun=True), None)
    one.missed(StoreRewound(seen=9, now=3))
    assert len(lines(caplog)) == 2


def test_each_halt_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """B15: a worker that finds nothing but halted runs says so, with who halted them and why; so does one whose run is halted."""
    caplog.set_level(logging.INFO, "leasekeeper")
    one = pool(Now())
    first = Halt("order/*", "the bank is closed", "ann", 1000, 7)
    for _ in range(3):
        one.found([], BEGINNING, [first])
    met = RunHalted(run="order/o-0", scope="order/*", reason="the bank is closed", by="ann", at_ms=1000)
    failed(one, names(1)[0], met)
    assert lines(caplog) == ["INFO a worker leaves runs alone: 'order/*' was halted by ann: the bank is closed"]
    one.found([], BEGINNING, [Halt("order/*", "again", "", 2000, 9)])
    assert lines(caplog)[1:] == ["INFO a worker leaves runs alone: 'order/*' was halted: again"]
    for number in range(HALTS_MAX + 10):
        one.found([], BEGINNING, [Halt("*", "", "", number, 0)])
    assert len(one._halts) == HALTS_MAX
