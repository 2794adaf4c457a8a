"""Adding to a run under halts: no intent that one covers lands, evidence does, and runs that none covers go on."""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper.protocol import halt as halts
from leasekeeper.protocol.append import append
from leasekeeper.protocol.halt import halt
from leasekeeper.protocol.plan import Call
from leasekeeper.run_errors import RunHalted
from tests.model.appends import calls, go_on, lost, texts, writes
from tests.model.runs import Crew, Owner, entry
from tests.model.world import KEYS


@pytest.mark.parametrize("scope", ["*", "order/*", "order/o-*", "order/o-1"])
def test_a_halt_stops_intents_alone(scope: str) -> None:
    """B15: with a halt that covers the run, no intent lands; evidence that was sent together with it does."""
    owner = Owner()
    owner.client.do(halt(owner.client.ctx, scope, "stop", owner.world.now_s + 5))
    kinds = [False, True, False, True]
    plans = [append(owner.log, entry(owner, f"n{index}", intent=kind)) for index, kind in enumerate(kinds)]
    runs = Crew(owner.client).run(plans)
    assert [type(run.error) for run in runs] == [type(None), RunHalted, type(None), RunHalted]
    assert texts(owner) == ["n0", "n2"]
    assert runs[1].error.reason == "stop"  # type: ignore[union-attr]
    assert runs[1].error.scope == scope  # type: ignore[union-attr]


def test_a_halt_stops_intents_that_wait_behind_the_one_it_has_stopped() -> None:
    """B15: what comes while the first is being refused is refused as well; what is known of a halt lets nothing pass it."""
    owner = Owner()
    owner.client.do(halt(owner.client.ctx, "order/*", "stop", owner.world.now_s + 5))
    plans = [append(owner.log, entry(owner, f"n{index}", intent=True)) for index in range(3)]
    runs = Crew(owner.client).run(plans)
    assert [type(run.error) for run in runs] == [RunHalted] * 3
    assert texts(owner) == []


@pytest.mark.parametrize("scope", ["orders/*", "order/o-11", "order/o-1x*", "other/o-1"])
def test_a_halt_of_others_stops_nothing(scope: str) -> None:
    """B15: other runs go on under a halt that does not cover them, at the cost of one more transaction."""
    owner = Owner()
    owner.client.do(halt(owner.client.ctx, scope, "stop", owner.world.now_s + 5))
    (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "n", intent=True))])
    assert run.error is None
    assert calls(run) == 2


def test_a_halt_that_comes_while_others_are_known_stops_the_intent() -> None:
    """B15: an intent that goes on under halts of others compares that none was put since."""
    owner = Owner()
    ctx = owner.client.ctx
    owner.client.do(halt(ctx, "other/*", "stop", owner.world.now_s + 5))
    plan = append(owner.log, entry(owner, "n", intent=True))
    operation: Any = next(plan)
    operation = plan.send(owner.client._perform(operation))  # refused: it reads the halts
    owner.client.do(halt(ctx, "order/*", "now", owner.world.now_s + 5))
    with pytest.raises(RunHalted):
        go_on(owner, plan, operation)
    assert texts(owner) == []


def test_a_halt_whose_record_cannot_be_read_halts() -> None:
    """B15: a damaged halt stops its scope all the same."""
    owner = Owner()
    owner.world.store.put(KEYS.root.encode() + b"halt/order%2F*", b"\xff not a halt")
    (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "n", intent=True))])
    assert isinstance(run.error, RunHalted)


def test_more_halts_than_are_looked_at_halt_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """B15: where not every halt was read, one of the others may cover the run: nothing begins."""
    monkeypatch.setattr(halts, "HALTS_MAX", 3)
    owner = Owner()
    for index in range(4):
        owner.client.do(halt(owner.client.ctx, f"other/{index}", "stop", owner.world.now_s + 5))
    (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "n", intent=True))])
    assert isinstance(run.error, RunHalted)
    assert "more than the 3" in run.error.reason


def test_a_copy_that_comes_after_a_halt_was_lifted_is_known_again() -> None:
    """B24: sent, not answered, refused for a halt, and then taken when it came late: what landed is told as landed, once."""
    owner = Owner()
    ctx, world = owner.client.ctx, owner.world
    plans = [
        append(owner.log, made)
        for made in (entry(owner, "n"), writes(owner, b"k", b"evidence"), entry(owner, "i", intent=True))
    ]
    n, evidence, intent = plans
    operation: Any = next(n)
    bells = [next(evidence), next(intent)]
    assert all(bells)
    go_on(owner, n, operation)
    operation = evidence.send(True)  # leads: sends both
    request = operation.request
    operation = evidence.throw(lost())
    owner.client.do(halt(ctx, "*", "stop", world.now_s + 5))
    while not isinstance(operation, Call):
        operation = evidence.send(None)
    operation = evidence.send(owner.client._perform(operation))  # refused: the intent is halted
    world.store.delete(*(kv.key for kv in world.store.below(KEYS.root.encode() + b"halt/")))
    world.store.answer(request)  # the first copy comes now
    assert go_on(owner, evidence, operation).seq == 3
    with pytest.raises(RunHalted):
        intent.send(True)
    assert [receipt.step for receipt in owner.records()][1:] == ["n", "evidence", "i"]
