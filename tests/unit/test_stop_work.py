"""StopWork is not an Exception: nothing swallows it by accident, and no thread of the library's own dies of it."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
import threading
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from leasekeeper import Keeper, observe
from leasekeeper.errors import (
    ConfigError,
    FixIt,
    LeasekeeperError,
    LeaseLost,
    StaleToken,
    StopWork,
    TryLater,
    shown,
)
from leasekeeper.protocol.actions import Deserted
from leasekeeper.protocol.plan import Cause, Fault, Kind
from leasekeeper.run_errors import InDoubt, Quarantined, RunHalted
from leasekeeper.runs.aio import AsyncRun
from leasekeeper.runs.run import Run
from leasekeeper.runtime.aio import Asyncio
from leasekeeper.runtime.announce import Announcer
from leasekeeper.runtime.background import Background
from leasekeeper.runtime.events import CleanupFailed
from leasekeeper.runtime.heart import Heart
from leasekeeper.testing.chaos.effects import load_target
from leasekeeper.testing.trial import Target, Trial, Writer
from leasekeeper.wire.auth import Joining, Login
from leasekeeper.wire.engine import drive

STOPS = [
    LeaseLost("over", name="n", token=7, reason="expired"),
    StaleToken("too old", resource="r", token=6, highest=7, holder="h"),
    RunHalted(run="wf/id", step="s", scope="wf", reason="audit", by="ann"),
    InDoubt(run="wf/id", step="s", seq=3, why="no key"),
    Quarantined(run="wf/id", restarts=5),
]
each_stop = pytest.mark.parametrize("stop", STOPS, ids=lambda error: type(error).__name__)
LOST = STOPS[0]


def kinds(kind: type[LeasekeeperError]) -> list[type[LeasekeeperError]]:
    """A class of errors and all below it."""
    return [kind, *(found for below in kind.__subclasses__() for found in kinds(below))]


def lose(*_: object) -> Any:
    """What a callback does that asks the gate after the end."""
    raise LOST


def test_only_stop_work_is_no_exception() -> None:
    """What says stop passes every ``except Exception``; what says wait or fix is caught by it."""
    assert not issubclass(LeasekeeperError, Exception)
    assert not any(issubclass(kind, Exception) for kind in kinds(StopWork))
    assert all(issubclass(kind, Exception) for kind in (*kinds(TryLater), *kinds(FixIt)))


@each_stop
def test_a_plain_except_does_not_swallow_it(stop: StopWork) -> None:
    """A loop that catches Exception for each item ends with the lease, and does not go on to the next item."""
    done = []

    def work() -> None:
        for item in range(3):
            try:
                done.append(item)
                raise stop
            except Exception:  # noqa: BLE001 - just what users write
                continue

    with pytest.raises(type(stop)) as caught:
        work()
    assert caught.value is stop
    assert done == [0]


@each_stop
def test_it_is_caught_by_its_own_names(stop: StopWork) -> None:
    """Whoever wants it names it: the class, its branch, or the whole tree."""
    for kind in (type(stop), StopWork, LeasekeeperError):
        with pytest.raises(kind):
            raise stop


@each_stop
def test_it_survives_pickle(stop: StopWork) -> None:
    """An error that is no Exception crosses a process pool with its data all the same."""
    again = pickle.loads(pickle.dumps(stop))
    assert type(again) is type(stop)
    assert (again.args, vars(again)) == (stop.args, vars(stop))


# ---------------------------------------------------------------- where programs run their work


def test_a_thread_pool_hands_it_over() -> None:
    """A future of a thread pool ends with it, and the pool's thread takes the next piece of work."""
    with ThreadPoolExecutor(1) as pool:
        lost, after = pool.submit(lose), pool.submit(threading.get_ident)
        assert lost.exception(10.0) is LOST
        assert after.result(10.0)


def test_a_task_ends_with_it_and_the_loop_runs_on() -> None:
    """Asyncio lets KeyboardInterrupt and SystemExit out of the loop; this one stays the task's own."""

    async def fail() -> None:
        await asyncio.sleep(0)
        lose()

    async def main() -> None:
        task = asyncio.create_task(fail())
        done, _ = await asyncio.wait({task})
        assert done == {task}
        assert task.exception() is LOST
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(fail(), 10.0)
        with pytest.raises(LeaseLost):
            await asyncio.shield(fail())
        with pytest.raises(LeaseLost):
            await asyncio.to_thread(lose)

    asyncio.run(main())


