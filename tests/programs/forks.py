"""Processes that fork while they hold leases. Each scenario reports what it saw, parent and child, and ends by itself.

Options: scenario, endpoint, namespace, ttl, and what the scenario itself reads.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import grpc

from leasekeeper import Keeper, Lease, LeasekeeperError, LeaseLost, State, Timing
from leasekeeper.clock import boottime
from leasekeeper.runtime.core import observers
from leasekeeper.runtime.events import BeatMissed, Event, StateChanged
from tests.programs.voice import options, say

CHILD_S = 25.0
Given = dict[str, Any]


def keeper_of(given: Given) -> Keeper:
    """A keeper as the options say."""
    return Keeper(given["endpoint"], namespace=given["namespace"], timing=Timing(ttl=given["ttl"]))


def await_watch(keeper: Keeper) -> None:
    """Wait until the keeper's watch stream is open, as it is all the time but for the first moments."""
    deadline = time.monotonic() + CHILD_S
    while keeper._core.hub._stream is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def outcome(call: Callable[[], object]) -> str:
    """What a call came to, as one word."""
    try:
        return f"returned {call()!r}"
    except LeaseLost as error:
        return f"LeaseLost {error.reason}"
    except LeasekeeperError as error:
        return type(error).__name__


def look(lease: Lease, keeper: Keeper) -> Given:
    """Everything that a process can ask of an inherited lease and its keeper, none of which may hang."""
    return {
        "state": lease.state.value,
        "reason": lease.loss.reason if lease.loss else None,
        "remaining": lease.remaining(),
        "check": outcome(lease.check),
        "wait": outcome(lease.wait),
        "deadline_over": lease.deadlines()[0] < boottime(),
        "release": outcome(lease.release),
        "acquire": outcome(lambda: keeper.acquire("other", timeout=0)),
        "claims": outcome(lambda: keeper.claims(lease.name)),
        "close": outcome(keeper.close),
    }


def fork(child: Callable[[], None], how: Callable[[], int] = os.fork) -> int:
    """Fork; the child runs ``child`` and ends by `os._exit`, 9 when that failed. The parent waits: the child's status."""
    pid = how()
    if pid == 0:
        try:
            child()
        except BaseException:  # noqa: BLE001 - a child must not go on as a second parent
            traceback.print_exc()
            os._exit(9)
        os._exit(0)
    deadline = time.monotonic() + CHILD_S
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return -999  # it hung


def hold_on(lease: Lease, seconds: float) -> set[str]:
    """Look at a lease again and again: every state that it showed."""
    seen = set()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        seen.add(lease.state.value)
        time.sleep(0.05)
    return seen


# ---------------------------------------------------------------- scenarios


def inherited(given: Given) -> None:
    """Children look at the parent's lease and leave the with block by whichever door; the parent goes on for 2 TTLs."""
    told: list[Event] = []
    observers.append(told.append)
    with keeper_of(given) as keeper:
        lease = keeper.acquire("n", timeout=10)
        await_watch(keeper)
        parent = os.getpid()
        say("acquired", token=lease.token, key=lease.key)
        statuses = []
        for door in given["doors"]:
            pid = os.fork()
            if pid == 0:
                leave_by(door, lease, keeper)
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        assert os.getpid() == parent
        states = hold_on(lease, 2.5 * given["ttl"])
        changes = [repr(event) for event in told if isinstance(event, StateChanged)]
        missed = sum(isinstance(event, BeatMissed) for event in told)
        verified = keeper.verify("n", lease.token)
        say("parent", statuses=statuses, states=sorted(states), verified=verified, changes=changes, missed=missed)
        say("checked", token=lease.check())
        lease.release()
        say("released", state=lease.state.value)


def leave_by(door: str, lease: Lease, keeper: Keeper) -> NoReturn:
    """A child: say what it sees, and end."""
    say("child", door=door, **look(lease, keeper))
    left = "nothing"
    try:
        with keeper, lease:
            pass
    except LeaseLost as error:
        left = f"LeaseLost {error.reason}"
    say("left", door=door, left=left)
    if door == "_exit":
        os._exit(0)
    if door == "crash":
        raise RuntimeError("a child that crashes")
    sys.exit(0)


