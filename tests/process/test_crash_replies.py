"""Crashes between two points: etcd or the callee has done what was asked, and nobody saw the answer."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from leasekeeper import InDoubt
from leasekeeper.testing import FaultProxy, failpoints
from leasekeeper.testing.outside import Trouble
from tests.crashes import (
    ONE_STEP,
    POLICIES,
    TEST_S,
    WAIT_S,
    Bench,
    check_attributed,
    check_preceded,
    normal,
    subject_of,
)
from tests.intermediary import Intermediary, Passing
from tests.process.test_crash_matrix import becomes

pytestmark = pytest.mark.timeout(TEST_S)

# One of each kind of help; the others differ in words.
FEW = ("bare", "dedupes", "memo", "probe")
CASES = [pytest.param(name, marks=() if name in FEW else pytest.mark.slow, id=name) for name in ONE_STEP]
RESENT = 3


def go_on(bench: Bench, name: str, id_: str, at: str, clean: Any) -> None:
    """The second life of a run that was killed there, and what must have become of it."""
    end, asked, happened = becomes(POLICIES[name], at)
    alerts: list[dict[str, Any]] = []
    with bench.keeper() as keeper:
        result = bench.life(keeper, name, id_, alerts)
    assert bench.numbers(name, id_) == (asked, happened)
    seen = bench.story(id_)
    check_attributed(seen)
    check_preceded(seen, bench.counted(name, id_)[0])
    if end == "stopped":
        assert isinstance(result, InDoubt)
        assert len(alerts) == 1
    else:
        assert normal(result, id_) == clean
        assert not alerts


@pytest.mark.parametrize("at", ["unapplied", "landed"])
@pytest.mark.parametrize("name", CASES)
def test_killed_as_the_answer_passes(name: str, at: str, bench: Bench) -> None:
    """A24 B23: Committed, and the process killed before it saw that: the next life reads it back, and repeats nothing."""
    intent = "before" if POLICIES[name].kind == "memo" else "intent"
    with bench.program(name, runs=[bench.it], cut="outcome" if at == "landed" else intent) as first:
        assert first.end(WAIT_S) == -signal.SIGKILL
        assert not first.all("done")
    assert bench.numbers(name, bench.it) == ((1, 1) if at == "landed" else (0, 0))
    assert bench.story(bench.it).kinds[-1] == ("outcome" if at == "landed" else intent)
    bench.bury()
    go_on(bench, name, bench.it, at, bench.undisturbed(name))


@pytest.mark.parametrize("name", CASES)
def test_killed_while_the_callee_keeps_its_answer(name: str, bench: Bench) -> None:
    """A13 A18 B21: Applied, and the process killed before it heard so: the world is asked, the same key sent, or nothing done."""
    policy = POLICIES[name]
    clean = bench.undisturbed(name)
    with bench.program(name, runs=[bench.it]) as first:
        bench.world.trouble(Trouble("delay_reply", policy.where, times=0, ms=600_000))
        bench.world.wait_applied(policy.where, subject=subject_of(policy, bench.it), timeout_s=WAIT_S)
        first.kill()
    bench.mend()
    bench.bury()
    go_on(bench, name, bench.it, "applied", clean)


@pytest.mark.parametrize("kind", ["opened", "intent", "outcome", "phase", "finished"])
def test_a_lost_answer_is_read_back(kind: str, bench: Bench) -> None:
    """B23: Etcd has recorded it and its answer is lost: no second record, no hole, no second call, the same result."""
    name = "stateful"
    clean = bench.undisturbed(name)
    with FaultProxy(bench.etcd.endpoint) as proxy, bench.keeper(endpoint=proxy.endpoint) as keeper:
        trip = proxy.lose_next_reply(failpoints.record(kind, run=bench.it))
        result = bench.life(keeper, name, bench.it, [])
        assert trip.fired
    assert normal(result, bench.it) == clean
    assert bench.numbers(name, bench.it) == (1, 1)
    assert bench.story(bench.it).kinds == bench.story(f"{bench.it}-clean").kinds


@pytest.mark.parametrize("name", ONE_STEP)
def test_every_transaction_three_times(name: str, bench: Bench) -> None:
    """B24: Each transaction of a run sent three times, of which the last answer counts: records, calls and result as ever."""
    clean = bench.undisturbed(name)

    def again(passing: Passing) -> bytes:
        return [passing.forward() for _ in range(RESENT)][-1]

    with Intermediary(bench.etcd.endpoint) as mid, bench.keeper(endpoint=mid.endpoint) as keeper:
        rule = mid.on("Txn", again, when=lambda request: f"/run/crash/{bench.it}/".encode() in request)
        result = bench.life(keeper, name, bench.it, [])
        assert rule.hits >= len(bench.story(bench.it).records)
    assert normal(result, bench.it) == clean
    assert bench.numbers(name, bench.it) == (1, 1)
    assert bench.story(bench.it).kinds == bench.story(f"{bench.it}-clean").kinds
