"""The judge of a storm over runs finds each violation in a story made by hand, and nothing where nothing is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from leasekeeper.canonical import canonical
from leasekeeper.errors import ConfigError
from leasekeeper.protocol.receipt import Draft, digest, seal
from leasekeeper.testing.chaos import Weather
from leasekeeper.testing.chaos.records import Operation, Residue
from leasekeeper.testing.chaos.report import write
from leasekeeper.testing.chaos.runs import Era, Halted, Sent, judge_runs
from leasekeeper.testing.chaos.runs.records import Stored
from tests.pasts import RUN, Past, two_lives


def test_nothing_is_wrong() -> None:
    """An undisturbed run, and one that was taken over: every promise was kept."""
    for past in (Past().all(), two_lives()):
        verdict = judge_runs(past.story())
        assert verdict.violations == ()
        assert verdict.ok
        assert verdict.figures.steps_done == 5
        assert verdict.figures.finished == 1


def test_nothing_was_tried() -> None:
    """A storm in which no step was done says nothing."""
    past = Past()
    past.open(5)
    past.finish()
    story = past.story()
    story.orders = {}
    verdict = judge_runs(story)
    assert verdict.word == "unknown"
    assert "no step was done" in verdict.unjudged


def _called_by_the_old(past: Past) -> None:
    """The one before passes its gate after its successor has opened the run."""
    late = replace(past.sent[1], at_s=15.0, gate_s=14.9)
    past.sent.append(late)


def _call_without_intent(past: Past) -> None:
    past.sent.append(replace(past.sent[-1], token=77))


def _other_key(past: Past) -> None:
    past.arrive("charge", "key-charge-2", f"{9:019d}", applied=False)


def _other_token(past: Past) -> None:
    past.arrive("charge", "key-charge", f"{8:019d}", applied=False)


def _twice(past: Past) -> None:
    past.arrive("tip", "")


def _never(past: Past) -> None:
    past.entries = [each for each in past.entries if each.service != "till"]


def _rival(past: Past) -> None:
    past.order = replace(past.order, rival=True)
    past.entries.insert(
        0, replace(past.entries[-1], service="mail", effect="send", subject=past.order.buyer, key="rival")
    )


def _old_document(past: Past) -> None:
    past.arrive("config", "key-config", f"{5:019d}", late_s=5.0)


def _asked_too_often(past: Past) -> None:
    past.arrive("plan", "")


def _halted(past: Past) -> None:
    past.era.halts.append(Halted("order%2Fa*", 85, 200))


def _gone(past: Past) -> None:
    past.era.gone["claim-9"] = 95


def _epoch(past: Past) -> None:
    past.era.epochs.append((95, 1))


def _token_again(past: Past) -> None:
    past.owners.append(replace(past.owners[-1], at_s=20.0, who="r0.2"))


def _unfinished(past: Past) -> None:
    past.status = "running"


def _left(past: Past) -> None:
    past.residue = Residue(claims=("lease/run%2Forder%2Fa00000/1",))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_called_by_the_old, "passed its gate for step charge"),
        (_call_without_intent, "no intent of it was recorded"),
        (_other_key, "came with a key that no intent has"),
        (_other_key, "was asked for with several keys"),
        (_other_token, "which no intent of it has"),
        (_twice, "tip of a00000 happened 2 times"),
        (_never, "the ledger does not have it"),
        (_rival, "although somebody else had sent it"),
        (_old_document, "took token 5 after token 9"),
        (_asked_too_often, "the model was asked 2 times"),
        (_halted, "was halted at 85"),
        (_gone, "its writer's claim was gone at 95"),
        (_epoch, "epoch 1 began at 95"),
        (_token_again, "token 9 was given"),
        (_unfinished, "is running"),
        (_left, "was left when its TTL was out"),
    ],
)
def test_what_is_wrong_outside_of_the_records(change: Callable[[Past], None], what: str) -> None:
    """B28, B30: each witness that contradicts another one is told."""
    past = two_lives()
    change(past)
    assert what in past.violations()


def _older_life(past: Past) -> None:
    draft, _ = past.told[-2]
    past.told[-2] = (draft, past.told[0][1])


def _token_falls(past: Past) -> None:
    for at, (draft, life) in enumerate(past.told):
        past.told[at] = (draft, {**life, "token": 4} if life["token"] == 9 else life)


def _no_intent(past: Past) -> None:
    past.told = [each for each in past.told if (each[0].kind, each[0].step) != ("intent", "tip")]


def _two_outcomes(past: Past) -> None:
    past.told.insert(-3, next(each for each in past.told if each[0].kind == "outcome"))


def _begun_again(past: Past) -> None:
    past.told.insert(-3, next(each for each in past.told if each[0].kind == "intent"))


def _other_state(past: Past) -> None:
    at = next(at for at, (draft, _) in enumerate(past.told) if draft.kind == "checkpoint")
    draft, life = past.told[at]
    data = json.loads(draft.data)
    data["data"]["paid_cents"] = 1
    past.told[at] = (replace(draft, data=canonical(data)), life)


def _doubt(past: Past, alerts: int, *, resolved: bool = True) -> None:
    """The tip was in doubt before it was called."""
    at = next(at for at, (draft, _) in enumerate(past.told) if (draft.kind, draft.step) == ("intent", "tip"))
    life = past.told[at][1]
    between = [(Draft("in_doubt", "tip", canonical({}), "d" * 32), life)]
    between += [(Draft("alerted", "tip", canonical({"kind": "in_doubt"}), f"{n:032x}"), life) for n in range(alerts)]
    if resolved:
        between.append((Draft("resolved", "tip", canonical({"applied": False}), "e" * 32), life))
    past.told[at:at] = between


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_older_life, "after r1.1 has opened the run with token 9"),
        (_token_falls, "has token 4, and the life before had 5"),
        (_no_intent, "has no intent before it"),
        (_two_outcomes, "is not the first"),
        (_begun_again, "begins what is done"),
        (_other_state, "and an undisturbed one as"),
        (lambda past: _doubt(past, 0), "was told 0 times"),
        (lambda past: _doubt(past, 2), "was told 2 times"),
        (lambda past: _doubt(past, 1, resolved=False), "begins what is in doubt"),
    ],
)
def test_what_is_wrong_in_the_records(change: Callable[[Past], None], what: str) -> None:
    """B28, B30: a record that cannot be where it is, is told."""
    past = two_lives()
    change(past)
    assert what in past.violations()


def test_a_doubt_that_was_told_and_resolved() -> None:
    """A25: told once, and decided by an operator before it was called: nothing is wrong."""
    past = two_lives()
    _doubt(past, 1)
    assert not past.violations()


def test_a_broken_chain() -> None:
    """A record that is missing, changed, or was written over."""
    story = two_lives().story()
    story.eras[0].keys.pop(f"order/{RUN}/r/{3:012d}")
    assert "cannot be verified" in "\n".join(judge_runs(story).violations)
    story = two_lives().story()
    key = f"order/{RUN}/r/{3:012d}"
    story.eras[0].keys[key] = replace(story.eras[0].keys[key], version=2)
    assert "was written 2 times" in "\n".join(judge_runs(story).violations)


def test_what_is_explained() -> None:
    """A request that was long in a frozen process's hand is counted, and no violation; so is a claim that was deleted."""
    past = two_lives()
    past.sent.append(replace(past.sent[-1], at_s=20.0, gate_s=14.0))
    past.at_s = 20.0
    past.arrive("tip", "")
    verdict = judge_runs(past.story())
    assert verdict.violations == ()
    assert verdict.figures.overlaps_at_unfenced == 1
    past = two_lives()
    _called_by_the_old(past)
    past.operations.append(Operation(12.0, 12.0, "revoked", "r0.1", (5,)))
    assert not past.violations()