def test_gather_passes_it_on() -> None:
    """gather() raises it, or returns it among the results when it is asked to."""

    async def fail() -> None:
        lose()

    async def main() -> None:
        with pytest.raises(LeaseLost):
            await asyncio.gather(fail(), asyncio.sleep(0))
        assert list(await asyncio.gather(fail(), asyncio.sleep(0, "x"), return_exceptions=True)) == [LOST, "x"]

    asyncio.run(main())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TaskGroup came with Python 3.11")
def test_a_task_group_raises_a_group_that_no_plain_except_swallows() -> None:
    """A TaskGroup cancels the other tasks and raises a BaseExceptionGroup, which is not an Exception either."""
    cancelled = []

    async def other() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append("other")
            raise

    async def fail() -> None:
        await asyncio.sleep(0)
        lose()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined,unused-ignore]
            group.create_task(other())
            group.create_task(fail())

    with pytest.raises(BaseException, match="unhandled errors") as caught:
        asyncio.run(main())
    assert not isinstance(caught.value, Exception)
    assert caught.value.exceptions == (LOST,)  # type: ignore[attr-defined]
    assert cancelled == ["other"]


# ---------------------------------------------------------------- where the library runs what users give it


def test_a_subscriber_that_raises_it_does_not_end_the_announcer(caplog: pytest.LogCaptureFixture) -> None:
    """C16: a subscriber that asks the gate after the loss is logged, and all others still get their news."""
    announcer, heard = Announcer(), threading.Event()
    with caplog.at_level(logging.ERROR, logger="leasekeeper"):
        announcer.tell(lose)
        announcer.tell(heard.set)
        assert heard.wait(10.0)
        announcer.close(10.0)
    assert len(caplog.records) == 1


def test_a_subscriber_on_a_loop_does_not_end_the_loop() -> None:
    """C16: under asyncio it goes to the loop's own exception handler, and the loop runs on."""
    told: list[Any] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        loop.call_soon_threadsafe(lose, "LOST")
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert told == [LOST]


def test_an_observer_that_raises_it_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    """An observer runs inside the caller's own acquire or release, which must not fail with what the observer raises."""
    observe.add(lose)
    try:
        with caplog.at_level(logging.ERROR, logger="leasekeeper"), Keeper() as keeper:
            keeper._core.observe(CleanupFailed("a claim", "why"))
    finally:
        observe.remove(lose)
    assert any("observer failed" in record.message for record in caplog.records)


def test_a_clean_up_that_raises_it_does_not_end_the_background() -> None:
    """One detached plan that ends with it is told of, and the next is run."""
    failed: list[str] = []
    ran = threading.Event()
    background = Background(lambda: 0.0, failed.append)
    interpreter: Any = type("Interpreter", (), {"run": staticmethod(lambda plan: plan())})()
    background.interpreter = interpreter
    plans: list[Any] = [lambda: lose, lambda: ran.set]
    for plan in plans:
        background.detach(plan)
    assert ran.wait(10.0)
    background.close(10.0)
    assert failed == [repr(LOST)]


def test_nothing_that_raises_it_ends_a_round_of_the_heart() -> None:
    """An action and a call that raise it (an interceptor on a lent channel may) are told of; other leases get their beats."""
    told: list[object] = []
    done: list[Any] = []
    unused: Any = None
    announcer: Any = type("Told", (), {"tell": staticmethod(lambda call, *_: told.append(call.args[0]))})()
    heart = Heart(unused, unused, announcer, lambda: 0.0, lambda _: None)
    heart.desert = lose
    heart.vacate = lambda _: None
    heart._do([Deserted(unused), Deserted(unused)])
    assert told == ["an action of the heart failed"] * 2

    def ended(result: object) -> list[Any]:
        done.append(result)
        return []

    heart._start(fails(), ended)
    assert done == [LOST]


