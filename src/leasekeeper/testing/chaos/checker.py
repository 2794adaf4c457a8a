"""The verdict on a storm, from what was written down alone.

It knows the promises and nothing of how they are kept. A *violation* is something that cannot have another explanation: times
are compared only where each was taken on its safe side (see `records`). What an operator's hand explains (a claim deleted over
its owner's head leaves both sides' gates open until the news arrives) is counted, and is no violation; what the resource
accepted has no such excuse. Where too little happened to say anything (the resource ended, or took nothing), that is said, and
neither that the promises were kept nor that one was broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, Literal

from leasekeeper.testing.chaos.records import OVER, Attempt, Operation, Story, Told, replica_of, turns_since
from leasekeeper.testing.chaos.schedule import KINDS

__all__ = ["Figures", "Verdict", "Violation", "broken_residue", "broken_tokens", "judge"]

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
    errors: int = 0
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
class Violation:
    """A promise that was broken, in a sentence that names who, which tokens, and when. ``who``: a replica, etcd or resource."""

    what: str
    at_s: float
    who: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of a storm. ``unjudged`` is why its promises cannot be said to have been kept; "" where they can.

    ``figures`` is a dataclass: `Figures`, or for runs `leasekeeper.testing.chaos.runs.judge.RunFigures`.
    """

    broken: tuple[Violation, ...]
    figures: Any
    unjudged: str = ""

    @property
    def violations(self) -> tuple[str, ...]:
        """What was broken, as sentences."""
        return tuple(each.what for each in self.broken)

    @property
    def word(self) -> Literal["kept", "violated", "unknown"]:
        """The verdict in one word."""
        if self.broken:
            return "violated"
        return "unknown" if self.unjudged else "kept"

    @property
    def ok(self) -> bool:
        """Whether every promise was kept, and that could be seen."""
        return self.word == "kept"


def judge(story: Story) -> Verdict:
    """Look at everything that was written down."""
    # Reversed, so that of several hands on one claim the first counts; when it was done is known only afterwards.
    removed = {token: o.until_s for o in reversed(story.operations) if o.kind in HANDS for token in o.tokens}
    # Where an operator forgets the epoch, tokens tell nothing any more of who came when: only the resource keeps its promise.
    unraised = any(operation.kind == "restore-unraised" for operation in story.operations)
    gates = [] if unraised else list(_gates(story, removed))
    violations = [
        *_ledger(story.attempts),
        *([] if unraised else broken_tokens(story.told)),
        *_strangers(story),
        *(what for what, explained in gates if not explained),
        *_turns(story),
        *broken_residue(story),
        *(Violation(f"{line.who} {line.detail}", line.at_s, line.who) for line in story.deaths),
    ]
    return Verdict(tuple(violations), _figures(story, sum(explained for _, explained in gates)), _unjudged(story))


def _unjudged(story: Story) -> str:
    """Why nothing can be said; a storm in which the resource took nothing has tried nothing."""
    if story.stopped or any(attempt.accepted for attempt in story.attempts):
        return story.stopped
    first = next((f": {attempt.error}" for attempt in story.attempts if attempt.error), "")
    return f"the resource took none of {len(story.attempts)} writes{first}"


# ---------------------------------------------------------------- violations


def _ledger(attempts: list[Attempt]) -> Iterator[Violation]:
    """The resource: no older owner after a newer one (G4), nothing refused without a reason, no line missing."""
    newest: Attempt | None = None
    # Of a write that failed nobody knows whether the resource took it: it excuses a refusal, and forbids nothing.
    doubtful: tuple[int, set[str]] = (-1, set())
    for before, attempt in zip([None, *attempts], attempts, strict=False):
        if attempt.number != (before.number if before else 0) + 1:
            yield Violation(f"the ledger misses lines before {attempt.number}", attempt.at_s, "resource")
        # The rule once more in words of its own: a checker that asked leasekeeper's would share its faults.
        fits = newest is None or attempt.token > newest.token
        fits |= newest is not None and (attempt.token, attempt.claim) == (newest.token, newest.claim)
        what = f"write {attempt.number} of {attempt.holder} with token {attempt.token} was"
        if attempt.accepted and not fits:
            assert newest is not None
            what += f" accepted at {attempt.at_s:.2f} s after one of {newest.holder} with token {newest.token}"
            yield Violation(what, attempt.at_s, "resource")
        sure = attempt.token > doubtful[0] or (attempt.token, {attempt.claim}) == doubtful
        if not attempt.accepted and not attempt.error and fits and sure:
            yield Violation(f"{what} refused after nobody newer's", attempt.at_s, "resource")
        if attempt.accepted and (newest is None or attempt.token >= newest.token):
            newest = attempt
        if attempt.error and attempt.token >= doubtful[0]:
            others = doubtful[1] if attempt.token == doubtful[0] else set()
            doubtful = (attempt.token, others | {attempt.claim})


