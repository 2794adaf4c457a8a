"""What is told to a person who was woken up: one screen of plain text, made of what was read and of nothing else.

The same records, head, halts and evidence always give the same text. Times are those of the records, never "ago". Whatever was
stored is made safe for a terminal here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasekeeper.cli.runs.onward import drifted, headline, what_to_do
from leasekeeper.cli.runs.remedies import OF_A_RECORD
from leasekeeper.cli.runs.words import at, begun_with, brief_json, during, said, who
from leasekeeper.cli.text import clip, plural

if TYPE_CHECKING:
    from leasekeeper.cli.runs.source import Late
    from leasekeeper.protocol.run_look import Facts
    from leasekeeper.protocol.story import Life, Misfortune, StepStory, Story
    from leasekeeper.protocol.verdict import Verdict
    from leasekeeper.run_records import Receipt

__all__ = ["Told", "explain"]

# So many of each kind are told; how many more there are is said.
SHOWN = 5
NAMES_CHARS = 200
ENDING_CHARS = 200


@dataclass(frozen=True, slots=True)
class Told:
    """All that an explanation is made of. ``words`` are the program and its global options, for commands to copy."""

    story: Story
    facts: Facts
    verdict: Verdict
    lates: Sequence[Late] = ()
    words: Sequence[str] = ("leasekeeper",)

    def command(self, *words: str) -> str:
        """A command to copy."""
        return shlex.join([*self.words, *words])


def explain(told: Told) -> list[str]:
    """The lines, each safe for a terminal; headings are in capitals."""
    parts: list[tuple[str, Callable[[Told], Iterator[str]]]] = [
        ("WHAT IT DID", _did),
        ("WHY IT STANDS", _why),
        ("WHO HELD IT", _lives),
        ("ERRORS", _errors),
        ("EVIDENCE THAT CAME TOO LATE (a hint: nothing follows from it)", _lates),
        ("WHAT OPERATORS SAID", _operators),
        ("NOTES (never a result)", _notes),
        ("HALTS", _halts),
        ("TO GO ON", lambda told: (clip(line, 2000) for line in what_to_do(told))),
    ]
    lines = [headline(told)]
    for heading, part in parts:
        if found := list(part(told)):
            lines += ["", heading, *(f"  {line}" for line in found)]
    return lines


# ---------------------------------------------------------------- what it did


def _did(told: Told) -> Iterator[str]:
    story = told.story
    if not story.last:
        return
    by = f" by {clip(story.lives[0].holder)}" if story.lives else ""
    again = f", generation {story.gen}" if story.gen > 1 else ""
    yield f"begun {at(story.began_ms)}{by}{again}; record {story.last}, the last, {at(story.last_ms)}"
    if given := begun_with(told.facts.meta):
        yield f"its input: {given}"
    for state, label in (("done", "done"), ("cleared", "to be called again"), ("conflict", "done by somebody else")):
        yield from _names(label, [step.key for step in story.steps.values() if step.state == state])
    yield from _names("begun, and not known how it ended", [step.key for step in story.open_steps])
    yield from _names("in doubt", [step.key for step in story.doubts])
    for drift in [each for each in story.drifts if each not in _standing(told)][-SHOWN:]:
        yield f"record {drift.seq}: what step {said(drift.step)} did did not hold {_then(drift)}"
    if not told.verdict.ok:
        yield f"CANNOT BE TRUSTED: {clip(told.verdict.why, 500)}"
    elif told.facts.now is None:
        yield f"CANNOT BE TRUSTED: {clip(told.facts.head_why, 500)}"


def _standing(told: Told) -> list[Receipt]:
    """The drifts that the run stands at, of each step the last."""
    keys = drifted(told)
    return list({each.step: each for each in told.story.drifts if each.step in keys}.values())


def _then(drift: Receipt) -> str:
    return "at that time, which its effect accepts" if drift.data.get("accepted") is True else "at that time"


def _names(label: str, keys: Sequence[str]) -> Iterator[str]:
    if keys:
        yield f"{label}: {plural(len(keys), 'step')}: {clip(', '.join(keys), NAMES_CHARS)}"


# ---------------------------------------------------------------- why


def _why(told: Told) -> Iterator[str]:
    story = told.story
    waiting = [*story.doubts, *story.conflicts, *story.open_steps]
    for step in waiting[:SHOWN]:
        yield from _of_step(told, step)
    yield from _more(waiting, SHOWN, "step")
    for step in story.bare_steps[-SHOWN:]:
        yield f"step {said(step.key)} is done, and record {step.settled} has no result: {clip(step.bare, 300)}"
    for drift in _standing(told)[-SHOWN:]:
        yield f"record {drift.seq}: what step {said(drift.step)} did does not hold any more, and nothing was called again"
    if story.quarantined:
        yield f"it is put aside: it was begun again {plural(story.restarts, 'time')} without a step done"


def _of_step(told: Told, step: StepStory) -> Iterator[str]:
    effect = f" (effect {clip(step.effect)}; {_declared(step)})" if step.effect else ""
    if step.begun:
        held = who(told.story.life_of(step.life))
        yield f"step {said(step.key)}{effect} was begun in record {step.begun}, {at(step.begun_ms)}, by {held}:"
        yield f"  attempt {step.attempts}, and no record says how it ended"
    elif step.why:
        yield f"step {said(step.key)}, which this run did not begin:"
    if step.why:
        yield f"  record {step.settled}, {step.state.replace('_', ' ')}: {clip(step.why, 500)}"
    if step.state == "conflict" and isinstance(step.seen, dict):
        yield f"  its preflight saw: {brief_json(step.seen.get('value', step.seen))}"
    yield from _of_its_life(told, step)
    for error in _raised_by(told, step):
        yield f"  record {error.seq}: it raised {clip(error.what, 300)}"
    yield from _key_of(step)


def _raised_by(told: Told, step: StepStory) -> list[Misfortune]:
    """What the attempt raised that a step waits for; told with the step, and not once more."""
    return [each for each in told.story.errors[-SHOWN:] if each.step == step.key and each.seq > step.begun]


def _of_its_life(told: Told, step: StepStory) -> Iterator[str]:
    """What became of the life that began a step."""
    life = told.story.life_of(step.life)
    if life is None or not step.begun:
        return
    if life.number == len(told.story.lives) and _is_held(told):
        yield f"  life {life.number}, which began it, holds the run still"
    elif not life.end:
        yield f"  life {life.number}, which began it, left no word of its end: killed, frozen, or cut off from etcd"
    elif not life.end.startswith("stopped"):
        yield f"  life {life.number}, which began it, {_ended(life)}"


def _ended(life: Life) -> str:
    """How a life ended; the error's text is told once, with the errors."""
    return f"failed: {clip(life.error)}" if life.error else clip(life.end, 300)


