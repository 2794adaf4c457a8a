"""How a run stands, in a sentence, and what a person has to do so that it goes on: the very commands, to be copied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leasekeeper.cli.runs.remedies import first_of_all
from leasekeeper.cli.runs.words import said
from leasekeeper.cli.text import clip, plural

if TYPE_CHECKING:
    from leasekeeper.cli.runs.explaining import Told
    from leasekeeper.protocol.story import StepStory

__all__ = ["drifted", "headline", "what_to_do"]

EVIDENCE = "WHAT YOU SAW"
WITH_A_RESULT = "with --applied add --result JSON if later steps need it"
STEPS_MAX = 3


def headline(told: Told) -> str:
    """The run and how it stands."""
    return f"run {clip(told.facts.name.text, 255)} {_stands(told)}"


def _stands(told: Told) -> str:
    if _is_pruned(told):
        return "was pruned: it had been finished and exported"
    if _is_unknown(told):
        return "is not known here: nothing is recorded of it"
    if not told.verdict.ok or told.facts.now is None:
        return "cannot be trusted: its records are not what was written"
    return _by_its_records(told)


def _by_its_records(told: Told) -> str:
    story, facts = told.story, told.facts
    if story.quarantined:
        return "is quarantined: it was begun again too often without a step done"
    if story.doubts:
        steps = ", ".join(said(step.key) for step in story.doubts[:STEPS_MAX])
        return f"is in doubt: nobody can tell whether {steps} happened, and a person has to look"
    if story.finished:
        return "is finished"
    halted = ", and is halted" if facts.halts else ""
    if facts.owner is not None:
        return f"is running{halted}: {clip(facts.owner.holder) or 'somebody'} owns it"
    if story.conflicts:
        return f"stopped{halted}: somebody else had applied {said(story.conflicts[0].key)}"
    if gone := drifted(told):
        return f"stopped{halted}: what {said(gone[0])} did does not hold any more"
    if story.lives and story.lives[-1].error:
        return f"is not finished{halted}: its last life ended with {clip(story.lives[-1].error)}"
    return f"is not finished, and nobody owns it{halted}" if facts.revision else "is not finished"


def _is_pruned(told: Told) -> bool:
    return told.facts.tomb is not None and not told.facts.known and not told.story.last


def _is_unknown(told: Told) -> bool:
    return not told.facts.known and not told.story.last


def what_to_do(told: Told) -> Iterator[str]:
    """What to do, and the commands for it."""
    story, facts, run = told.story, told.facts, told.facts.name.text
    if _is_pruned(told):
        yield "nothing: its id is not used again, unless a generation is given"
        return
    if _is_unknown(told):
        yield "look for its name, or in another namespace:"
        yield f"  {told.command('runs', 'ls')}"
        yield "if it was begun here it may have been lost, as when an older backup is restored; ask what remembers it elsewhere:"
        yield f"  {told.command('runs', 'verify', run, '--anchor', 'FILE')}"
        return
    if not told.verdict.ok or facts.now is None:
        yield "find out who writes to these keys, and put back what was there; compare with what remembers the run elsewhere:"
        yield f"  {told.command('runs', 'verify', run)} --keys FILE --anchor FILE --export FILE"
        return
    for halt in facts.halts:
        yield "no step begins before the halt is lifted; once its reason is gone:"
        yield f"  {told.command('unhalt', halt.scope)}"
    if story.quarantined:
        where = (
            "see above, and their logs" if story.errors else "they left no error here: see the logs of program and host"
        )
        yield f"find out why its lives end ({where}), mend that, then let it be tried again:"
        yield f"  {_resolve(told, '--lift-quarantine')}"
        yield from _about_stuck(told, WITH_A_RESULT)
    yield from _about_steps(told)
    if story.finished:
        yield "nothing. To keep it outside of etcd, and then remove it:"
        yield f"  {told.command('runs', 'export', run, '--out', 'FILE')}"
        yield f"  {told.command('runs', 'prune', run, '--exported', 'FILE')}"
    elif not (story.quarantined or story.doubts or story.conflicts):
        yield from _about_owner(told)


def _about_steps(told: Told) -> Iterator[str]:
    waiting = [*told.story.doubts, *told.story.conflicts]
    for step in waiting[:STEPS_MAX]:
        if step.state == "conflict":
            yield f"find out who applied {said(step.key)}, and whether this run is to go on with what they did, or it was undone:"
        else:
            yield f"look at the resource whether {said(step.key)} was applied, then say which:"
        yield f"  {_resolve(told, '--applied', step)}"
        yield f"  {_resolve(told, '--not-applied', step)}"
    if len(waiting) > STEPS_MAX:
        yield f"and so for {plural(len(waiting) - STEPS_MAX, 'more step')}"
    bare = [] if told.story.finished else told.story.bare_steps
    for step in bare[:STEPS_MAX]:
        yield f"{said(step.key)} is done without a result, and a program that needs it stops there: mend that, or give it one:"
        yield f"  {_resolve(told, '--applied', step, '--result', 'JSON')}"
    if waiting:
        yield f"{WITH_A_RESULT}; then start the program again"


def drifted(told: Told) -> list[str]:
    """The steps whose postconditions stopped the last life; none in a run that was finished since."""
    story = told.story
    if story.finished:
        return []
    since = story.lives[-1].first if story.lives else 0
    met = [one for one in story.drifts if one.seq >= since and one.data.get("accepted") is not True]
    return list(dict.fromkeys(one.step for one in met))


def _about_owner(told: Told) -> Iterator[str]:
    if told.facts.owner is not None:
        yield "nothing, unless it hangs; who owns it, and how to remove that claim:"
        yield f"  {told.command('show', told.facts.name.lease)}"
        return
    yield from first_of_all(told)
    for key in drifted(told)[:STEPS_MAX]:
        yield f"make what {said(key)} did hold again, or, if that is as it should be, have its code say so: the effect by"
        yield '  drift="accept", or this run.do alone by verify="recorded"; then'
    yield from _about_stuck(told, f"{WITH_A_RESULT}; then")
    now = told.facts.now
    key = f", with signing key {clip(now.key_id)} as before" if now is not None and now.key_id else ""
    yield f"start the program again, on any host{key}: it goes on where this ends"
    for step in told.story.open_steps[:STEPS_MAX]:
        yield f"  {said(step.key)}: {_next(step)}"


def _about_stuck(told: Told, then: str) -> Iterator[str]:
    """The open steps of which the next life can but say that they are in doubt; ``then`` comes behind them, if there are any."""
    stuck = [step for step in told.story.open_steps if _only_doubt(step)]
    for step in stuck[:STEPS_MAX]:
        yield f"no program can tell whether {said(step.key)} was applied: look at the resource, and say which before any starts:"
        yield f"  {_resolve(told, '--applied', step)}"
        yield f"  {_resolve(told, '--not-applied', step)}"
    if len(stuck) > STEPS_MAX:
        yield f"and so for {plural(len(stuck) - STEPS_MAX, 'more step')}"
    if stuck:
        yield then


def _only_doubt(step: StepStory) -> bool:
    """Whether the next life can but say that it is in doubt: the effect had no preflight, and may not be called again."""
    return not step.memo and step.seen is None and _at_most_once(step)


def _at_most_once(step: StepStory) -> bool:
    helps = step.helps.split()
    return "at_most_once" in helps or not {"dedupes", "probe"} & set(helps)


def _next(step: StepStory) -> str:
    helps = step.helps.split()
    if step.memo:
        return "will be asked again: it is a memo"
    if _only_doubt(step):
        return "is in doubt from then on, unless a person has said which, or its code has a preflight by then"
    if _at_most_once(step):
        return "will be adopted if its preflight sees it applied; otherwise it is in doubt, and a person decides"
    if "dedupes" in helps:
        return "will be adopted if its preflight sees it, otherwise called with the same key while the callee remembers that"
    return "will be adopted or called again, by what its preflight sees"


def _resolve(told: Told, word: str, step: StepStory | None = None, *more: str) -> str:
    names = [told.facts.name.text, *([step.key] if step is not None else [])]
    options = [word, *more, "--evidence", EVIDENCE]
    if any(name.startswith("-") for name in names):
        return told.command("runs", "resolve", *options, "--", *names)
    return told.command("runs", "resolve", *names, *options)
