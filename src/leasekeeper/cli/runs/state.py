"""``leasekeeper runs state``: what a run was when a record was its last."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE, NEGATIVE
from leasekeeper.cli.output import note, print_json, print_lines, styled
from leasekeeper.cli.runs.source import reading, run_or_file
from leasekeeper.cli.runs.verify import ring_of
from leasekeeper.cli.runs.words import said, status_word
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.text import clip
from leasekeeper.errors import ConfigError
from leasekeeper.protocol.chain import ChainCheck
from leasekeeper.protocol.replay import Replay
from leasekeeper.run_errors import ILLEGIBLE, CorruptState

if TYPE_CHECKING:
    from leasekeeper.cli.runs.source import Source
    from leasekeeper.protocol.chain import Ring
    from leasekeeper.protocol.run_keys import RunName


@lease_command("state")
@run_or_file
@click.option(
    "--at", "seq", type=click.IntRange(0), metavar="SEQ", help="The number of a record; default: the last one."
)
@click.option("--keys", "keys", metavar="FILE", multiple=True, help="Public keys to believe; may be repeated.")
def command(settings: Settings, run: RunName | None, path: str | None, seq: int | None, keys: tuple[str, ...]) -> int:
    """Show what RUN was when record SEQ was its last: its status, steps, phases and checkpoints.

    Made of the records alone, which must verify up to there: a state that cannot be believed is not shown. Exits with 1 then,
    and where nothing is recorded of RUN.
    """
    ring = ring_of(keys)
    try:
        name, replayed, state = reading(settings, run, path, lambda source: _replayed(source, seq, ring))
    except ILLEGIBLE as error:
        note(error.message)
        return NEGATIVE
    if settings.as_json:
        print_json({"run": name, "seq": replayed, **state})
    else:
        _show(name, replayed, state)
    return DONE


def _replayed(source: Source, wanted: int | None, ring: Ring | None) -> tuple[str, int, dict[str, Any]]:
    facts = source.facts
    check = ChainCheck(ring=ring, namespace_id=facts.namespace_id or None, run=(facts.name.workflow, facts.name.id))
    replay, added = Replay(), 0
    for seq, stored in source.records():
        before = check.last
        check.feed(seq, stored)
        if check.last is not None and check.last is not before and (wanted is None or check.last.seq <= wanted):
            replay.add(check.last)
            added = check.last.seq
    verdict = check.close()
    if verdict.kind is None and not verdict.verified and not facts.known:
        pruned = "its records were exported and pruned: read the export, by --file"
        why = "nothing is recorded of it; see: leasekeeper runs ls" if facts.tomb is None else pruned
        raise CorruptState(f"run {facts.name.text}: {why}", where=facts.name.text, why=why)
    if verdict.verified < (added if wanted is None else wanted):
        if verdict.kind is None:
            raise ConfigError(
                field="--at", value=wanted, expected=f"at most {verdict.verified}, the last record's number"
            )
        raise CorruptState(f"run {facts.name.text}: {verdict.why}", where=facts.name.text, why=verdict.why)
    if wanted is None and (verdict.kind is not None or not added):
        why = verdict.why if added or verdict.kind else "there is no record"
        raise CorruptState(f"run {facts.name.text}: {why}", where=facts.name.text, why=why)
    return facts.name.text, added, replay.state()


def _show(run: str, seq: int, state: dict[str, Any]) -> None:
    lines = [styled(f"{clip(run, 255)} at record {seq}: {status_word(state['status'])}", "bold")]
    lines += [styled(f"  step {said(key)}: {status_word(how)}") for key, how in state["steps"].items()]
    lines += [styled(f"  phase {said(name)}: {clip(phase)}") for name, phase in state["phases"].items()]
    lines += [styled(f"  checkpoint {said(name)}: {json.dumps(data)}") for name, data in state["checkpoints"].items()]
    print_lines(lines)
