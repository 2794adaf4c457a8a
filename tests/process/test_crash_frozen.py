"""Owners that are frozen, and an etcd that is away: what comes late adds nothing, and what is true is recorded when it can be."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from leasekeeper import Timing
from leasekeeper.testing import EtcdServer
from leasekeeper.testing.outside import Trouble, call
from tests.crashes import (
    KEY,
    POLICIES,
    TEST_S,
    WAIT_S,
    WORKFLOW,
    Bench,
    check_attributed,
    check_preceded,
    lates,
    normal,
    subject_of,
)
from tests.program import Program
from tests.raw import RawEtcd
from tests.support import until

pytestmark = pytest.mark.timeout(TEST_S)

TTL_S = 2


def frozen_at(bench: Bench, policy: str, at: str, program: Program) -> None:
    """Wait until it has stopped itself, and end its lease as its TTL would."""
    until(lambda: program.frozen, WAIT_S)
    bench.bury()


def test_frozen_during_the_call(bench: Bench) -> None:
    """C02 A13: Its lease runs out during the call, another adopts; thawed, it adds no record, leaves a hint, and is told."""
    policy = POLICIES["probe"]
    with bench.program("probe", runs=[bench.it], ttl=TTL_S) as first:
        bench.world.trouble(Trouble("delay_reply", policy.where, times=0, ms=600_000))
        bench.world.wait_applied(policy.where, subject=subject_of(policy, bench.it), timeout_s=WAIT_S)
        first.freeze()
        with bench.keeper() as keeper:
            result = bench.life(keeper, "probe", bench.it, [])
        before = bench.story(bench.it)
        assert before.kinds == ["opened", "intent", "opened", "outcome", "finished"]
        bench.mend()
        first.thaw()
        first.wait_for("end", WAIT_S)
    assert [report["error"] for report in first.all("stopped")] == ["LeaseLost"]
    after = bench.story(bench.it)
    assert [record.stored for record in after.records] == [record.stored for record in before.records]
    assert bench.numbers("probe", bench.it) == (1, 1)
    (hint,) = lates(bench.raw, bench.namespace, bench.it)
    assert (hint.kind, hint.life) == ("outcome", before.records[0].life)
    assert normal(hint.data["result"], bench.it) == normal(result, bench.it)
    check_attributed(after)


@pytest.mark.parametrize("taken_over", [True, False])
@pytest.mark.parametrize("at", ["intent:send", "outcome:send"])
def test_frozen_between_the_check_and_the_write(at: str, taken_over: bool, bench: Bench) -> None:
    """C02 G2: Frozen right before a record is sent, its claim gone, with a successor or none: the record is refused by etcd."""
    with bench.program("probe", runs=[bench.it], at=at, end="freeze") as first:
        frozen_at(bench, "probe", at, first)
        if taken_over:
            with bench.keeper() as keeper:
                bench.life(keeper, "probe", bench.it, [])
        before = bench.story(bench.it)
        first.thaw()
        first.wait_for("end", WAIT_S)
    assert [report["error"] for report in first.all("stopped")] == ["LeaseLost"]
    after = bench.story(bench.it)
    assert [record.stored for record in after.records] == [record.stored for record in before.records]
    assert [hint.kind for hint in lates(bench.raw, bench.namespace, bench.it)] == ["outcome"] * (at == "outcome:send")
    if not taken_over:
        with bench.keeper() as keeper:
            bench.life(keeper, "probe", bench.it, [])
    assert bench.numbers("probe", bench.it) == (1, 1)
    check_preceded(bench.story(bench.it), bench.counted("probe", bench.it)[0])
    assert bench.story(bench.it).head["status"] == "finished"


def test_frozen_behind_the_gate(bench: Bench) -> None:
    """C02 G4: Frozen when it had passed the gate, it calls after its successor has: the resource refuses its older token."""
    with bench.program("fences", runs=[bench.it], at="effect:call", end="freeze") as first:
        frozen_at(bench, "fences", "effect:call", first)
        with bench.keeper() as keeper:
            result = bench.life(keeper, "fences", bench.it, [])
        before = bench.story(bench.it)
        first.thaw()
        first.wait_for("end", WAIT_S)
    assert normal(result, bench.it) == bench.undisturbed("fences")
    assert bench.numbers("fences", bench.it) == (2, 1)
    received, applied = bench.counted("fences", bench.it)
    assert int(received[0].token) > int(received[1].token)
    assert applied[0].token == received[0].token
    after = bench.story(bench.it)
    assert [record.stored for record in after.records] == [record.stored for record in before.records]
    assert [hint.kind for hint in lates(bench.raw, bench.namespace, bench.it)] == ["raised"]


def test_equal_tokens_of_two_claims(bench: Bench) -> None:
    """G4: A restored etcd can hand one token out twice: the resource tells the two by their claims, and admits one."""

    def write(claim: str) -> int:
        token = {"Fencing-Token": f"{4711:019d}", "Fencing-Claim": claim}
        try:
            call(bench.world.url, "PUT", f"/secrets/{bench.it}", {"value": claim}, headers=token)
        except Exception as refused:  # noqa: BLE001 - its status is looked at
            return int(getattr(refused, "status", 0))
        return 200

    assert [write("first"), write("second"), write("first")] == [200, 409, 200]


@pytest.mark.parametrize("when", ["during the call", "with the answer"])
def test_etcd_is_away_during_the_call(when: str, bench: Bench, namespace: str) -> None:
    """Etcd away: the result is kept and recorded when etcd is back, before the lease is out: one call, one record."""
    with EtcdServer() as server:
        here = Bench(server, RawEtcd(server.endpoint), namespace, bench.world, bench.directory)
        back = threading.Thread(target=server.start, name="etcd-comes-back", daemon=True)

        def charge(subject: str) -> Any:
            charged = POLICIES["bare"].make(bench.world.url)(subject)
            server.kill()
            if when == "during the call":
                server.start()
            else:
                back.start()
            return charged

        with here.keeper(timing=Timing(ttl=30)) as keeper:
            with keeper.run(WORKFLOW, id=here.it, signer=KEY) as run:
                result = run.do("act", charge, here.it)
                assert run.do("act", charge, here.it) == result
            if when == "with the answer":
                back.join(WAIT_S)
        seen = here.story(here.it)
        assert seen.kinds == ["opened", "intent", "outcome", "finished"]
        assert seen.result == result
        check_attributed(seen)
    assert bench.numbers("bare", here.it) == (1, 1)
