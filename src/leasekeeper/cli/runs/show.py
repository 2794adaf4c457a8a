"""``leasekeeper runs show``: all that is recorded of a run, from any host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from leasekeeper.cli import phrases
from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE, NEGATIVE
from leasekeeper.cli.output import print_json, print_lines, print_table, styled
from leasekeeper.cli.runs.shapes import (
    checkpoint_shape,
    facts_shape,
    late_shape,
    life_shape,
    receipt_shape,
    step_shape,
    unreadable_shape,
)
from leasekeeper.cli.runs.source import EtcdRun, reading
from leasekeeper.cli.runs.words import at, begun_with, brief_json, status_word
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.text import clip
from leasekeeper.cli.values import run_argument
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.keys import unescape
from leasekeeper.protocol.pointer import Pointer, read_pointer
from leasekeeper.protocol.prune import read_tomb
from leasekeeper.protocol.receipt import read_receipt
from leasekeeper.protocol.story import Story
from leasekeeper.run_errors import ILLEGIBLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.text import Text

    from leasekeeper.cli.runs.source import Source
    from leasekeeper.protocol.run_keys import RunName
    from leasekeeper.run_records import Receipt

RECORDS = ("RECORD", "AT", "KIND", "STEP", "LIFE", "WHAT")
STEPS = ("STEP", "STATE", "KIND", "EFFECT", "RECORDS", "KEY")
LIVES = ("LIFE", "HOLDER", "TOKEN", "AFTER", "RECORDS", "END")
CHECKPOINTS = ("CHECKPOINT", "SCHEMA", "COMMITS", "DATA")
LATES = ("ABOUT", "AT", "HOLDER", "TOKEN", "WHAT")
UNREADABLE = "unreadable"
# Of a value, and of the end of what an attempt had so far.
VALUE_CHARS, ENDING_CHARS = 120, 80

Cells = tuple[str, ...]


@lease_command("show")
@run_argument()
def command(settings: Settings, run: RunName) -> int:
    """Show the full history of RUN, from any host.

    Its records, who wrote them and when, its lives and who took over from whom, where each step stands, its checkpoints, and what
    came too late. All of it is read at one revision. Nothing here is verified: see `runs verify`. Exits with 1 when nothing is
    recorded of RUN.
    """
    if settings.as_json:
        shape, known = reading(settings, run, None, lambda source: (_shape(_etcd(source)), source.facts.known))
        print_json(shape)
    else:
        parts, known = reading(settings, run, None, lambda source: (_page(_etcd(source)), source.facts.known))
        for part in parts:
            part()
    return DONE if known else NEGATIVE


def _etcd(source: Source) -> EtcdRun:
    assert isinstance(source, EtcdRun)
    return source


def _receipts(source: EtcdRun) -> Iterator[tuple[int | None, Receipt | None, str]]:
    for seq, stored in source.records():
        try:
            yield seq, read_receipt(stored, "it"), ""
        except ILLEGIBLE as error:
            yield seq, None, error.why


def _pointers(source: EtcdRun) -> Iterator[tuple[str, Pointer | None, str]]:
    for key, stored in source.steps():
        name = source.keys.step_of(key)
        try:
            yield name, read_pointer(pb.KeyValue(key=key, value=stored)), ""
        except ILLEGIBLE as error:
            yield name, None, error.why


def _checkpoints(source: EtcdRun) -> Iterator[dict[str, Any]]:
    for key, stored in source.checkpoints():
        text = key[len(source.keys.checkpoints) :].decode("utf-8", "replace")
        yield checkpoint_shape(unescape(text), stored)


def _shape(source: EtcdRun) -> dict[str, Any]:
    story, records = Story(), []
    for seq, receipt, why in _receipts(source):
        if receipt is not None:
            story.add(receipt)
        records.append(receipt_shape(receipt) if receipt is not None else unreadable_shape(seq, why))
    return {
        **facts_shape(source.facts),
        "records": records,
        "lives": [life_shape(life) for life in story.lives],
        "steps": [step_shape(*one) for one in _pointers(source)],
        "checkpoints": list(_checkpoints(source)),
        "late": [late_shape(late) for late in source.lates()],
    }


# ---------------------------------------------------------------- for people


def _page(source: EtcdRun) -> list[Callable[[], None]]:
    """What prints the page, part by part; of each record one short row is kept, not the record."""
    story = Story()
    rows: list[Cells] = []
    for seq, receipt, why in _receipts(source):
        if receipt is None:
            rows.append((str(seq), "", UNREADABLE, "", "", clip(why)))
            continue
        story.add(receipt)
        what = _what(receipt)
        rows.append((str(seq), at(receipt.at_ms), clip(receipt.kind), clip(receipt.step), _life(story, receipt), what))
    head = _head(source)
    tables: list[tuple[str, Cells, list[Cells]]] = [
        ("lives", LIVES, _lives(story)),
        ("records", RECORDS, rows),
        ("steps", STEPS, [_step(*one) for one in _pointers(source)]),
        ("checkpoints", CHECKPOINTS, [_checkpoint(one) for one in _checkpoints(source)]),
        ("came too late: a hint, nothing follows from it", LATES, _lates(source)),
    ]
    return [partial(print_lines, head), *(partial(_table, *table) for table in tables)]


def _table(title: str, headings: Sequence[str], rows: Sequence[Cells]) -> None:
    if rows:
        print_lines([styled(""), styled(title, "bold")])
        print_table(headings, [tuple(styled(cell) for cell in row) for row in rows])


def _head(source: EtcdRun) -> list[Text]:
    facts, now = source.facts, source.facts.now
    lines = [styled(clip(facts.name.text, 255), "bold")]
    if not facts.known:
        gone = _pruned(source.keys.tomb, facts.tomb) if facts.tomb is not None else "nothing is recorded of it"
        return [*lines, _field("status", styled(gone))]
    halted = f", halted by {clip(facts.halts[0].scope)}" if facts.halts else ""
    if now is None:
        lines.append(_field("status", styled(f"{UNREADABLE}: {clip(facts.head_why)}", "bold red")))
    else:
        lines.append(_field("status", styled(status_word(now.status) + halted)))
        doubts = f"; in doubt: {clip(', '.join(now.doubts))}" if now.doubts else ""
        lines.append(_field("steps done", styled(f"{now.done}{doubts}")))
        lines.append(_field("last record", styled(f"{now.seq}, {at(now.at_ms)}, hash {now.hash}")))
        lines.append(_field("restarts", styled(f"{now.restarts} since a step was done")))
        lines.append(_field("generation", styled(str(now.gen))))
    if given := begun_with(facts.meta):
        lines.append(_field("input", styled(given)))
    owner = phrases.holder(facts.owner).append(f", token {facts.owner.token}") if facts.owner else styled("nobody")
    lines.append(_field("owner", owner))
    lines.append(_field("lease", styled(clip(facts.name.lease, 1000))))
    return lines


def _pruned(key: bytes, stored: bytes) -> str:
    try:
        tomb = read_tomb(pb.KeyValue(key=key, value=stored))
    except ILLEGIBLE as error:
        return f"it was pruned, and its tombstone cannot be read: {clip(error.why)}"
    upto = f"up to record {tomb.seq} of generation {tomb.gen}"
    return f"pruned {at(tomb.at_ms)} by {clip(tomb.by)}, {upto}; its id is kept until {at(tomb.keep_until_ms)}"


def _field(label: str, value: Text) -> Text:
    return styled(f"  {label:<12}", "dim").append_text(value)


def _life(story: Story, receipt: Receipt) -> str:
    if not receipt.token:
        return "-"  # an operator
    return next((str(life.number) for life in reversed(story.lives) if life.life == receipt.life), "?")


def _what(receipt: Receipt) -> str:
    """The one thing of a record that a person wants to see."""
    data = receipt.data
    match receipt.kind:
        case "outcome" | "resolved" if "result" in data:
            return _result(receipt)
        case "raised" | "failed":
            what = f"{data.get('type')}: {data.get('text')}"
        case "opened":
            what = f"{receipt.holder}, pid {data.get('pid')} on {data.get('host')}"
        case "in_doubt":
            what = str(data.get("why"))
        case "intent" | "before":
            what = f"attempt {data.get('attempt')} of {data.get('effect')}"
        case "checkpoint" | "phase":
            what = f"{data.get('name')}: {json.dumps(data.get('to', data.get('data')))}"
        case "note" if isinstance(data.get("partial"), str):
            what = f"so far: {json.dumps(data['partial'][-ENDING_CHARS:])}"
        case _:
            return brief_json(data, VALUE_CHARS) if data else ""
    return clip(what)


def _result(receipt: Receipt) -> str:
    adopted = "adopted: " if receipt.data.get("adopted") is True else ""
    by = f"{clip(receipt.holder)}: " if receipt.kind == "resolved" else ""
    return f"{by}{adopted}{brief_json(receipt.data['result'], VALUE_CHARS)}"


def _lives(story: Story) -> list[Cells]:
    return [
        (
            str(life.number),
            clip(life.holder),
            str(life.token),
            f"token {life.after}" if life.after else "-",
            f"{life.first} to {life.last}",
            clip(life.end) or "no word of it",
        )
        for life in story.lives
    ]


def _step(key: str, pointer: Pointer | None, why: str) -> Cells:
    if pointer is None:
        return clip(key), UNREADABLE, "", clip(why), "", ""
    records = f"{pointer.intent or '-'} to {pointer.outcome or '-'}"
    return clip(key), status_word(pointer.state), pointer.kind, clip(pointer.effect), records, clip(pointer.idem)


def _checkpoint(one: dict[str, Any]) -> Cells:
    if one["unreadable"] is not None:
        return clip(one["name"]), UNREADABLE, "", clip(one["unreadable"])
    return clip(one["name"]), f"{clip(one['schema'])} v{one['version']}", str(one["n"]), brief_json(one["data"])


def _lates(source: EtcdRun) -> list[Cells]:
    rows: list[Cells] = []
    for late in source.lates():
        receipt = late.receipt
        if receipt is None:
            rows.append((f"record {late.seq}", "", "", "", f"{UNREADABLE}: {clip(late.why)}"))
            continue
        what = f"{clip(receipt.kind)} of {clip(receipt.step)}: {_what(receipt)}"
        rows.append((f"record {late.seq}", at(receipt.at_ms), clip(receipt.holder), str(receipt.token), what))
    return rows
