"""Several processes want the same run: one acts, all of them come to the same result, also when the one that acts is killed."""

from __future__ import annotations

import signal
from contextlib import ExitStack

import pytest

from tests.crashes import TEST_S, WAIT_S, Bench, check_attributed, check_preceded, normal
from tests.support import until

pytestmark = pytest.mark.timeout(TEST_S)

RACERS = 8
# Long enough for a busy machine to keep it alive.
TTL_S = 5


@pytest.mark.slow
def test_eight_racers_mint_one_key(bench: Bench) -> None:
    """A18 A31: Eight processes do the same run at once: one key, one request, one effect, and the same result in each."""
    with ExitStack() as stack:
        racers = [stack.enter_context(bench.program("dedupes", runs=[bench.it])) for _ in range(RACERS)]
        results = [racer.wait_for("done", WAIT_S)["result"] for racer in racers]
    assert all(result == results[0] for result in results)
    assert bench.numbers("dedupes", bench.it) == (1, 1)
    seen = bench.story(bench.it)
    check_attributed(seen)
    check_preceded(seen, bench.counted("dedupes", bench.it)[0])
    assert len(seen.of("intent")) == len(seen.of("outcome")) == 1


@pytest.mark.parametrize("policy", ["dedupes", pytest.param("probe", marks=pytest.mark.slow)])
def test_eight_racers_of_which_the_first_is_killed(policy: str, bench: Bench) -> None:
    """A13 A18: The owner is killed when its effect was applied; of seven who wait for its TTL one goes on, with its key."""
    with ExitStack() as stack:
        first = stack.enter_context(bench.program(policy, runs=[bench.it], at="effect:return", end="freeze", ttl=TTL_S))
        until(lambda: first.frozen, WAIT_S)
        others = [stack.enter_context(bench.program(policy, runs=[bench.it], ttl=TTL_S)) for _ in range(RACERS - 1)]
        first.kill()
        results = [other.wait_for("done", WAIT_S)["result"] for other in others]
    assert all(result == results[0] for result in results)
    assert normal(results[0], bench.it) == bench.undisturbed(policy)
    received, applied = bench.counted(policy, bench.it)
    assert len(applied) == 1
    assert len(received) == (2 if policy == "dedupes" else 1)
    assert len({request.key for request in received}) == 1
    seen = bench.story(bench.it)
    check_attributed(seen)
    check_preceded(seen, received)


@pytest.mark.parametrize("runs", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_two_racers_send_one_mail(runs: int, bench: Bench) -> None:
    """B7: Two processes race for each of many runs that send a mail which nobody could take back: each is sent once."""
    ids = [f"{bench.it}-{number}" for number in range(runs)]
    with bench.program("blind", runs=ids) as one, bench.program("blind", runs=ids) as other:
        for racer in (one, other):
            racer.wait_for("end", 200)
    assert sorted(report["id"] for report in one.all("done")) == sorted(ids)
    assert {report["id"]: report["result"] for report in one.all("done")} == {
        report["id"]: report["result"] for report in other.all("done")
    }
    addresses = [entry.subject for entry in bench.world.applied("mail.send") if bench.it in entry.subject]
    assert sorted(addresses) == sorted(f"{id_}@example.org" for id_ in ids)
    asked = [entry for entry in bench.world.received("mail.send") if bench.it in entry.subject]
    assert len(asked) == len({entry.key for entry in asked}) == runs


def test_killed_while_two_race(bench: Bench) -> None:
    """B7 A18: One of two racers is killed in the middle of its runs: the other ends each of them, without a second effect."""
    ids = [f"{bench.it}-{number}" for number in range(16)]
    with bench.program("dedupes", runs=ids, ttl=TTL_S, at="effect:return", nth=9) as one:
        assert one.end(WAIT_S) == -signal.SIGKILL
        with bench.program("dedupes", runs=ids, ttl=TTL_S) as other:
            other.wait_for("end", WAIT_S)
    done = {report["id"]: report["result"] for report in other.all("done")}
    assert done.keys() == set(ids)
    wanted = bench.undisturbed("dedupes")
    for id_ in ids:
        received, applied = bench.counted("dedupes", id_)
        assert len(applied) == 1
        assert normal(done[id_], id_) == wanted
        check_preceded(bench.story(id_), received)
