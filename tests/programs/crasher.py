"""A process that does runs, each in a thread of its own, to be killed while each of them is at its point.

Options: endpoint, namespace, url (of the outside world), directory, policy, ttl, restarts, aio. ``clean``: an id to do first,
undisturbed, of which the points that it passed are reported (``clean``). ``each``: then one run for each of these points, which
stops there, reported as ``parked``. ``runs``: ids to do, undisturbed. ``at``, ``nth``, ``end``: a point, and how the process is
to end there. ``then``: a later one, where it kills itself. ``cut``: a kind of record, at whose answer it does. Reports ``done``,
``stopped`` by an error, and ``alert``.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from leasekeeper import AsyncKeeper, Keeper, Timing
from leasekeeper.runs.aio import AsyncRunning
from leasekeeper.runs.run import Running
from leasekeeper.testing import FaultProxy, failpoints
from tests.crashes import KEY, POLICIES, WORKFLOW, abody, body, options_of, short, told
from tests.programs.voice import options, say

# So many runs of ``runs`` are under way at once.
AT_ONCE = 32


def _run_out_of_memory() -> None:
    """Have no more memory, and end as most runtimes do then."""
    resource.setrlimit(resource.RLIMIT_AS, (1, 1))
    try:
        hoard = [bytearray(1 << 24) for _ in range(1 << 10)]
        del hoard
    except MemoryError:
        os.abort()


def _signal(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


# What an end of a process can be.
ENDS: dict[str, Callable[[], None]] = {
    "kill": _signal(signal.SIGKILL),
    "term": _signal(signal.SIGTERM),
    "freeze": lambda: signal.pthread_kill(threading.get_ident(), signal.SIGSTOP),
    "memory": _run_out_of_memory,
    "exit": lambda: os._exit(1),
}


class Crasher:
    """One keeper and the runs that go through it."""

    def __init__(self, keeper: Keeper | AsyncKeeper, given: dict[str, Any]) -> None:
        self.keeper = keeper
        self.policy = POLICIES[given["policy"]]
        self.url = given["url"]
        self.restarts = given.get("restarts", 10)
        self.directory = given["directory"]

    def running(self, id_: str) -> Running | AsyncRunning:
        """A run, not yet entered."""
        return self.keeper.run(
            WORKFLOW,
            id=id_,
            signer=KEY,
            input={"order": id_},
            restarts=self.restarts,
            **options_of(self.policy, id_, self.directory),
            alert=lambda alert: say("alert", **told(alert, id_)),
        )

    def do(self, id_: str, running: Running | AsyncRunning) -> None:
        """A life of a run, to whatever end; under asyncio on a loop of its own."""
        try:
            if isinstance(running, Running):
                with running as run:
                    result = body(run, self.policy, self.url)
            else:
                result = asyncio.run(self._ado(running))
        except BaseException as error:  # noqa: BLE001 - all of it is reported
            say("stopped", id=id_, error=type(error).__name__, why=str(error))
        else:
            say("done", id=id_, result=result)

    async def _ado(self, running: AsyncRunning) -> Any:
        async with running as run:
            return await abody(run, self.policy, self.url)

    def do_all(self, ids: Iterator[str]) -> None:
        """One life of each of these runs, which other threads take from as well."""
        for id_ in ids:
            self.do(id_, self.running(id_))

    def park(self, id_: str, point: str, nth: int) -> None:
        """A life of a run that stops at its point, for good."""

        def stop() -> None:
            say("parked", id=id_, point=point, nth=nth)
            threading.Event().wait()

        running = self.running(id_)
        with failpoints.Failpoint(point, stop, on=running, nth=nth):
            self.do(id_, running)


def lives(crasher: Crasher, given: dict[str, Any]) -> list[threading.Thread]:
    """A thread for each run that was asked for."""
    ids = iter(given.get("runs", ()))
    work: list[tuple[Any, ...]] = [(crasher.do_all, ids) for _ in range(min(AT_ONCE, len(given.get("runs", ()))))]
    if (clean := given.get("clean")) is not None:
        running = crasher.running(clean)
        with failpoints.track(on=running) as track:
            crasher.do(clean, running)
        say("clean", id=clean, points=track.points)
        if given.get("each"):
            seen: Counter[str] = Counter()
            for point in track.points:
                seen[point] += 1
                id_ = f"{clean}-{short(point)}-{seen[point]}"
                work.append((crasher.park, id_, point, seen[point]))
    return [threading.Thread(target=act, args=args, daemon=True) for act, *args in work]


def main() -> None:
    """Begin all of them, and wait for those that end."""
    given = options()
    with ExitStack() as stack:
        endpoint = given["endpoint"]
        if (kind := given.get("cut")) is not None:
            proxy = stack.enter_context(FaultProxy(endpoint))
            proxy.lose_next_reply(failpoints.record(kind), then="kill")
            endpoint = proxy.endpoint
        keeper = (AsyncKeeper if given.get("aio") else Keeper)(
            endpoint, namespace=given["namespace"], timing=Timing(ttl=given.get("ttl", 20.0))
        )
        stack.callback(keeper.close if isinstance(keeper, Keeper) else lambda: asyncio.run(keeper.close()))
        for point, end in [(given.get("at"), given.get("end", "kill")), (given.get("then"), "kill")]:
            if point is not None:
                stack.enter_context(failpoints.Failpoint(point, ENDS[end], on=keeper, nth=given.get("nth", 1)))
        threads = lives(Crasher(keeper, given), given)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say("end")


if __name__ == "__main__":
    main()
