"""What workers share: whom they take, how they space what they do, and what they refuse before anything is sent."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from leasekeeper import AsyncKeeper, ConfigError, Conflict, Drift, InDoubt, Keeper, Misuse, RunHalted, Unavailable
from leasekeeper.protocol.run_keys import RunName
from leasekeeper.protocol.unfinished import BEGINNING
from leasekeeper.runs.pool import (
    EVERY_MIN_S,
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
            one.ended(Attempt(name, standing="stopped"), None)
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


@pytest.mark.parametrize("error", [InDoubt(run="order/o-0", step="s"), Drift(run="order/o-0", step="s")], ids=repr)
def test_what_an_alert_tells_is_no_error_again(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """A25: an alert is one line at ERROR; that the attempt ended by it is told to those who read more."""
    caplog.set_level(logging.INFO, "leasekeeper")
    failed(pool(Now()), names(1)[0], error)
    (record,) = caplog.records
    assert (record.levelno, record.exc_info) == (logging.INFO, None)


def test_a_conflict_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody is alerted of a conflict, so the worker tells it; where it was raised says no more than its step."""
    failed(pool(Now()), names(1)[0], Conflict(run="order/o-0", step="s"))
    (record,) = caplog.records
    assert (record.levelno, record.exc_info) == (logging.ERROR, None)
    assert "leasekeeper runs explain order/o-0" in record.getMessage()
