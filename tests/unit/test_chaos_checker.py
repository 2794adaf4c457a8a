"""The checker of a storm: each violation is found in a story made by hand, and nothing is found where nothing is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from leasekeeper.testing.chaos import Attempt, Story, Told, judge
from leasekeeper.testing.chaos.checker import owner_spans, pause_spans
from leasekeeper.testing.chaos.records import Operation, Residue


def told(at_s: float, who: str, what: str, token: int = 0, detail: str = "") -> Told:
    """A line of a replica; the claim of token 5 is "claim-5"."""
    return Told(at_s, who, what, token, f"claim-{token}", detail)


def wrote(number: int, at_s: float, holder: str, token: int, *, gate_s: float = -1.0, accepted: bool = True) -> Attempt:
    """A write, made right behind its gate unless ``gate_s`` says otherwise."""
    gate_s = at_s if gate_s < 0 else gate_s
    return Attempt(number, at_s, holder, token, f"claim-{token}", f"{holder}/{number}", gate_s, accepted)


@pytest.fixture
def story() -> Story:
    """Two replicas: the first owns and is frozen, the second takes over, the first one's late write is refused."""
    return Story(
        seed=1,
        ttl_s=3.0,
        replicas=2,
        seconds=20.0,
        calm_s=20.0,
        end_s=30.0,
        told=[
            told(1.0, "r0.1", "owner", 5),
            told(6.0, "r1.1", "owner", 9),
            told(8.0, "r0.1", "LOST", 5, "expired"),
            told(12.0, "r1.1", "released", 9),
            told(12.5, "r0.1", "owner", 12),
            told(22.0, "r0.1", "released", 12),
            told(23.0, "r1.1", "owner", 13),
            told(25.0, "r1.1", "released", 13),
            told(26.0, "r0.1", "owner", 15),
        ],
        attempts=[
            wrote(1, 1.5, "r0.1", 5),
            wrote(2, 6.5, "r1.1", 9),
            wrote(3, 8.0, "r0.1", 5, gate_s=2.0, accepted=False),
            wrote(4, 13.0, "r0.1", 12),
        ],
        operations=[Operation(2.0, 8.0, "freeze", "r0")],
    )


def violations(story: Story) -> str:
    """What is found, as one text."""
    return "\n".join(judge(story).violations)


def test_a_story_without_fault(story: Story) -> None:
    """A late write that was refused is what a fence is for; the figures say what happened."""
    verdict = judge(story)
    assert verdict.ok
    assert verdict.violations == ()
    figures = verdict.figures
    assert (figures.attempts, figures.accepted, figures.refused, figures.owners) == (4, 3, 1, 5)
    assert figures.overlaps_at_unfenced == 1
    assert figures.losses == 1
    assert figures.unexplained_losses == 0
    assert figures.takeovers_s == (4.0,)
    assert figures.longest_without_owner_s == 1.0
    assert figures.faults == {"freeze": 1}


def test_an_older_owner_is_accepted(story: Story) -> None:
    """G4: the same late write, accepted."""
    story.attempts[2] = replace(story.attempts[2], accepted=True)
    assert "write 3 of r0.1 with token 5 was accepted at 8.00 s after one of r1.1 with token 9" in violations(story)


def test_an_equal_token_of_another_claim(story: Story) -> None:
    """G4: after a restore the same number may be somebody else's."""
    story.attempts.insert(2, replace(wrote(3, 7.0, "r0.1", 9), claim="another"))
    story.attempts[3:] = [replace(attempt, number=attempt.number + 1) for attempt in story.attempts[3:]]
    assert "write 3 of r0.1 with token 9 was accepted" in violations(story)


def test_a_write_refused_for_nothing(story: Story) -> None:
    """A resource that refuses its newest owner is broken as well."""
    story.attempts[3] = replace(story.attempts[3], accepted=False)
    assert "write 4 of r0.1 with token 12 was refused" in violations(story)


