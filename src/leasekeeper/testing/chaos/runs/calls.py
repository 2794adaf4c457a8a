"""What is to be said against the calls of runs: the world's ledger, the records, and what workers noted, held together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from leasekeeper.testing.chaos.checker import HANDS, NEWS_TTLS, Violation
from leasekeeper.testing.chaos.runs.desk import RIVAL
from leasekeeper.testing.chaos.runs.reading import BEGUN, Record, Witness
from leasekeeper.testing.chaos.runs.records import Sent
from leasekeeper.testing.chaos.runs.world import DOES
from leasekeeper.testing.outside.ledger import Entry

__all__ = ["Ledger", "broken_calls", "broken_counts", "broken_fences"]

# A call that is begun at the gate has about half a TTL before anybody else can own the run: a little less is promised.
IN_HAND_TTLS = 0.45
# The ledger counts whole milliseconds.
CLOSE_S = 0.05


class Ledger:
    """The ledger by run and step; what a rival did apart."""

    def __init__(self, seen: Witness) -> None:
        steps = {effect: step for step, effect in DOES.items()}
        buyers = {order.buyer: name for name, order in seen.story.orders.items()}
        self.received: dict[tuple[str, str], list[Entry]] = defaultdict(list)
        self.applied: dict[tuple[str, str], list[Entry]] = defaultdict(list)
        self.rivals: set[str] = set()
        self.refused = 0
        for entry in seen.story.ledger:
            step = steps.get(f"{entry.service}.{entry.effect}")
            run = buyers.get(entry.subject, entry.subject)
            if step is None:
                continue
            if entry.key == RIVAL:
                self.rivals |= {run} if entry.kind == "applied" else set()
            elif entry.kind == "received":
                self.received[run, step].append(entry)
            elif entry.kind == "applied":
                self.applied[run, step].append(entry)
            else:
                self.refused += entry.status == 409


def broken_calls(seen: Witness, ledger: Ledger) -> Iterator[Violation]:
    """No call without its intent, one key a step, no gate passed by an owner that was succeeded."""
    intents: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in seen.all_records():
        if record.kind in BEGUN:
            intents[record.run, record.step].append(record)
    yield from _noted(seen, intents)
    yield from _arrived(seen, ledger, intents)
    yield from _gates(seen)
    yield from _after_a_restore(seen)


def _noted(seen: Witness, intents: dict[tuple[str, str], list[Record]]) -> Iterator[Violation]:
    for sent in _calls(seen):
        run = sent.run.partition("/")[2]
        found = [each for each in intents[run, sent.step] if each.token == sent.token]
        if sent.attempt:
            found = [each for each in found if each.attempt == sent.attempt and each.data.get("idem") == sent.key]
        if not found:
            what = f"attempt {sent.attempt} with token {sent.token}" if sent.attempt else f"token {sent.token}"
            yield Violation(
                f"{sent.who} called step {sent.step} of {run}, {what}, and no intent of it was recorded",
                sent.at_s,
                sent.who,
            )


def _arrived(seen: Witness, ledger: Ledger, intents: dict[tuple[str, str], list[Record]]) -> Iterator[Violation]:
    for (run, step), entries in ledger.received.items():
        known = intents[run, step]
        for entry in entries:
            at_s = seen.story.at_s(entry)
            told = f"request {entry.request} ({step} of {run})"
            if entry.key and all(each.data.get("idem") != entry.key for each in known):
                yield Violation(f"{told} came with a key that no intent has", at_s, "resource")
            if entry.token and all(each.token != int(entry.token) for each in known):
                yield Violation(f"{told} came with token {entry.token}, which no intent of it has", at_s, "resource")
        if len({entry.key for entry in entries}) > 1:
            keys = sorted(entry.key[:12] for entry in entries)
            last_s = seen.story.at_s(entries[-1])
            yield Violation(f"step {step} of {run} was asked for with several keys: {keys}", last_s, "resource")


def _gates(seen: Witness) -> Iterator[Violation]:
    """No gate lets through an owner after the next one of the same run has opened it."""
    story = seen.story
    removed = {
        token: each.until_s for each in reversed(story.operations) if each.kind in HANDS for token in each.tokens
    }
    owners = [line for line in story.told if line.what == "owner"]
    for sent in _calls(seen):
        run = sent.run.partition("/")[2]
        for line in owners:
            if line.detail != run or line.token <= sent.token or sent.gate_s <= line.at_s:
                continue
            if sent.gate_s <= removed.get(sent.token, float("-inf")) + NEWS_TTLS * story.ttl_s:
                continue
            what = f"{sent.who} passed its gate for step {sent.step} of {run} with token {sent.token} at {sent.gate_s:.2f} s"
            yield Violation(
                f"{what} or later, but {line.who} owned it with token {line.token} since {line.at_s:.2f} s",
                sent.gate_s,
                sent.who,
            )
            break


def _after_a_restore(seen: Witness) -> Iterator[Violation]:
    """A run of which a restore took an intent away that was acted on stops: an anchor remembers it."""
    restores = [each for each in seen.story.operations if each.kind == "restore"]
    acted = {(sent.run.partition("/")[2], sent.step, sent.token) for sent in _calls(seen)}
    for name, records in seen.lost.items():
        if not any(each.kind == "intent" and (name, each.step, each.token) in acted for each in records):
            continue
        for sent in _calls(seen):
            if sent.run.partition("/")[2] == name and any(sent.gate_s > each.until_s for each in restores):
                what = f"{sent.who} called step {sent.step} of {name}, whose records a restore had taken away"
                yield Violation(what, sent.at_s, sent.who)


# ---------------------------------------------------------------- counts


def broken_counts(seen: Witness, ledger: Ledger, overlaps: list[str]) -> Iterator[Violation]:
    """Each effect happened at most once, and just once where the run says that it did. ``overlaps`` gets what is excused."""
    says = {
        (record.run, record.step): record
        for record in seen.all_records()
        if record.kind == "outcome" or (record.kind == "resolved" and record.data.get("applied") is True)
    }
    for (run, step), entries in ledger.applied.items():
        if step == "plan":
            continue
        last_s = seen.story.at_s(entries[-1])
        if step == "mail" and run in ledger.rivals:
            yield Violation(f"mail of {run} was sent although somebody else had sent it", last_s, "resource")
        if len(entries) > 1:
            told = f"{step} of {run} happened {len(entries)} times, in requests {[each.request for each in entries]}"
            if any(_was_in_hand(seen, ledger, run, step, each) for each in entries):
                overlaps.append(told)
            else:
                yield Violation(told, last_s, "resource")
    for (run, step), record in says.items():
        if step and not ledger.applied[run, step]:
            at_s = seen.at_s(record)
            yield Violation(f"{record} says that {step} was done, and the ledger does not have it", at_s, record.holder)
    yield from _memos(seen, ledger)


def _was_in_hand(seen: Witness, ledger: Ledger, run: str, step: str, applied: Entry) -> bool:
    """Whether a request was so long on its way from the gate that only a fence at the resource could have stopped it."""
    story = seen.story
    arrival = next((each for each in ledger.received[run, step] if each.request == applied.request), None)
    if arrival is None:
        return False
    at_s = story.at_s(arrival)
    mine = [
        sent
        for sent in _calls(seen)
        if sent.run.partition("/")[2] == run and sent.step == step and sent.at_s <= at_s + CLOSE_S
    ]
    if arrival.token:
        mine = [sent for sent in mine if sent.token == int(arrival.token)]
    return bool(mine) and at_s - max(sent.gate_s for sent in mine) > IN_HAND_TTLS * story.ttl_s


def _memos(seen: Witness, ledger: Ledger) -> Iterator[Violation]:
    """B16: a model is asked as often as that was recorded before, at most."""
    before: dict[str, int] = defaultdict(int)
    for record in seen.all_records():
        before[record.run] += record.kind == "before"
    for (run, step), entries in ledger.received.items():
        if step == "plan" and len(entries) > before[run]:
            what = f"the model was asked {len(entries)} times for {run}, and {before[run]} were recorded before"
            yield Violation(what, seen.story.at_s(entries[-1]), "resource")


def broken_fences(seen: Witness, ledger: Ledger) -> Iterator[Violation]:
    """Behind the fence: no older owner after a newer one, no equal token of another claim. In words of its own."""
    for (run, step), entries in ledger.applied.items():
        highest = (0, "")
        for entry in entries if step == "config" else ():
            mine = (int(entry.token or 0), str(entry.data.get("claim", "")))
            if mine[0] < highest[0] or (mine[0] == highest[0] and mine[1] != highest[1]):
                what = f"{step} of {run} took token {mine[0]} after token {highest[0]}, in request {entry.request}"
                yield Violation(what, seen.story.at_s(entry), "resource")
            highest = max(highest, mine)


def _calls(seen: Witness) -> Iterator[Sent]:
    return (sent for sent in seen.story.sent if sent.what == "call")