def _key_of(step: StepStory) -> Iterator[str]:
    """The step's idempotency key, where the callee may know it: a memo and a call that declares nothing send none."""
    if not step.idem or not step.begun or step.memo or not step.helps:
        return
    if "dedupes" in step.helps.split():
        yield f"  its idempotency key, by which the callee knows it: {clip(step.idem)}"
    else:
        yield f"  the idempotency key that it would send, if the program sends one: {clip(step.idem)}"


def _declared(step: StepStory) -> str:
    if step.memo:
        return "a memo: it only asks"
    return f"declared: {clip(step.helps)}" if step.helps else "nothing declared: at most once"


def _is_held(told: Told) -> bool:
    """Whether the last life owns the run still."""
    owner, lives = told.facts.owner, told.story.lives
    return owner is not None and bool(lives) and owner.token == lives[-1].token


# ---------------------------------------------------------------- who


def _lives(told: Told) -> Iterator[str]:
    lives = told.story.lives
    if not lives:
        return
    shown = lives if len(lives) <= SHOWN + 1 else [lives[0], *lives[-SHOWN:]]
    for life in shown:
        yield f"life {life.number}  {who(life)}  {during(life.began_ms, life.last_ms)}  {_records(life)}: {_end(told, life)}"
        if life is lives[0] and len(shown) < len(lives):
            yield f"… {len(lives) - len(shown)} more …"
    owner = told.facts.owner
    if owner is None:
        yield "now     nobody owns it" if told.facts.revision else "now     unknown: this is an export"
    else:
        yield f"now     {clip(owner.holder) or 'somebody who left no name'}, token {owner.token}, owns it"


def _records(life: Life) -> str:
    return f"records {life.first} to {life.last}" if life.last > life.first else f"record {life.first}"


def _end(told: Told, life: Life) -> str:
    if life.end:
        return _ended(life)
    if life.number == len(told.story.lives) and _is_held(told):
        return "goes on"
    if life.number == 1 and life.first == life.last:
        return "no word of its end: it began the run for others to do, or was killed"
    return "no word of its end"


# ---------------------------------------------------------------- what else there is