def test_a_line_is_missing(story: Story) -> None:
    """What is not in the ledger cannot be judged."""
    del story.attempts[1]
    assert "misses lines before 3" in violations(story)


def test_two_open_gates(story: Story) -> None:
    """G1, G3: a gate passed for certain after the next owner had acquired."""
    story.attempts[2] = replace(story.attempts[2], gate_s=6.1)
    assert "r0.1 passed its gate with token 5 at 6.10 s or later, but r1.1 owned token 9 since 6.00 s" in violations(
        story
    )


def test_two_open_gates_by_an_operators_hand(story: Story) -> None:
    """Between an operator's delete and its news both gates may pass: counted, and no violation."""
    story.attempts[2] = replace(story.attempts[2], gate_s=6.1)
    story.operations.append(Operation(5.9, 5.9, "broken", "r0.1", (5,)))
    verdict = judge(story)
    assert verdict.ok
    assert verdict.figures.gates_after_operator == 1


def test_an_operators_hand_explains_for_a_while_only(story: Story) -> None:
    """An owner that has not heard of its removal for longer than a TTL and a half never reads its key back."""
    story.told[2] = told(12.0, "r0.1", "LOST", 5, "deleted")
    story.attempts.insert(2, wrote(3, 11.0, "r0.1", 5, gate_s=10.6, accepted=False))
    story.attempts[3:] = [replace(attempt, number=attempt.number + 1) for attempt in story.attempts[3:]]
    story.operations.append(Operation(5.9, 5.9, "broken", "r0.1", (5,)))
    assert "r0.1 passed its gate with token 5 at 10.60 s or later" in violations(story)


def test_a_gate_passed_after_the_loss_was_told(story: Story) -> None:
    """LOST is final, whoever removed the claim."""
    story.attempts[2] = replace(story.attempts[2], gate_s=8.1)
    story.operations.append(Operation(5.9, 5.9, "broken", "r0.1", (5,)))
    assert "r0.1 passed its gate with token 5 after it was LOST at 8.00 s" in violations(story)


def test_a_token_given_twice(story: Story) -> None:
    """G2: two claims with one token."""
    story.told.append(Told(27.0, "r1.1", "owner", 15, "another"))
    assert "token 15 was given to r0.1 at 26.00 s and to r1.1 at 27.00 s" in violations(story)


def test_a_token_given_twice_for_one_claim(story: Story) -> None:
    """G2: a claim with two owners, and one that is owned twice, have one token too many."""
    story.told.append(told(27.0, "r1.1", "owner", 15))
    assert "token 15 was given to r0.1 at 26.00 s and to r1.1 at 27.00 s" in violations(story)
    story.told[-1] = told(27.0, "r0.1", "owner", 15)
    assert "token 15 was given to r0.1 at 26.00 s and to r0.1 at 27.00 s" in violations(story)


@pytest.mark.parametrize("stranger", [{"token": 14}, {"holder": "r1.1"}, {"claim": "another"}])
def test_a_gate_that_was_passed_by_nobodys_owner(story: Story, stranger: dict[str, Any]) -> None:
    """G1: whoever writes owned that very claim with that very token; said once, not for every write."""
    story.attempts += [replace(wrote(number, 27.0, "r0.1", 15), **stranger) for number in (5, 6)]
    assert violations(story).count("which it never came to own") == 1


def test_a_failed_write_excuses_a_refusal(story: Story) -> None:
    """A resource may have taken a write that then failed, so it may refuse all older ones; newer ones it may not."""
    story.attempts[1] = replace(story.attempts[1], accepted=False, error="OSError: connection lost")
    assert violations(story) == ""
    story.attempts[3] = replace(story.attempts[3], accepted=False)
    assert "write 4 of r0.1 with token 12 was refused after nobody newer's" in violations(story)


