"""The verdict on a storm over runs, from what was written down alone; see `leasekeeper.testing.chaos.checker` for what one is.

It imports nothing of how runs are kept. Of leasekeeper it uses the rules for reading a run that anybody has: verifying a chain,
and folding its records. What a frozen process had in its hand when it was stopped behind the gate arrives whenever it wakes
up: where the callee has no fence, that is counted (``overlaps_at_unfenced``) and no violation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from leasekeeper.testing.chaos import checker
from leasekeeper.testing.chaos.checker import Verdict, Violation
from leasekeeper.testing.chaos.runs.calls import Ledger, broken_calls, broken_counts, broken_fences
from leasekeeper.testing.chaos.runs.chains import broken_chains, broken_ends, broken_revisions
from leasekeeper.testing.chaos.runs.reading import BEGUN, Witness, witness
from leasekeeper.testing.chaos.runs.records import RunsStory

__all__ = ["RunFigures", "judge_runs"]


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What happened to runs, in numbers; seconds where the name ends in ``_s``."""

    runs: int = 0
    finished: int = 0
    taken_by_restore: int = 0
    pruned: int = 0
    lives: int = 0
    records: int = 0
    steps_done: int = 0
    calls: int = 0
    calls_repeated: int = 0
    adopted: int = 0
    raised: int = 0
    in_doubt: int = 0
    resolved: int = 0
    conflicts: int = 0
    quarantined: int = 0
    alerts: int = 0
    memo_calls: int = 0
    memo_repeated: int = 0
    halts: int = 0
    refused_by_fence: int = 0
    overlaps_at_unfenced: int = 0
    late_evidence: int = 0
    losses: int = 0
    last_finished_s: float = 0.0
    keys: int = 0
    most_keys: int = 0
    db_bytes: int = 0
    faults: dict[str, int] = field(default_factory=dict)


def judge_runs(story: RunsStory) -> Verdict:
    """Look at everything that was written down."""
    seen = witness(story)
    ledger = Ledger(seen)
    overlaps: list[str] = []
    records = (
        *broken_chains(seen),
        *broken_revisions(seen),
        *broken_ends(seen),
    )
    # What is not there to be compared contradicts nothing.
    against = () if story.unread else (*broken_calls(seen, ledger), *broken_counts(seen, ledger, overlaps))
    broken = [
        *records,
        *against,
        *broken_fences(seen, ledger),
        *checker.broken_tokens(story.told),
        *checker.broken_residue(story),
        *(Violation(f"{line.who} {line.detail}", line.at_s, line.who) for line in story.deaths),
    ]
    figures = _figures(seen, ledger, len(overlaps))
    return Verdict(tuple(broken), figures, _unjudged(story, figures))


def _unjudged(story: RunsStory, figures: RunFigures) -> str:
    """Why nothing can be said; a storm in which no step was done has tried nothing."""
    if story.stopped or figures.steps_done:
        return story.stopped
    return f"no step was done in {figures.runs} runs"


def _figures(seen: Witness, ledger: Ledger, overlaps: int) -> RunFigures:
    story = seen.story
    kinds: dict[str, int] = {}
    adopted = repeated = memo_repeated = 0
    for record in seen.all_records():
        kinds[record.kind] = kinds.get(record.kind, 0) + 1
        adopted += record.kind == "outcome" and record.data.get("adopted") is True
        repeated += record.kind in BEGUN and record.attempt > 1
        memo_repeated += record.kind == "before" and record.attempt > 1
    counts: dict[str, int] = {}
    for operation in story.operations:
        counts[operation.kind] = counts.get(operation.kind, 0) + 1
    return RunFigures(
        runs=len(seen.last.keys() | seen.lost.keys()),
        finished=sum(run.head.get("status") == "finished" for run in seen.last.values()),
        taken_by_restore=len(seen.lost),
        pruned=len(story.tombs),
        lives=kinds.get("opened", 0),
        records=sum(kinds.values()),
        steps_done=kinds.get("outcome", 0),
        calls=sum(sent.what == "call" for sent in story.sent),
        calls_repeated=repeated,
        adopted=adopted,
        raised=kinds.get("raised", 0),
        in_doubt=kinds.get("in_doubt", 0),
        resolved=kinds.get("resolved", 0),
        conflicts=kinds.get("conflict", 0),
        quarantined=kinds.get("quarantined", 0),
        alerts=sum(sent.what.startswith("alert") for sent in story.sent),
        memo_calls=sum(len(entries) for (_, step), entries in ledger.received.items() if step == "plan"),
        memo_repeated=memo_repeated,
        halts=sum(len(era.halts) for era in story.eras[-1:]),
        refused_by_fence=ledger.refused,
        overlaps_at_unfenced=overlaps,
        late_evidence=sum(run.late for run in seen.last.values()),
        losses=sum(line.what == "lost" for line in story.told),
        last_finished_s=round(max(0.0, story.finished_at_s - story.calm_s), 3),
        keys=story.keys_at_end,
        most_keys=story.most_keys,
        db_bytes=story.db_bytes,
        faults=dict(sorted(counts.items())),
    )