def _errors(told: Told) -> Iterator[str]:
    """Each error once: one that leaves a step and then its block, or comes again in each life, is the same one.

    Not those of which all is said above, with the steps that they are of.
    """
    story = told.story
    waiting = [*story.doubts, *story.conflicts, *story.open_steps][:SHOWN]
    above = {error.what for step in waiting for error in _raised_by(told, step)}
    bare = [step.bare for step in story.bare_steps]
    same: dict[str, list[Misfortune]] = {}
    for error in story.errors:
        of_a_record = error.kind in OF_A_RECORD or any(why in error.what for why in bare)
        if error.what not in above and not of_a_record:
            same.setdefault(error.what, []).append(error)
    latest = sorted(same.values(), key=lambda each: each[-1].seq)
    yield from _more(latest, SHOWN, "earlier error")
    for each in latest[-SHOWN:]:
        yield _error(each)


def _error(same: Sequence[Misfortune]) -> str:
    first = same[0]
    where = f"step {said(first.step)}" if first.step else "the block around the steps"
    applied = "; surely not applied" if first.applied is False else ""
    again = [str(each.seq) for each in same[1:]]
    more = f"; the same in {plural(len(again), 'more record')}: {clip(', '.join(again), 60)}" if again else ""
    return f"record {first.seq}, {at(first.at_ms)}, life {first.life}, {where}: {clip(first.what, 300)}{applied}{more}"


def _lates(told: Told) -> Iterator[str]:
    for late in told.lates[:SHOWN]:
        if late.receipt is None:
            yield f"about record {late.seq}: it cannot be read: {clip(late.why)}"
            continue
        receipt = late.receipt
        by = f"{clip(receipt.holder)}, token {receipt.token}"
        yield f"about record {late.seq}, step {said(receipt.step)}: {by}, {at(receipt.at_ms)}, would have recorded:"
        yield f"  {clip(receipt.kind)}: {_evidence(receipt.data)}"
    yield from _more(told.lates, SHOWN, "piece")


def _evidence(data: dict[str, Any]) -> str:
    if "result" in data:
        return f"the result {brief_json(data['result'])}"
    if isinstance(data.get("type"), str):
        return clip(f"{data['type']}: {data.get('text', '')}", 300)
    return brief_json(data)


def _operators(told: Told) -> Iterator[str]:
    for word in told.story.said[-SHOWN:]:
        about = (
            f"step {said(word.step)} was {'' if word.data.get('applied') is True else 'not '}applied"
            if word.step
            else ""
        )
        evidence = brief_json(word.data.get("evidence"))
        yield f"record {word.seq}, {at(word.at_ms)}, {clip(word.holder)}: {about or _of_the_run(word)}: {evidence}"


def _of_the_run(word: Receipt) -> str:
    """What a word says that is about no step."""
    rewound = word.data.get("rewound")
    if not isinstance(rewound, list) or not rewound:
        return "it may be tried again"
    last = max((each["seq"] for each in rewound if isinstance(each, dict) and type(each.get("seq")) is int), default=0)
    return "what was remembered outside of etcd" + (f", up to record {last}," if last else "") + " is given up for lost"


def _notes(told: Told) -> Iterator[str]:
    """How far attempts came that never came to their end: of each its last note."""
    steps = told.story.steps
    last = {(note.step, str(note.data.get("intent"))): note for note in told.story.notes}
    wanted = [note for note in last.values() if note.step not in steps or steps[note.step].state != "done"]
    yield from _more(wanted, SHOWN, "earlier note")
    for note in wanted[-SHOWN:]:
        about = f", step {said(note.step)}" if note.step else ""
        yield f"record {note.seq}, {at(note.at_ms)}{about}: {_partial(note.data)}"


def _partial(data: dict[str, Any]) -> str:
    partial, size = data.get("partial"), data.get("size")
    if not isinstance(partial, str) or type(size) is not int:
        return brief_json(data)
    return f"it had {plural(size, 'character')} by then, which end in {brief_json(partial[-ENDING_CHARS:])}"


def _halts(told: Told) -> Iterator[str]:
    for halt in told.facts.halts[:SHOWN]:
        reason = clip(halt.reason, 300) or "no reason given"
        since = f" since {at(halt.at_ms)}" if halt.at_ms else ""
        yield f"{clip(halt.scope)} is halted{since} by {clip(halt.by) or 'somebody'}: {reason}"


def _more(all_of_them: Sequence[object], shown: int, word: str) -> Iterator[str]:
    if len(all_of_them) > shown:
        yield f"… {plural(len(all_of_them) - shown, f'more {word}')} …"