def unnoticed(given: Given) -> None:
    """C code forks and Python is not told."""
    libc = ctypes.PyDLL(None)
    with keeper_of(given) as keeper:
        lease = keeper.acquire("n", timeout=10)
        dropped = [keeper.acquire("dropped", timeout=10)]

        def child() -> None:
            say("first", check=outcome(lease.check))
            say("child", **look(lease, keeper))
            dropped.clear()
            status = fork(lambda: say("grandchild", **look(lease, keeper)), libc.fork)
            say("grandchild_ended", status=status)

        def drop() -> None:
            """Drop a lease before looking at any: no thread may set out to remove its claim."""
            dropped.clear()
            names = [thread.name for thread in threading.enumerate()]
            assert "leasekeeper-background" not in names, names

        first = fork(drop, libc.fork)
        second = fork(child, libc.fork)
        states = hold_on(lease, 1.5 * given["ttl"])
        say("parent", statuses=[first, second], states=sorted(states), dropped=dropped[0].state.value)
        say("verified", both=keeper.verify("n", lease.token) and keeper.verify("dropped", dropped[0].token))


def busy(given: Given) -> None:
    """Forks while other threads acquire and release as fast as they can, and so hold every lock there is now and then."""
    stop = threading.Event()
    leases: dict[int, Lease] = {}
    with keeper_of(given) as keeper:
        rounds = [0] * given["threads"]

        def work(number: int) -> None:
            while not stop.is_set():
                with keeper.lease(f"n{number}", timeout=20) as lease:
                    leases[number] = lease
                rounds[number] += 1

        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(given["threads"])]
        for thread in threads:
            thread.start()
        kept = keeper.acquire("kept", timeout=20)
        while len(leases) < len(threads):
            time.sleep(0.01)

        def child() -> None:
            for lease in [*leases.values(), kept]:
                found = look(lease, keeper)
                assert found["state"] in ("LOST", "RELEASED"), found
            with keeper, kept:
                raise LeaseLost  # which wins over the loss that leaving finds

        def checked() -> None:
            try:
                child()
            except LeaseLost:
                return

        statuses = [fork(checked) for _ in range(given["forks"])]
        stop.set()
        for thread in threads:
            thread.join(20)
        say("parent", statuses=statuses, rounds=rounds, kept=outcome(kept.check) == f"returned {kept.token}")
        kept.release()


def anew(given: Given) -> None:
    """Children of a process that holds a lease make keepers of their own."""
    with keeper_of(given) as keeper:
        lease = keeper.acquire("n", timeout=10)
        await_watch(keeper)

        def child() -> None:
            with keeper_of(given) as own, own.lease(f"of {os.getpid()}", timeout=10) as mine:
                taken = own.try_acquire("n")
                say("child", check=mine.check() == mine.token, taken=taken is not None, old=lease.state.value)

        statuses = [fork(child) for _ in range(given["forks"])]
        say("parent", statuses=statuses, check=lease.check() == lease.token)


def unused(given: Given) -> None:
    """A keeper is made before the fork and used only after it, as an application server's workers would."""
    keeper = keeper_of(given)
    lent = Keeper(channel=grpc.insecure_channel(given["endpoint"]), namespace=given["namespace"])

    def worker() -> None:
        with keeper.lease("n", timeout=20) as lease:
            (claim,) = [c for c in keeper.claims("n") if c.token == lease.token]
            say(
                "worker", pid=os.getpid(), claimed_by=claim.pid, holder=claim.holder, check=lease.check() == lease.token
            )
        say("lent", outcome=outcome(lambda: lent.acquire("n", timeout=0)))
        keeper.close()

    statuses = [fork(worker) for _ in range(2)]
    with keeper, keeper.lease("n", timeout=20) as lease:
        say("parent", statuses=statuses, check=lease.check() == lease.token, holder=lease.holder)
    lent.close()


def task(given: Given, parent_has: Lease | None) -> None:
    """What a process of multiprocessing does: a keeper and a lease of its own."""
    if parent_has is not None:
        say("inherited", state=parent_has.state.value)
    with keeper_of(given) as keeper, keeper.lease("of the child", timeout=20) as lease:
        say("child", check=lease.check() == lease.token, taken=keeper.try_acquire("n") is not None)


def processes(given: Given) -> None:
    """A process of multiprocessing, by whichever start method."""
    context = multiprocessing.get_context(given["method"])
    with keeper_of(given) as keeper:
        lease = keeper.acquire("n", timeout=10)
        process = context.Process(target=task, args=(given, lease if given["method"] == "fork" else None))
        process.start()
        process.join(CHILD_S)
        states = hold_on(lease, 2.5 * given["ttl"])
        say("parent", status=process.exitcode, states=sorted(states), check=lease.check() == lease.token)
        refused = ""
        if given["method"] != "fork":
            try:
                context.Process(target=task, args=(given, lease)).start()
            except TypeError as error:
                refused = str(error)
        say("pickled", refused=refused)
    assert lease.state is State.LOST


SCENARIOS = {f.__name__: f for f in (inherited, unnoticed, busy, anew, unused, processes)}

if __name__ == "__main__":
    SCENARIOS[options()["scenario"]](options())
