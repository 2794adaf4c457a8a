"""The matrix of crashes: every way to be helped x every point of a step, killed there for real, and gone on with.

One process does a run for each point, all at once, each of which stops at its point; then the process is killed (kill -9). A
second process goes on with all of them. What became of each is judged by the outside world's ledger, by the records in etcd, and
by the run that nobody disturbed.
"""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper import InDoubt
from tests.crashes import (
    KEY,
    ONE_STEP,
    POLICIES,
    TEST_S,
    WAIT_S,
    WORKFLOW,
    Bench,
    Policy,
    check_attributed,
    check_preceded,
    normal,
)
from tests.program import Program

pytestmark = pytest.mark.timeout(TEST_S)


def stage(points: list[str], index: int) -> str:
    """How far a step had come that was killed at this point of its life: the kind of its crash."""
    intent = "before" if "before:send" in points else "intent"
    for name, since in (("landed", "outcome:reply"), ("applied", "effect:return"), ("unapplied", f"{intent}:reply")):
        if index >= points.index(since):
            return name
    return "unbegun"


def becomes(policy: Policy, at: str) -> tuple[str, int, int]:
    """What must become of it: how the second life ends, how often the world was asked by then, and how often it happened."""
    if at in ("unbegun", "landed"):
        return "done", 1, 1
    then = policy.unapplied if at == "unapplied" else policy.applied
    asked = (at == "applied") + (then == "again")
    # Nobody dedupes what a model is asked.
    return ("stopped" if then == "stop" else "done"), asked, asked if policy.kind == "memo" else min(asked, 1)


# One of each verdict; what the others add is another way to it.
FEW = [*[(name, False) for name in ("bare", "blind", "dedupes", "memo", "probe", "stateful")], ("probe", True)]
ALL = [*[(name, False) for name in ONE_STEP], *[(name, True) for name in ("bare", "memo", "probe", "stateful")]]
CASES = [pytest.param(*case, marks=() if case in FEW else pytest.mark.slow) for case in ALL]


@pytest.mark.parametrize(("name", "aio"), CASES)
def test_killed_at_every_point(name: str, aio: bool, bench: Bench) -> None:
    """A13 A17 A18 A24 B2 B16: Killed at any point, a step is applied once, or it stops in doubt and tells so once."""
    with bench.program(name, aio=aio, clean=f"{name}-{bench.namespace[-6:]}", each=True) as first:
        points: list[str] = first.wait_for("clean", WAIT_S)["points"]
        parked = first.wait_for_more("parked", len(points), WAIT_S)
        first.kill()
    assert not first.all("alert")
    bench.bury()
    places = {report["id"]: _place(points, report) for report in parked}
    assert sorted(places.values()) == list(range(len(points)))
    with bench.program(name, aio=aio, runs=sorted(places)) as second:
        assert second.wait_for("end", WAIT_S)
        second.end(WAIT_S)
    wanted = {id_: becomes(POLICIES[name], stage(points, place)) for id_, place in places.items()}
    _judge(bench, name, first, second, wanted)


def _place(points: list[str], report: dict[str, Any]) -> int:
    place = -1
    for _ in range(report["nth"]):
        place = points.index(report["point"], place + 1)
    return place


def _judge(bench: Bench, name: str, first: Program, second: Program, wanted: dict[str, tuple[str, int, int]]) -> None:
    (clean,) = first.all("done")
    result = normal(clean["result"], clean["id"])
    done = {report["id"]: report["result"] for report in second.all("done")}
    stopped = {report["id"]: report for report in second.all("stopped")}
    alerts = [alert["id"] for alert in second.all("alert")]
    assert {**done, **stopped}.keys() == wanted.keys()
    for id_, (end, asked, happened) in wanted.items():
        assert bench.numbers(name, id_) == (asked, happened), id_
        seen = bench.story(id_)
        check_attributed(seen)
        check_preceded(seen, bench.counted(name, id_)[0])
        assert seen.head["status"] == ("in_doubt" if end == "stopped" else "finished"), id_
        if end == "done":
            assert normal(done[id_], id_) == result, id_
            assert id_ not in alerts
        else:
            assert stopped[id_]["error"] == "InDoubt", stopped[id_]
            assert alerts.count(id_) == 1
            assert seen.kinds[-2:] == ["in_doubt", "alerted"]
    _resolve(bench, name, sorted(stopped), result)


def _resolve(bench: Bench, name: str, doubts: list[str], wanted: Any) -> None:
    """A16: What is in doubt stays so and asks nobody, until an operator says what is true; then it comes to its end."""
    alerts: list[dict[str, Any]] = []
    with bench.keeper() as keeper:
        for id_ in doubts:
            before = bench.counted(name, id_)
            assert isinstance(bench.life(keeper, name, id_, alerts), InDoubt)
            assert bench.counted(name, id_) == before
            truth = [dict(entry.data) for entry in before[1]]
            keeper.resolve(
                f"{WORKFLOW}/{id_}",
                "act",
                applied=bool(truth),
                evidence="the ledger",
                result=truth[0] if truth else None,
                signer=KEY,
            )
            assert normal(bench.life(keeper, name, id_, alerts), id_) == wanted
            assert bench.numbers(name, id_) == (1, 1)
            seen = bench.story(id_)
            check_attributed(seen)
            check_preceded(seen, bench.counted(name, id_)[0])
            assert seen.head["status"] == "finished"
    assert not alerts
