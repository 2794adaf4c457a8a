"""The end of a run on a model of etcd: judged by all that was recorded before it, and nothing is begun behind it."""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper.errors import Misuse
from leasekeeper.protocol import closing
from leasekeeper.protocol.append import Entry, append, settle
from leasekeeper.protocol.closing import FINISH_S, finish
from leasekeeper.protocol.head import DOUBTS_MAX
from leasekeeper.protocol.plan import Fault
from leasekeeper.protocol.receipt import Draft
from leasekeeper.run_errors import InDoubt, RunFinished, StepsOpen
from tests.model.appends import STRIKES
from tests.model.runs import Crew, Owner, entry
from tests.model.world import Strike

DATA = {
    "intent": b'{"applied":null}',
    "outcome": b'{"intent":2}',
    "in_doubt": b'{"intent":2}',
    "raised": b'{"applied":false}',
}


def of_step(owner: Owner, kind: str, step: str, **more: Any) -> Entry:
    """A record of a step."""
    changes = {
        "in_doubt": lambda head: head.in_doubt(step),
        "finished": lambda head: head._replace(status="finished"),
    }
    draft = Draft(kind, step, DATA.get(kind, b"{}"), owner.client.ctx.new_nonce())
    return Entry(draft, change=changes.get(kind, lambda head: head), **more)


def write(owner: Owner, *records: tuple[str, str]) -> None:
    """Add these, one after the other."""
    for kind, step in records:
        owner.client.do(append(owner.log, of_step(owner, kind, step)))


def kinds(owner: Owner) -> list[str]:
    """What is recorded."""
    return [receipt.kind for receipt in owner.records()]


def test_what_is_known_may_end() -> None:
    """Done, surely not applied, a memo that was asked: the run is finished, and once."""
    owner = Owner()
    write(owner, ("intent", "a"), ("outcome", "a"), ("intent", "b"), ("raised", "b"), ("before", "c"))
    assert owner.client.do(finish(owner.log)) is not None
    assert owner.client.do(finish(owner.log)) is None
    assert kinds(owner)[-1] == "finished"
    assert kinds(owner).count("finished") == 1


@pytest.mark.parametrize("strike", STRIKES)
def test_an_intent_under_way_is_seen(strike: Strike) -> None:
    """An intent whose sender was struck, and which landed then or lands now, is not forgotten by who ends the run."""
    owner = Owner()
    crew = Crew(owner.client)
    crew.run([append(owner.log, of_step(owner, "intent", "a", intent=True))], strikes={(0, 0): strike})
    (run,) = crew.run([finish(owner.log)])
    owner.world.arrive()
    if "intent" in kinds(owner):
        assert isinstance(run.error, StepsOpen)
        assert kinds(owner)[-1] == "intent"
    else:
        assert run.error is None
        assert kinds(owner)[-1] == "finished"


@pytest.mark.parametrize("strike", STRIKES)
def test_an_outcome_under_way_is_seen(strike: Strike) -> None:
    """An outcome whose sender was struck counts for the end, if it landed."""
    owner = Owner()
    crew = Crew(owner.client)
    write(owner, ("intent", "a"))
    crew.run([append(owner.log, of_step(owner, "outcome", "a"))], strikes={(0, 0): strike})
    (run,) = crew.run([finish(owner.log)])
    owner.world.arrive()
    assert kinds(owner)[-1] == ("finished" if "outcome" in kinds(owner) else "intent")
    assert isinstance(run.error, type(None) if "outcome" in kinds(owner) else StepsOpen)


@pytest.mark.parametrize("settled", [True, False])
def test_an_intent_that_comes_with_the_end_is_seen(monkeypatch: pytest.MonkeyPatch, settled: bool) -> None:
    """One that is under way while the end waits in line, for longer than is waited for it: the end is judged at its turn."""
    if not settled:
        monkeypatch.setattr(closing, "settle", lambda *_: iter(()))
    owner = Owner()
    intent, end = Crew(owner.client).run(
        [append(owner.log, of_step(owner, "intent", "a", intent=True)), finish(owner.log)]
    )
    assert intent.error is None
    assert isinstance(end.error, StepsOpen)
    assert "finished" not in kinds(owner)


@pytest.mark.parametrize("kind", ["intent", "before", "checkpoint", "phase", "finished"])
def test_nothing_is_begun_behind_the_end(kind: str) -> None:
    """Whoever began to write it before, and comes behind it in line, is told that the run is finished."""
    owner = Owner()
    plans = [append(owner.log, entry(owner, "n")), finish(owner.log), append(owner.log, of_step(owner, kind, "late"))]
    _, _, late = Crew(owner.client).run(plans)
    written = kinds(owner)
    assert written.count("finished") == 1
    if isinstance(late.error, RunFinished):
        assert written[-1] == "finished"
    else:
        assert late.error is None
        assert written.index(kind) <= written.index("finished")


@pytest.mark.parametrize("kind", ["failed", "drift", "alerted", "note"])
def test_what_may_come_behind_the_end(kind: str) -> None:
    """That a replay found it changed, that somebody was told: also of a run that is finished."""
    owner = Owner()
    owner.client.do(finish(owner.log))
    write(owner, (kind, ""))
    assert kinds(owner)[-2:] == ["finished", kind]


def test_more_doubts_than_the_head_names() -> None:
    """The head names the first of them; those that it does not name hinder the end as well."""
    owner = Owner()
    steps = [f"s{number:03d}" for number in range(DOUBTS_MAX + 2)]
    for step in steps:
        write(owner, ("intent", step), ("in_doubt", step))
    owner.log.head = owner.log.head._replace(doubts=(), due=(), status="running")
    with pytest.raises(InDoubt) as told:
        owner.client.do(finish(owner.log))
    assert told.value.step == steps[0]


def test_an_end_that_cannot_be_recorded_is_told() -> None:
    """Where etcd is away for good, whoever leaves the block does not hang: the run is not finished."""
    owner = Owner()
    owner.world.down = True
    crew = Crew(owner.client)
    began_s = owner.client.ctx.now()
    (run,) = crew.run([finish(owner.log)])
    assert isinstance(run.error, Fault)
    assert owner.client.ctx.now() - began_s <= 2 * FINISH_S


def test_nothing_is_under_way() -> None:
    """To see what became of what was sent last costs nothing where that is known."""
    owner = Owner()
    (run,) = Crew(owner.client).run([settle(owner.log, owner.client.ctx.now() + 10)])
    assert not run.trace


def test_the_error_is_a_mistake_of_the_program() -> None:
    """Which names the steps, some of them if there are many."""
    owner = Owner()
    for number in range(9):
        write(owner, ("intent", f"s{number}"))
    with pytest.raises(Misuse, match="and 4 more") as told:
        owner.client.do(finish(owner.log))
    assert isinstance(told.value, StepsOpen)
    assert told.value.steps == tuple(f"s{number}" for number in range(5))
