"""``leasekeeper runs verify``: whether a run's records are what was written, in etcd or in an export."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE, NEGATIVE
from leasekeeper.cli.output import print_json, print_lines, styled
from leasekeeper.cli.runs.anchors import remembered_in
from leasekeeper.cli.runs.held import all_held
from leasekeeper.cli.runs.shapes import examined_shape
from leasekeeper.cli.runs.source import EtcdRun, FileRun, read_exported, reading, run_or_file
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.text import clip
from leasekeeper.errors import ConfigError
from leasekeeper.protocol.audit import giving_up
from leasekeeper.protocol.receipt import digest
from leasekeeper.run_errors import ILLEGIBLE
from leasekeeper.runs.anchored import standing
from leasekeeper.runs.examine import Examined, examine
from leasekeeper.runs.export import Record, read_export, verify_export
from leasekeeper.runs.signer import verifying_ring

if TYPE_CHECKING:
    from rich.text import Text

    from leasekeeper.cli.runs.source import Source
    from leasekeeper.protocol.chain import Point
    from leasekeeper.protocol.run_keys import RunName
    from leasekeeper.signing import Keyring

__all__ = ["command", "ring_of"]

SENTENCE_CHARS = 1000
# What a verdict says that goes by what somebody remembers.
BY_ANCHOR = ": an anchor "


@lease_command("verify")
@run_or_file
@click.option(
    "--keys",
    "keys",
    metavar="FILE",
    multiple=True,
    help="Public keys to believe, one a line, as `keygen` prints them; may be repeated.",
)
@click.option(
    "--anchor",
    "anchors",
    metavar="FILE",
    multiple=True,
    help="A file of an anchor, or a log that a syslog server has collected; may be repeated.",
)
@click.option(
    "--export",
    "exports",
    metavar="FILE",
    multiple=True,
    help="An earlier export of the run: what it remembers must be there.",
)
def command(
    settings: Settings,
    run: RunName | None,
    path: str | None,
    keys: tuple[str, ...],
    anchors: tuple[str, ...],
    exports: tuple[str, ...],
) -> int:
    """Tell whether the records of RUN are what was written, and which one is the first that is not.

    Exits with 0 when all is good and with 1 when something is bad. An export is verified with its file and public keys alone.
    Without --keys only hashes are looked at, which whoever can write to etcd can make. That the end was cut off, and the head
    with it, shows only by what remembers more: --anchor or --export.

    With --anchor and without RUN: whether etcd has the last record of each run that the anchors remember.
    """
    if run is None and path is None and anchors:
        if keys or exports:
            raise click.UsageError("--keys and --export are about one RUN, or an export by --file")
        return DONE if all_held(settings, anchors) else NEGATIVE
    ring = ring_of(keys)
    if path is not None and run is None:
        name, examined = _file(path, ring, anchors, exports)
    else:
        name, examined = reading(settings, run, path, lambda source: _in_etcd(source, ring, anchors, exports))
    set_back = path is None and bool(anchors) and BY_ANCHOR in examined.verdict.why
    examined = _named(examined, anchors, exports)
    if settings.as_json:
        print_json(examined_shape(name, examined))
    else:
        lines = _lines(name, examined, asked=bool(anchors or exports))
        if set_back:
            lines.append(_field("to go on", f"put it back if you can; {giving_up(name, anchors)}"))
        print_lines(lines)
    return DONE if examined.ok and examined.verdict.verified else NEGATIVE


def _named(examined: Examined, anchors: tuple[str, ...], exports: tuple[str, ...]) -> Examined:
    """By what a verdict goes, in the words of the options: earlier exports are looked at as anchors are."""
    if not exports:
        return examined
    by = "what was given of an anchor or an earlier export" if anchors else "the earlier export"
    why = examined.verdict.why.replace(BY_ANCHOR, f": {by} ", 1)
    return replace(examined, verdict=replace(examined.verdict, why=why))


def ring_of(keys: tuple[str, ...]) -> Keyring | None:
    """The keys to believe; None: none were given."""
    try:
        return verifying_ring(keys) if keys else None
    except ConfigError as error:
        _, _, file = error.field.partition(", ")
        field = f"--keys, {file}" if file else "--keys"
        raise ConfigError(field=field, value=error.value, expected=error.expected) from None


def _in_etcd(
    source: Source, ring: Keyring | None, anchors: tuple[str, ...], exports: tuple[str, ...]
) -> tuple[str, Examined]:
    assert isinstance(source, EtcdRun)
    examined = examine(
        source.keys,
        source.facts,
        source.records(),
        steps=source.steps(),
        checkpoints=source.checkpoints(),
        ring=ring,
        anchors=_points(source, anchors, exports),
    )
    return source.facts.name.text, examined if source.facts.known else _gone(source, examined)


def _gone(source: EtcdRun, examined: Examined) -> Examined:
    """Of a run of which nothing is there: what there is to look at in its place. That is no more than a hint."""
    if examined.verdict.verified or examined.verdict.bad is not None:
        return examined
    pruned = "its records were exported and pruned: verify the export, by --file"
    unknown = "nothing is recorded of it; see: leasekeeper runs ls"
    why = unknown if source.facts.tomb is None else pruned
    return Examined(replace(examined.verdict, why=why), (), examined.placed)


def _file(path: str, ring: Keyring | None, anchors: tuple[str, ...], exports: tuple[str, ...]) -> tuple[str, Examined]:
    """The run that a file says it has, and the verdict; of a file that does not even say that, its name."""
    try:
        source = FileRun(path)
    except ILLEGIBLE:
        name, points = os.path.basename(path), []
    else:
        name, points = source.facts.name.text, _points(source, anchors, exports)
    with read_exported(path) as stream:
        return name, Examined(verify_export(stream, ring, anchors=points))


def _points(source: Source, anchors: tuple[str, ...], exports: tuple[str, ...]) -> list[Point]:
    """What is remembered of the run outside of etcd."""
    points = [point for file in anchors for point in _anchored(file, source)]
    return points + [point for file in exports for point in _remembered(file, source)]


def _gen(source: Source) -> int:
    """The generation of the run; 1 where that cannot be read."""
    if isinstance(source, FileRun):
        return source.header.gen or 1
    return source.facts.now.gen if source.facts.now is not None else 1


def _anchored(file: str, source: Source) -> list[Point]:
    lines = remembered_in(file, "--anchor")
    return [(one.seq, one.hash) for one in standing(lines, source.facts.name.text, _gen(source))]


def _remembered(file: str, source: Source) -> list[Point]:
    """The numbers and hashes of an earlier export's records; ConfigError for one that says nothing of this run."""
    facts = source.facts
    with read_exported(file, "--export") as stream:
        verdict = verify_export(stream)
    if not verdict.ok:
        raise ConfigError(field="--export", value=os.path.basename(file), expected=f"a good one, but {verdict.why}")
    with read_exported(file, "--export") as stream:
        export = read_export(stream)
        header = export.header
        if (header.workflow, header.id, header.gen) != (facts.name.workflow, facts.name.id, _gen(source)):
            expected = f"an export of {facts.name.text}, generation {_gen(source)}"
            raise ConfigError(field="--export", value=os.path.basename(file), expected=expected)
        stored = (line.stored for line in export if isinstance(line, Record))
        return [(seq, digest(each)) for seq, each in enumerate(stored, 1)]