def test_a_failed_write_of_the_same_claim_excuses_nothing(story: Story) -> None:
    """One owner's writes follow each other, whether they fail or not."""
    story.attempts.append(replace(wrote(5, 14.0, "r0.1", 12), accepted=False, error="OSError: try again"))
    story.attempts.append(wrote(6, 14.1, "r0.1", 12, accepted=False))
    assert "write 6 of r0.1 with token 12 was refused" in violations(story)


def test_a_hand_that_took_its_time(story: Story) -> None:
    """An operator's request that was answered late may have been done late, so the news of it is late."""
    story.told[2] = told(12.0, "r0.1", "LOST", 5, "deleted")
    story.attempts.insert(2, wrote(3, 11.0, "r0.1", 5, gate_s=10.6, accepted=False))
    story.attempts[3:] = [replace(attempt, number=attempt.number + 1) for attempt in story.attempts[3:]]
    story.operations.append(Operation(2.0, 6.5, "broken", "r0.1", (5,)))
    assert judge(story).figures.gates_after_operator == 1
    assert violations(story) == ""


def test_a_storm_that_was_broken_off(story: Story) -> None:
    """When the resource ended nobody can say that promises were kept, nor that the turns that nobody got were owed."""
    story.stopped = "the resource ended with status 3"
    story.told = story.told[:3]
    story.attempts = story.attempts[:3]
    verdict = judge(story)
    assert (verdict.word, verdict.ok, verdict.unjudged) == ("unknown", False, "the resource ended with status 3")
    story.attempts[2] = replace(story.attempts[2], accepted=True)
    assert judge(story).word == "violated"


def test_a_resource_that_takes_nothing(story: Story) -> None:
    """A storm in which nothing was written has tried nothing: its promises are not said to have been kept."""
    story.attempts = [replace(attempt, accepted=False, error="OSError: no") for attempt in story.attempts]
    verdict = judge(story)
    assert (verdict.word, verdict.unjudged) == ("unknown", "the resource took none of 4 writes: OSError: no")
    story.attempts = []
    assert judge(story).unjudged == "the resource took none of 0 writes"


def test_somebody_gets_no_turn(story: Story) -> None:
    """When the faults are over everybody owns again; before that does not count."""
    story.told = [line for line in story.told if not (line.who == "r1.1" and line.at_s > 20)]
    assert "r1 got no turn" in violations(story)


def test_something_is_left(story: Story) -> None:
    """No claim and no lease outlives its TTL."""
    story.residue = Residue(claims=("leasekeeper/chaos/lease/effect/ab",), leases=("ab",))
    assert "lease/effect/ab was left" in violations(story)
    assert "the lease ab was left" in violations(story)


def test_a_replica_that_dies_by_itself(story: Story) -> None:
    """A traceback is a violation, whatever else went well."""
    story.deaths = [told(7.0, "r0", "ended", detail="ended by itself with status 1: ValueError")]
    assert violations(story) == "r0 ended by itself with status 1: ValueError"
    assert [(each.at_s, each.who) for each in judge(story).broken] == [(7.0, "r0")]


def test_a_loss_without_a_reason(story: Story) -> None:
    """A lease lost while nothing was done to its owner or to etcd is counted."""
    story.operations[0] = Operation(2.0, 8.0, "freeze", "r1")
    assert judge(story).figures.unexplained_losses == 1


def test_spans(story: Story) -> None:
    """An ownership ends with its end, with the next one, or with a kill; a pause with whatever follows it."""
    story.operations.append(Operation(13.5, 14.0, "kill", "r0"))
    assert [(who, token, begin, end) for who, token, begin, end in owner_spans(story)][:3] == [
        ("r0.1", 5, 1.0, 6.0),
        ("r1.1", 9, 6.0, 12.0),
        ("r0.1", 12, 12.5, 13.5),
    ]
    lines = [
        told(1, "r0.1", "SUSPENDED"),
        told(2, "r0.1", "HELD"),
        told(3, "r0.1", "SUSPENDED"),
        told(4, "r0.1", "LOST"),
    ]
    assert list(pause_spans(lines)) == [("r0.1", 1, 2), ("r0.1", 3, 4)]
