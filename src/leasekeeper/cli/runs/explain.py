"""``leasekeeper runs explain``: what happened to a run, and what to do about it, on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE, NEGATIVE
from leasekeeper.cli.output import print_json, print_lines, styled
from leasekeeper.cli.runs.explaining import Told, explain
from leasekeeper.cli.runs.onward import headline
from leasekeeper.cli.runs.source import EtcdRun, reading, run_or_file
from leasekeeper.cli.runs.words import at
from leasekeeper.cli.settings import Settings
from leasekeeper.protocol.chain import ChainCheck
from leasekeeper.protocol.story import Story
from leasekeeper.run_errors import ILLEGIBLE

if TYPE_CHECKING:
    from leasekeeper.cli.runs.source import Source
    from leasekeeper.protocol.run_keys import RunName
    from leasekeeper.protocol.story import StepStory

__all__ = ["command", "told_of"]


@lease_command("explain")
@run_or_file
def command(settings: Settings, run: RunName | None, path: str | None) -> int:
    """Tell on one screen what happened to RUN, and the commands to go on.

    What it did, which step is in doubt and why, who held it when, what was raised, what came too late, and what is halted: made
    of what is recorded, from any host. Exits with 1 when nothing is recorded of RUN.
    """
    told = reading(settings, run, path, lambda source: told_of(source, settings.own_words()))
    if settings.as_json:
        print_json(_shape(told))
    else:
        lines = explain(told)
        print_lines([styled(line, "bold" if not line.startswith(" ") else "") for line in lines])
    return DONE if told.story.last or told.facts.known or told.facts.tomb else NEGATIVE


def told_of(source: Source, words: list[str]) -> Told:
    """All that can be told of a run; what cannot be read of its records is in the verdict."""
    facts = source.facts
    head = (facts.now.seq, facts.now.hash) if facts.now is not None else None
    check = ChainCheck(head=head, run=(facts.name.workflow, facts.name.id))
    story = Story()
    try:
        for seq, stored in source.records():
            before = check.last
            check.feed(seq, stored)
            if check.last is not None and check.last is not before:
                story.add(check.last)
    except ILLEGIBLE:
        pass  # an export whose later lines are damaged: its end is missing
    lates = tuple(source.lates()) if isinstance(source, EtcdRun) else ()
    return Told(story, facts, check.close(), lates, tuple(words))


def _shape(told: Told) -> dict[str, Any]:
    story, facts = told.story, told.facts
    return {
        "run": facts.name.text,
        "headline": headline(told),
        "status": facts.now.status if facts.now is not None else None,
        "ok": told.verdict.ok and facts.now is not None,
        "why": told.verdict.why,
        "owner": facts.owner.holder if facts.owner is not None else None,
        "in_doubt": [_step(step) for step in story.doubts],
        "unknown": [_step(step) for step in story.open_steps],
        "conflicts": [_step(step) for step in story.conflicts],
        "quarantined": story.quarantined,
        "errors": [
            {"seq": one.seq, "at": at(one.at_ms), "step": one.step or None, "what": one.what} for one in story.errors
        ],
        "late": len(told.lates),
        "halts": [halt.scope for halt in facts.halts],
        "lines": explain(told),
    }


def _step(step: StepStory) -> dict[str, Any]:
    return {
        "step": step.key,
        "effect": step.effect or None,
        "intent": step.begun,
        "attempts": step.attempts,
        "idempotency_key": step.idem or None,
        "why": step.why or None,
    }