def fails() -> Generator[Any, Any, None]:
    """An exchange that raises it."""
    lose()
    yield


def test_who_waits_for_a_login_is_told_of_it() -> None:
    """A login that ends with it is over for all who wait for it, in threads and without; nobody waits for ever."""
    login = Login("agent", "secret", lambda: 0.0)
    ending, begun = login.join()
    assert begun
    assert ending is not None
    drive(fails(), login.end)
    with pytest.raises(LeaseLost):
        Joining(ending, 0.0).block()
    heard: list[Any] = []
    Joining(ending, 0.0).start(lambda outcome: heard.append(outcome()))
    assert [type(fault) for fault in heard] == [Fault]
    assert login.join()[1], "the next one begins anew"


def test_a_start_that_raises_it_ends_what_it_was_to_start() -> None:
    """An attempt that cannot even be started is told to whoever waits for its end, once."""

    def attempts() -> Generator[Any, Any, None]:
        yield type("Attempt", (), {"start": staticmethod(lose)})()

    ends: list[object] = []
    drive(attempts(), ends.append)
    assert ends == [LOST]


def test_a_plan_whose_loop_is_gone_may_end_with_it() -> None:
    """A plan that is abandoned with its loop can end with it: nobody is left to be told, least of all grpc's thread."""

    def plan() -> Generator[Any, Any, None]:
        try:
            yield
        except asyncio.CancelledError:
            lose()

    unused: Any = None
    running = plan()
    next(running)
    Asyncio(unused, unused, lambda _: None, lambda: 0.0)._abandon(running)
    with pytest.raises(StopIteration):
        next(running)


def test_a_value_whose_repr_raises_it_can_still_be_named() -> None:
    """The mistake to tell of is the wrong value, not what its repr() does."""
    value = type("Gated", (), {"__repr__": lose})()
    assert shown(value) == "<Gated>"
    assert str(ConfigError(field="ttl", value=value, expected="seconds")) == "ttl=<Gated>: expected seconds"


def test_a_resource_on_trial_that_raises_it_has_failed() -> None:
    """assert_fenced counts a StaleToken as the refusal, and anything else that says stop as the adapter's failure."""
    writer = Writer("h", 1, "c", "n")
    for error, outcome in ((LeaseLost("x"), "failed"), (StaleToken("x"), "refused")):

        def write(*_: object, error: StopWork = error) -> None:
            raise error

        attempt = Trial(Target.of(write, ()), "label").write(writer)
        assert (attempt.outcome, attempt.error) == (outcome, error)


def test_a_target_whose_module_raises_it_is_a_wrong_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of somebody else's that asks a gate as it is made is named as the reason, and the storm does not begin."""
    monkeypatch.setattr(sys.modules[__name__], "Gated", type("Gated", (), {"__init__": lose}), raising=False)
    with pytest.raises(ConfigError, match="LeaseLost: over"):
        load_target(f"{__name__}:Gated")


def test_a_future_keeps_it_apart_from_the_librarys_own_faults() -> None:
    """What is told without a thread is a Fault that says that nothing was sent."""
    ending: Future[BaseException | None] = Future()
    heard: list[Any] = []
    Joining(ending, 1.0).start(lambda outcome: heard.append(outcome()))
    ending.set_result(LOST)
    assert [(fault.kind, fault.cause) for fault in heard] == [(Kind.NOT_SENT, Cause.OTHER)]


@pytest.mark.parametrize("kind", [Run, AsyncRun])
def test_a_run_that_cannot_say_how_its_block_failed_leaves_the_blocks_own_error(kind: type) -> None:
    """A block that fails just as the claim goes ends with its own error, not with the one that its record was refused by."""

    async def lose_later(_: object) -> None:
        lose()

    open_still = SimpleNamespace(final=False)
    interpreters = {"blocking": SimpleNamespace(run=lose), "asyncio": SimpleNamespace(run=lose_later)}
    run: Any = object.__new__(kind)
    run.lease = SimpleNamespace(state=open_still, _core=SimpleNamespace(**interpreters))
    run._life = SimpleNamespace(log=None)
    left = run._leave(ValueError("the block's own"))
    if kind is AsyncRun:
        asyncio.run(left)
