"""Crashes where a step stops: what is recorded of a doubt, a conflict or a drift, and that somebody is told, survive them too."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from leasekeeper import Conflict, Drift, InDoubt, LeaseLost, Misuse
from leasekeeper.testing import failpoints
from leasekeeper.testing.outside import call
from tests.crashes import (
    KEY,
    ONE_STEP,
    POLICIES,
    TEST_S,
    WAIT_S,
    WORKFLOW,
    Bench,
    bare,
    body,
    check_attributed,
    lates,
    normal,
)
from tests.program import Program
from tests.support import until

pytestmark = pytest.mark.timeout(TEST_S)


def killed(bench: Bench, policy: str, at: str, **asked: Any) -> Program:
    """A life of the run ``bench.it`` in a process that kills itself at a point."""
    with bench.program(policy, runs=[bench.it], at=at, **asked) as program:
        assert program.end(WAIT_S) == -signal.SIGKILL, program.errors
    bench.bury()
    return program


def once_more(bench: Bench, policy: str, alerts: list[dict[str, Any]]) -> Any:
    """A life of it in this process."""
    with bench.keeper() as keeper:
        return bench.life(keeper, policy, bench.it, alerts)


# How often somebody is told in all: who was told just before it could be noted is told again.
@pytest.mark.parametrize(
    ("at", "told"), [("in_doubt:send", 1), ("in_doubt:reply", 1), ("alerted:send", 2), ("alerted:reply", 1)]
)
def test_killed_in_doubt(at: str, told: int, bench: Bench) -> None:
    """A16: Killed while it tells that nobody knows: the next life tells what was not told, calls nothing, and stays in doubt."""
    killed(bench, "bare", "effect:return")
    second = killed(bench, "bare", at)
    alerts: list[dict[str, Any]] = []
    for _ in range(2):
        assert isinstance(once_more(bench, "bare", alerts), InDoubt)
    assert len(second.all("alert")) + len(alerts) == told
    assert bench.numbers("bare", bench.it) == (1, 1)
    seen = bench.story(bench.it)
    assert (seen.kinds.count("in_doubt"), seen.kinds.count("alerted")) == (1, 1)
    assert seen.head["status"] == "in_doubt"
    check_attributed(seen)


@pytest.mark.parametrize("at", ["note:send", "note:reply", "raised:send", "raised:reply"])
def test_killed_as_the_effect_has_raised(at: str, bench: Bench) -> None:
    """A13: What an effect raised says nothing of what happened: recorded or not, the next life is in doubt and calls nothing."""
    killed(bench, "raising", at)
    alerts: list[dict[str, Any]] = []
    assert isinstance(once_more(bench, "raising", alerts), InDoubt)
    assert len(alerts) == 1
    assert bench.numbers("raising", bench.it) == (1, 1)
    assert bench.story(bench.it).kinds.count("raised") == (at == "raised:reply")


@pytest.mark.parametrize("at", ["conflict:send", "conflict:reply"])
def test_killed_at_a_conflict(at: str, bench: Bench) -> None:
    """A14 B25: Applied by somebody else before: whoever comes finds the conflict, recorded once, and nobody calls."""
    bare(bench.world.url)(bench.it)
    killed(bench, "probe", at)
    found = once_more(bench, "probe", [])
    assert isinstance(found, Conflict)
    assert found.receipt is not None
    assert found.receipt.kind == "conflict"
    assert bench.numbers("probe", bench.it) == (1, 1)
    seen = bench.story(bench.it)
    assert seen.kinds.count("conflict") == 1
    assert "intent" not in seen.kinds


@pytest.mark.parametrize("at", ["find:send", "find:reply", "drift:send", "drift:reply"])
def test_killed_at_a_drift(at: str, bench: Bench) -> None:
    """A33: What was done was undone behind its back: each life that comes says so, and none does it again."""
    result = once_more(bench, "probe", [])
    call(bench.world.url, "DELETE", f"/till/charges/{result['id']}")
    killed(bench, "probe", at)
    alerts: list[dict[str, Any]] = []
    assert isinstance(once_more(bench, "probe", alerts), Drift)
    assert [alert["kind"] for alert in alerts] == ["drift"]
    assert bench.numbers("probe", bench.it) == (1, 1)
    assert bench.story(bench.it).kinds.count("drift") == 1 + (at == "drift:reply")


@pytest.mark.parametrize("at", ["late:send", "late:reply"])
def test_killed_as_it_leaves_its_hint(at: str, bench: Bench) -> None:
    """C02: An owner without its lease is killed while it leaves what it saw: nothing follows from it, be it there or not."""
    with bench.program("probe", runs=[bench.it], at="outcome:send", end="freeze", then=at) as first:
        until(lambda: first.frozen, WAIT_S)
        bench.bury()
        first.thaw()
        assert first.end(WAIT_S) == -signal.SIGKILL
    assert len(lates(bench.raw, bench.namespace, bench.it)) == (at == "late:reply")
    result = once_more(bench, "probe", [])
    assert bench.story(bench.it).kinds == ["opened", "intent", "opened", "outcome", "finished"]
    assert bench.numbers("probe", bench.it) == (1, 1)
    assert normal(result, bench.it) == bench.undisturbed("probe")


@pytest.mark.parametrize("at", ["load:call", "load:return"])
def test_killed_as_a_large_result_is_read(at: str, bench: Bench) -> None:
    """B16: Killed while a replay fetches its result from where it is kept: the next one does it again, and nothing is called."""
    result = once_more(bench, "stored", [])
    killed(bench, "stored", at)
    assert once_more(bench, "stored", []) == result
    assert bench.numbers("stored", bench.it) == (1, 1)


@pytest.mark.parametrize("at", ["resolve:send", "resolve:reply"])
def test_an_operator_is_struck_before_and_after_the_word(at: str, bench: Bench) -> None:
    """What an operator says stands as a whole or not at all; said again, it is told that it stands."""
    killed(bench, "bare", "effect:return")
    assert isinstance(once_more(bench, "bare", []), InDoubt)
    said: dict[str, Any] = {"applied": True, "evidence": "looked", "result": 7, "signer": KEY}
    with bench.keeper() as keeper:
        with failpoints.raise_at(at, KeyboardInterrupt(), on=keeper), pytest.raises(KeyboardInterrupt):
            keeper.resolve(f"{WORKFLOW}/{bench.it}", "act", **said)
        assert bench.story(bench.it).kinds.count("resolved") == (at == "resolve:reply")
        again = pytest.raises(Misuse, match="nothing to resolve") if at == "resolve:reply" else nullcontext()
        with again:
            keeper.resolve(f"{WORKFLOW}/{bench.it}", "act", **said)
    assert once_more(bench, "bare", []) == 7
    assert bench.numbers("bare", bench.it) == (1, 1)


# ---------------------------------------------------------------- the list of points


@contextmanager
def tracked(bench: Bench, found: set[str]) -> Iterator[Any]:
    """A function that does a life of a run of a policy; the points that it passes are put into ``found``."""
    with bench.keeper() as keeper, failpoints.track(on=keeper) as track:
        yield lambda policy, id_: bench.life(keeper, policy, f"{bench.it}-{id_}", [])
        found.update(track.points)


def test_every_point_is_passed_and_none_beside_them(bench: Bench) -> None:
    """A24: What steps of every kind pass, undisturbed, repeated and stopped, is just the list that the kit gives."""
    found: set[str] = set()
    with tracked(bench, found) as life:
        for name in ONE_STEP:
            first = life(name, name)
            assert life(name, name) == first
        bare(bench.world.url)(f"{bench.it}-conflict")
        assert isinstance(life("probe", "conflict"), Conflict)
        with pytest.raises(RuntimeError):
            life("raising", "raising")
        assert isinstance(life("raising", "raising"), InDoubt)
        voided = life("probe", "drift")
        call(bench.world.url, "DELETE", f"/till/charges/{voided['id']}")
        assert isinstance(life("probe", "drift"), Drift)
    found |= _of_a_word(bench, "raising") | _of_a_lost_lease(bench)
    assert found == set(failpoints.names())


def _of_a_word(bench: Bench, id_: str) -> set[str]:
    with bench.keeper() as keeper, failpoints.track(on=keeper) as track:
        keeper.resolve(f"{WORKFLOW}/{bench.it}-{id_}", "act", applied=True, evidence="looked", signer=KEY)
    return set(track.points)


def _of_a_lost_lease(bench: Bench) -> set[str]:
    with bench.keeper() as keeper:
        running = keeper.run(WORKFLOW, id=bench.it, signer=KEY)
        bury = failpoints.Failpoint("effect:return", bench.bury, on=running)
        with failpoints.track(on=running) as track, bury, pytest.raises(LeaseLost), running as run:
            body(run, POLICIES["bare"], bench.world.url)
    return set(track.points)