def broken_tokens(told: list[Told]) -> Iterator[Violation]:
    """No token is ever given twice, to whomever and for whichever claim (G2)."""
    given: dict[int, Told] = {}
    for line in told:
        if line.what == "owner":
            first = given.setdefault(line.token, line)
            if first is not line:
                once, again = (f"to {each.who} at {each.at_s:.2f} s" for each in (first, line))
                yield Violation(f"token {line.token} was given {once} and {again}", line.at_s, line.who)


def _strangers(story: Story) -> Iterator[Violation]:
    """Nobody passes a gate with a token or a claim that it did not come to own (G1)."""
    owned = {(line.who, line.token, line.claim) for line in story.told if line.what == "owner"}
    for attempt in story.attempts:
        whose = (attempt.holder, attempt.token, attempt.claim)
        if whose not in owned:
            owned.add(whose)  # once is enough
            what = (
                f"{attempt.holder} wrote with token {attempt.token} at {attempt.at_s:.2f} s, which it never came to own"
            )
            yield Violation(what, attempt.at_s, attempt.holder)


def _gates(story: Story, removed: dict[int, float]) -> Iterator[tuple[Violation, bool]]:
    """No gate lets through an owner after the next one has acquired, or after it was told that it is over (G1, G3, G5).

    With each, whether an operator's hand explains it: for a while only, because held keys are read back once in a TTL.
    """
    news_s = NEWS_TTLS * story.ttl_s
    next_of = _followers(story.told)
    over = {line.token: line for line in reversed(story.told) if line.what in OVER}
    for attempt in story.attempts:
        at_s, token, who = next_of.get(attempt.token, (float("inf"), 0, ""))
        passed = f"{attempt.holder} passed its gate with token {attempt.token}"
        if attempt.gate_s > at_s:
            what = f"{passed} at {attempt.gate_s:.2f} s or later, but {who} owned token {token} since {at_s:.2f} s"
            excused = attempt.gate_s <= removed.get(attempt.token, float("-inf")) + news_s
            yield Violation(what, attempt.gate_s, attempt.holder), excused
        end = over.get(attempt.token)
        if end is not None and end.who == attempt.holder and attempt.gate_s > end.at_s:
            what = f"{passed} after it was {end.what} at {end.at_s:.2f} s"
            yield Violation(what, attempt.gate_s, attempt.holder), False


def _followers(told: list[Told]) -> dict[int, tuple[float, int, str]]:
    """For each token the earliest that anybody said to own a larger one: when, which, and who."""
    followers: dict[int, tuple[float, int, str]] = {}
    soonest: tuple[float, int, str] = (float("inf"), 0, "")
    owners = sorted(((line.token, line.at_s, line.who) for line in told if line.what == "owner"), reverse=True)
    for token, group in groupby(owners, key=lambda owner: owner[0]):
        followers[token] = soonest
        soonest = min([soonest, *((at_s, token, who) for _, at_s, who in group)])
    return followers


def _turns(story: Story) -> Iterator[Violation]:
    """When the faults are over everybody gets a turn. A storm that was broken off says nothing of that."""
    if story.stopped:
        return
    had = turns_since(story.told, story.calm_s)
    for number in range(story.replicas):
        if f"r{number}" not in had:
            what = f"r{number} got no turn in {story.end_s - story.calm_s:.0f} s after the faults were over"
            yield Violation(what, story.end_s, f"r{number}")


def broken_residue(story: Story) -> Iterator[Violation]:
    """No key and no lease is left behind."""
    for key in story.residue.claims:
        yield Violation(f"the claim {key} was left when its TTL was out", story.end_s, "etcd")
    for lease in story.residue.leases:
        yield Violation(f"the lease {lease} was left when its TTL was out", story.end_s, "etcd")


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
        errors=sum(line.what == "error" for line in story.told),
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
        ends += [k.at_s for k in kills if k.who == replica_of(line.who) and k.at_s > line.at_s]
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
            owned = replica_of(who) == operation.who and begin <= operation.at_s < after[2]
            if owned and replica_of(after[0]) != operation.who:
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
    return near and (whole or operation.who == replica_of(loss.who))
