"""Runs over many lives: who each record is of, what the manner of an end changes (nothing), and when it is enough."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import Quarantined
from tests.crashes import (
    KEY,
    TEST_S,
    WAIT_S,
    WORKFLOW,
    Bench,
    Story,
    check_attributed,
    check_preceded,
    normal,
)
from tests.program import Program

pytestmark = pytest.mark.timeout(TEST_S)


def killed(bench: Bench, policy: str, at: str, nth: int = 1, **asked: Any) -> Program:
    """A life of the run ``bench.it`` in a process of its own that kills itself at a point."""
    with bench.program(policy, runs=[bench.it], at=at, nth=nth, **asked) as program:
        assert program.end(WAIT_S) == -signal.SIGKILL, program.errors
    bench.bury()
    return program


def finished(bench: Bench, policy: str, alerts: list[dict[str, Any]] | None = None) -> Any:
    """A life of it in this process."""
    with bench.keeper() as keeper:
        return bench.life(keeper, policy, bench.it, [] if alerts is None else alerts)


def test_five_kills_are_five_incarnations(bench: Bench) -> None:
    """A1 A2: Each life says who it was, where and after whom, and every record is of exactly one of them; one effect."""
    points = ("open:reply", "intent:reply", "effect:return", "verify:return", "outcome:reply")
    lives = [killed(bench, "probe", at) for at in points]
    result = finished(bench, "probe")
    seen = bench.story(bench.it)
    opened = seen.of("opened")
    assert [record.data["pid"] for record in opened] == [*(life.pid for life in lives), os.getpid()]
    assert len({record.data["lease"] for record in opened}) == len(opened)
    assert len({record.token for record in opened}) == len(opened)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    assert {record.data["boot_id"] for record in opened} == {boot_id}
    assert all(record.data["host"] and record.data["started_at"] <= record.at_ms for record in opened)
    check_attributed(seen)
    check_preceded(seen, bench.counted("probe", bench.it)[0])
    assert bench.numbers("probe", bench.it) == (1, 1)
    assert normal(result, bench.it) == bench.undisturbed("probe")


def shape(seen: Story) -> list[Any]:
    """What is recorded, without what is a matter of who and when."""
    return [(record.kind, record.step, record.gen, sorted(record.data)) for record in seen.records]


def test_how_a_process_ends_is_not_recorded(bench: Bench) -> None:
    """A34: Terminated, killed, out of memory or gone by itself: the records have one shape, and the next life does the same."""
    ends = {"kill": -signal.SIGKILL, "term": -signal.SIGTERM, "memory": -signal.SIGABRT, "exit": 1}
    ids = {end: f"{bench.it}-{end}" for end in ends}
    with ExitStack() as stack:
        programs = {
            end: stack.enter_context(bench.program("probe", runs=[id_], at="effect:return", end=end))
            for end, id_ in ids.items()
        }
        assert {end: program.end(WAIT_S) for end, program in programs.items()} == ends
    bench.bury()
    left = [shape(bench.story(id_)) for id_ in ids.values()]
    with bench.keeper() as keeper:
        results = [normal(bench.life(keeper, "probe", id_, []), id_) for id_ in ids.values()]
    assert all(each == left[0] for each in left)
    assert all(shape(bench.story(id_)) == shape(bench.story(ids["kill"])) for id_ in ids.values())
    assert all(result == results[0] for result in results)
    assert {bench.numbers("probe", id_) for id_ in ids.values()} == {(1, 1)}


def test_killed_again_and_again_is_quarantined(bench: Bench) -> None:
    """A25: After so many lives in a row without a step done the run is stopped for good, told once; one effect."""
    restarts = 3
    for _ in range(restarts + 1):
        killed(bench, "dedupes", "effect:return", restarts=restarts)
    with bench.program("dedupes", runs=[bench.it], restarts=restarts) as last:
        last.wait_for("end", WAIT_S)
    (stopped,) = last.all("stopped")
    assert stopped["error"] == "Quarantined"
    assert [alert["kind"] for alert in last.all("alert")] == ["quarantined"]
    assert bench.numbers("dedupes", bench.it) == (restarts + 1, 1)
    alerts: list[dict[str, Any]] = []
    assert isinstance(finished(bench, "dedupes", alerts), Quarantined)
    assert not alerts
    assert bench.numbers("dedupes", bench.it) == (restarts + 1, 1)
    with bench.keeper() as keeper:
        keeper.resolve(f"{WORKFLOW}/{bench.it}", evidence="the machine was changed", signer=KEY)
    assert normal(finished(bench, "dedupes", alerts), bench.it) == bench.undisturbed("dedupes")
    assert bench.numbers("dedupes", bench.it) == (restarts + 2, 1)
    seen = bench.story(bench.it)
    assert Counter(seen.kinds)["quarantined"] == Counter(seen.kinds)["alerted"] == 1
    check_attributed(seen)


def test_steps_that_are_done_are_not_done_again(bench: Bench) -> None:
    """B1: Killed in step 4 of 10, the next life calls 1 to 3 not again, 4 with its key, and the rest once."""
    killed(bench, "ten", "effect:return", 4)
    result = finished(bench, "ten")
    asked = {n: len(bench.world.received("payments.charge", f"{bench.it}-{n}")) for n in range(10)}
    assert asked == {**dict.fromkeys(range(10), 1), 3: 2}
    assert [len(bench.world.applied("payments.charge", f"{bench.it}-{n}")) for n in range(10)] == [1] * 10
    assert normal(result, bench.it) == bench.undisturbed("ten")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_killed_at_random(seed: int, bench: Bench) -> None:
    """B2: Killed at points by chance until it is through, a run of ten steps comes to what an undisturbed one does."""
    chance = random.Random(seed)
    points = ("open:reply", "find:reply", "intent:send", "intent:reply", "effect:call", "effect:return", "outcome:send")
    for _ in range(40):
        at, nth = chance.choice(points), chance.randint(1, 4)
        with bench.program("ten", runs=[bench.it], at=at, nth=nth, restarts=100) as program:
            if program.end(WAIT_S) == 0:
                break
        bench.bury()
    result = finished(bench, "ten")
    assert normal(result, bench.it) == bench.undisturbed("ten")
    assert [len(bench.world.applied("payments.charge", f"{bench.it}-{n}")) for n in range(10)] == [1] * 10
    seen = bench.story(bench.it)
    check_attributed(seen)
    assert Counter(seen.kinds)["outcome"] == 10