# ---------------------------------------------------------------- telling


def _lines(run: str, examined: Examined, *, asked: bool) -> list[Text]:
    """What people see. ``asked``: an anchor or an export was given, so whether it knows the run is a part of the answer."""
    verdict = examined.verdict
    why = clip(verdict.why, SENTENCE_CHARS)
    # Of a run that was pruned, or is not known, there is nothing that could be bad.
    found = "BAD" if not examined.ok else "good" if verdict.verified else "nothing to verify"
    style = {"BAD": "bold red", "good": ""}.get(found, "bold")
    lines = [styled(f"{clip(run, 255)}: {found}: {why}", style)]
    if verdict.bad is not None:
        lines.append(_field("first bad", f"record {verdict.bad}: {verdict.kind}"))
    if examined.attested is not None:
        keys = f", by {', '.join(map(clip, verdict.keys))}" if verdict.keys else ""
        lines.append(_field("attested", f"up to record {examined.attested}{keys}"))
    else:
        lines.append(_field("attested", "nothing: no key was given to tell by"))
    if verdict.anchored:
        lines.append(_field("anchored", f"up to record {verdict.anchored}"))
    elif asked and verdict.ok:
        lines.append(_field("anchored", "nothing: what was given remembers no record of this run"))
    lines += [
        _field("key change", f"record {one.seq}: from {clip(one.old) or 'none'} to {clip(one.new) or 'none'}")
        for one in verdict.rotations
    ]
    lines += [_field("beside", clip(finding, SENTENCE_CHARS)) for finding in examined.beside]
    return lines


def _field(label: str, value: str) -> Text:
    return styled(f"  {label:<12}", "dim").append(value)
