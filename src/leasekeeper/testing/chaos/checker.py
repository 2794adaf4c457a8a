"""The verdict on a storm, from what was written down alone.

It knows the promises and nothing of how they are kept. A *violation* is something that cannot have another explanation: times
are compared only where each was taken on its safe side (see `records`). What an operator's hand explains (a claim deleted over
its owner's head leaves both sides' gates open until the news arrives) is counted, and is no violation; what the resource
accepted has no such excuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from leasekeeper.testing.chaos.records import Attempt, Operation, Story, Told
from leasekeeper.testing.chaos.schedule import KINDS

__all__ = ["Figures", "Verdict", "judge"]

OWNING = ("owner", "HELD", "SUSPENDED")
OVER = ("LOST", "RELEASED", "lost", "released")
HANDS = ("revoked", "broken")
# Faults after which somebody else takes over.
DEADLY = ("kill", "freeze", "blackhole", "cut", "requests-lost", "replies-lost")
# How long an owner may not know that its claim was removed over its head.
NEWS_TTLS = 1.5
# A loss is explained by what happened up to so many TTLs before.
EXPLAINS_TTLS = 3.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What happened, in numbers; seconds where the name ends in ``_s``."""

    attempts: int = 0
    accepted: int = 0
    refused: int = 0
    unknown: int = 0
    owners: int = 0
    overlaps_at_unfenced: int = 0
    gates_after_operator: int = 0
    pauses: int = 0
    longest_pause_s: float = 0.0
    losses: int = 0
    unexplained_losses: int = 0
    longest_without_owner_s: float = 0.0
    takeovers_s: tuple[float, ...] = ()
    faults: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of a storm. ``violations`` are sentences, each naming who, which tokens, and when."""

    violations: tuple[str, ...]
    figures: Figures

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations


def judge(story: Story) -> Verdict:
    """Look at everything that was written down."""
    removed = {token: o.at_s for o in reversed(story.operations) if o.kind in HANDS for token in o.tokens}
    gates = list(_gates(story, removed))
    violations = [
        *_ledger(story.attempts),
        *_tokens(story.told),
        *(what for what, explained in gates if not explained),
        *_turns(story),
        *_left(story),
        *story.deaths,
    ]
    return Verdict(tuple(violations), _figures(story, sum(explained for _, explained in gates)))


# ---------------------------------------------------------------- violations


def _ledger(attempts: list[Attempt]) -> Iterator[str]:
    """The resource: no older owner after a newer one (G4), nothing refused without a reason, no line missing."""
    newest: Attempt | None = None
    for before, attempt in zip([None, *attempts], attempts, strict=False):
        if attempt.number != (before.number if before else 0) + 1:
            yield f"the ledger misses lines before {attempt.number}"
        # The rule once more in words of its own: a checker that asked leasekeeper's would share its faults.
        fits = newest is None or attempt.token > newest.token
        fits |= newest is not None and (attempt.token, attempt.claim) == (newest.token, newest.claim)
        if attempt.accepted and not fits:
            assert newest is not None
            yield (
                f"write {attempt.number} of {attempt.holder} with token {attempt.token} was accepted at {attempt.at_s:.2f} s"
                f" after one of {newest.holder} with token {newest.token}"
            )
        if not attempt.accepted and not attempt.error and fits:
            yield f"write {attempt.number} of {attempt.holder} with token {attempt.token} was refused after nobody newer's"
        if attempt.accepted and (newest is None or attempt.token >= newest.token):
            newest = attempt


def _tokens(told: list[Told]) -> Iterator[str]:
    """No token is ever given to two claims (G2)."""
    claims: dict[int, Told] = {}
    for line in told:
        if line.what == "owner":
            first = claims.setdefault(line.token, line)
            if first.claim != line.claim:
                yield f"token {line.token} was given to {first.who} at {first.at_s:.2f} s and to {line.who} at {line.at_s:.2f} s"


def _gates(story: Story, removed: dict[int, float]) -> Iterator[tuple[str, bool]]:
    """No gate lets through an owner after the next one has acquired, or after it was told that it is over (G1, G3, G5).

    With each, whether an operator's hand explains it: for a while only, because held keys are read back once in a TTL.
    """
    news_s = NEWS_TTLS * story.ttl_s
    owners = sorted((line.token, line.at_s, line.who) for line in story.told if line.what == "owner")
    over = {line.token: line for line in reversed(story.told) if line.what in OVER}
    # The earliest that anybody said to own a larger token than the one at this place.
    later: list[tuple[float, int, str]] = []
    soonest: tuple[float, int, str] = (float("inf"), 0, "")
    for token, at_s, who in reversed(owners):
        later.append(soonest)
        soonest = min(soonest, (at_s, token, who))
    next_of = {token: after for (token, _, _), after in zip(reversed(owners), later, strict=True)}
    for attempt in story.attempts:
        at_s, token, who = next_of.get(attempt.token, (float("inf"), 0, ""))
        if attempt.gate_s > at_s:
            what = (
                f"{attempt.holder} passed its gate with token {attempt.token} at {attempt.gate_s:.2f} s or later,"
                f" but {who} owned token {token} since {at_s:.2f} s"
            )
            yield what, attempt.gate_s <= removed.get(attempt.token, float("-inf")) + news_s
        end = over.get(attempt.token)
        if end is not None and end.who == attempt.holder and attempt.gate_s > end.at_s:
            yield (
                f"{attempt.holder} passed its gate with token {attempt.token} after it was {end.what} at {end.at_s:.2f} s",
                False,
            )


def _turns(story: Story) -> Iterator[str]:
    """When the faults are over everybody gets a turn."""
    had = {line.who.partition(".")[0] for line in story.told if line.what == "owner" and line.at_s > story.calm_s}
    for number in range(story.replicas):
        if f"r{number}" not in had:
            yield f"r{number} got no turn in {story.end_s - story.calm_s:.0f} s after the faults were over"


def _left(story: Story) -> Iterator[str]:
    """No key and no lease is left behind."""
    for key in story.residue.claims:
        yield f"the claim {key} was left when its TTL was out"
    for lease in story.residue.leases:
        yield f"the lease {lease} was left when its TTL was out"


# ---------------------------------------------------------------- figures


def _figures(story: Story, gates_after_operator: int) -> Figures:
    attempts = story.attempts
    pauses = list(pause_spans(story.told))
    losses = [line for line in story.told if line.what == "LOST"]
    counts: dict[str, int] = {}
    for operation in story.operations:
        counts[operation.kind] = counts.get(operation.kind, 0) + 1
    return Figures(
        attempts=len(attempts),
        accepted=sum(a.accepted for a in attempts),
        refused=sum(not a.accepted and not a.error for a in attempts),
        unknown=sum(bool(a.error) for a in attempts),
        owners=sum(line.what == "owner" for line in story.told),
        overlaps_at_unfenced=_overlaps(attempts),
        gates_after_operator=gates_after_operator,
        pauses=len(pauses),
        longest_pause_s=round(max((end - begin for _, begin, end in pauses), default=0.0), 3),
        losses=len(losses),
        unexplained_losses=sum(not _explained(story, line) for line in losses),
        longest_without_owner_s=round(_longest_gap(story), 3),
        takeovers_s=tuple(round(seconds, 3) for seconds in _takeovers(story)),
        faults=dict(sorted(counts.items())),
    )


def _overlaps(attempts: list[Attempt]) -> int:
    """Writes that a resource without a fence would have taken from an older owner after a newer one."""
    highest, count = 0, 0
    for attempt in attempts:
        count += attempt.token < highest
        highest = max(highest, attempt.token)
    return count


def owner_spans(story: Story) -> list[tuple[str, int, float, float]]:
    """Who owned which token from when to when, as far as it was said; a killed owner's ends with the next one's beginning."""
    over = {line.token: line.at_s for line in reversed(story.told) if line.what in OVER}
    owners = [line for line in story.told if line.what == "owner"]
    kills = [operation for operation in story.operations if operation.kind == "kill"]
    spans = []
    for line, after in zip(owners, [*owners[1:], None], strict=False):
        ends = [story.end_s, over.get(line.token, story.end_s)]
        ends += [after.at_s] if after is not None else []
        ends += [k.at_s for k in kills if k.who == line.who.partition(".")[0] and k.at_s > line.at_s]
        spans.append((line.who, line.token, line.at_s, max(line.at_s, min(ends))))
    return spans


def _longest_gap(story: Story) -> float:
    spans = owner_spans(story)
    return max((after[2] - before[3] for before, after in pairwise(spans)), default=0.0)


def pause_spans(told: list[Told]) -> Iterator[tuple[str, float, float]]:
    """Who was SUSPENDED from when to when."""
    since: dict[str, float] = {}
    for line in told:
        if line.what == "SUSPENDED":
            since.setdefault(line.who, line.at_s)
        elif line.what in ("HELD", *OVER) and line.who in since:
            yield line.who, since.pop(line.who), line.at_s


def _takeovers(story: Story) -> Iterator[float]:
    """From a fault that ended an ownership to the next owner."""
    spans = owner_spans(story)
    for operation in story.operations:
        if operation.kind not in DEADLY:
            continue
        for (who, _, begin, _), after in pairwise(spans):
            owned = who.partition(".")[0] == operation.who and begin <= operation.at_s < after[2]
            if owned and after[0].partition(".")[0] != operation.who:
                yield after[2] - operation.at_s


def _explained(story: Story, loss: Told) -> bool:
    """Whether something that was done explains a loss."""
    if loss.detail not in ("expired", "revoked", "deleted"):
        return True
    since_s = loss.at_s - EXPLAINS_TTLS * story.ttl_s
    return any(_concerns(operation, loss, since_s) for operation in story.operations)


def _concerns(operation: Operation, loss: Told, since_s: float) -> bool:
    near = operation.at_s <= loss.at_s and operation.until_s >= since_s
    whole = KINDS[operation.kind].lane == "cluster"
    return near and (whole or operation.who == loss.who.partition(".")[0])