def test_what_a_restore_takes_away() -> None:
    """A run whose records a restore has taken away need not end; one that goes on although it acted is told."""
    story = two_lives().story()
    whole = story.eras[0]
    cut = {
        key: stored
        for key, stored in whole.keys.items()
        if not key.endswith(tuple(f"r/{n:012d}" for n in range(5, 99)))
    }
    before = story.eras[0].keys[f"order/{RUN}/r/{4:012d}"].value
    head = {"seq": 4, "hash": digest(before), "status": "running", "doubts": []}
    cut[f"order/{RUN}/head"] = Stored(seal(canonical(head), None), 10, 10, 1)
    story.eras.append(Era(41, keys=cut))
    story.operations.append(Operation(20.0, 21.0, "restore", "etcd"))
    assert judge_runs(story).violations == ()
    assert judge_runs(story).figures.taken_by_restore == 1
    story.sent.append(replace(story.sent[-1], at_s=25.0, gate_s=24.9))
    assert "whose records a restore had taken away" in "\n".join(judge_runs(story).violations)


def test_the_report(tmp_path: Path) -> None:
    """B27: report.json says what the storm was over, and the page shows lives, calls and what happened outside."""
    past = two_lives()
    past.operations = [Operation(3.0, 4.0, "late-replies", "world"), Operation(5.0, 6.0, "kill", "r0")]
    past.sent.append(Sent(7.0, "r1.1", "alert in_doubt", f"order/{RUN}", "tip", 0))
    story = past.story()
    weather = Weather(seconds=30, replicas=2, workload="runs", kinds=("kill", "late-replies"))
    data, picture = write(tmp_path, weather, story, judge_runs(story))
    report = json.loads(data.read_text())
    assert report["workload"] == "runs"
    assert report["command"].endswith("--fault kill --fault late-replies --workload runs")
    assert report["figures"]["lives"] == 2
    html = picture.read_text()
    for shown in (
        "opens a00000 with token 9",
        "call charge of order/a00000",
        "tip of a00000, request",
        "late-replies: world",
    ):
        assert shown in html


def test_what_makes_no_storm() -> None:
    """A workload that there is not, and a target where there is an outside world, are errors."""
    with pytest.raises(ConfigError, match="workload"):
        Weather(workload="jobs")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="outside world"):
        Weather(workload="runs", target="shop:Orders")
    with pytest.raises(ConfigError, match="restore-unraised"):
        Weather(workload="runs", kinds=("restore-unraised",))
