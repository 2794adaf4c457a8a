"""``leasekeeper runs prune``: remove finished runs that were exported."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE, NEGATIVE
from leasekeeper.cli.output import note, print_json
from leasekeeper.cli.runs.ls import listed
from leasekeeper.cli.runs.verify import ring_of
from leasekeeper.cli.runs.words import at
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.text import one_line, plural
from leasekeeper.cli.values import SECONDS, run_argument
from leasekeeper.errors import ConfigError, Misuse
from leasekeeper.protocol.prune import Exported, Pruned, prune, sweep
from leasekeeper.protocol.run_keys import RunKeys, RunName, parse_run
from leasekeeper.run_errors import ILLEGIBLE
from leasekeeper.runs.exported import read_exported

if TYPE_CHECKING:
    from leasekeeper.protocol.chain import Ring
    from leasekeeper.runtime.core import Core

ENDING = "*.jsonl"


@dataclass(frozen=True, slots=True)
class Left:
    """A run that was not pruned, and why."""

    run: str
    why: str


@lease_command("prune")
@run_argument(required=False, many=True)
@click.option(
    "--finished-before",
    "before_s",
    type=SECONDS,
    metavar="DURATION",
    help="All finished runs whose last record is older than this, in place of RUN.",
)
@click.option(
    "--exported",
    "files",
    metavar="FILE",
    multiple=True,
    help="An export of just this run as it is now, or a directory of such (*.jsonl); may be repeated.",
)
@click.option(
    "--keys",
    "keys",
    metavar="FILE",
    multiple=True,
    help="Public keys: exports have to be signed by them; may be repeated.",
)
@click.option(
    "--damaged", is_flag=True, help="Also remove a run whose records in etcd were damaged since it was exported."
)
@click.option("--tombs", is_flag=True, help="Also remove tombstones that nobody needs any more.")
def command(
    settings: Settings,
    runs: tuple[RunName, ...],
    before_s: float | None,
    files: tuple[str, ...],
    keys: tuple[str, ...],
    damaged: bool,
    tombs: bool,
) -> int:
    """Remove each RUN from etcd, if it is finished, free, and exported: the export is verified to hold all of it first.

    A tombstone keeps the id from being used again in silence, for as long as the callees of the run remember its idempotency
    keys. What was interrupted is gone on with by the same command. Exits with 1 when a run was not pruned.
    """
    if bool(runs) == (before_s is not None) and (runs or not tombs):
        raise click.UsageError("say RUN, or --finished-before DURATION, or --tombs")
    if damaged and not runs:
        raise click.UsageError("--damaged goes with RUN: look at each one first")
    if not files and (runs or before_s is not None):
        raise click.UsageError("say --exported FILE: only what was exported is removed")
    exports, unusable = _exports(files, ring_of(keys))
    with settings.keeper(person=True) as keeper:
        core = keeper._core
        names = list(runs) if before_s is None else list(_finished(core, before_s, settings.ask_s))
        results = [_prune(core, name, exports.get(name.text), settings.ask_s, damaged=damaged) for name in names]
        swept, kept = _sweep(core, settings.ask_s) if tombs else (None, None)
    if settings.as_json:
        print_json({**_shape(results, swept, kept), "unusable": unusable})
    else:
        _show(results, swept, kept)
    return NEGATIVE if unusable or any(isinstance(each, Left) for each in results) else DONE


def _exports(files: tuple[str, ...], ring: Ring | None) -> tuple[dict[str, Exported], list[dict[str, str]]]:
    """What each export holds, by its run, of two of one run the better one; and the files of directories that are no good.

    A file that was named has to be a good export. One in a directory beside others does not keep those from being used.
    """
    found: dict[str, Exported] = {}
    unusable: list[dict[str, str]] = []
    for file in files:
        listed = Path(file).is_dir()
        paths = sorted(Path(file).glob(ENDING)) if listed else [Path(file)]
        if not paths:
            raise ConfigError(field="--exported", value=file, expected=f"a directory with exports in it ({ENDING})")
        for path in paths:
            try:
                exported = read_exported(path, ring)
            except ConfigError as error:
                if not listed:
                    raise ConfigError(field="--exported", value=error.value, expected=error.expected) from None
                note(f"{path} is passed over: expected {error.expected}")
                unusable.append({"file": str(path), "why": error.expected})
                continue
            known = found.get(exported.run)
            if known is None or _worth(known) < _worth(exported):
                found[exported.run] = exported
    return found, unusable


def _worth(exported: Exported) -> tuple[int, int, bool, int]:
    """Of two exports of one run, which is the better ground: the later, the signed, the one with its large values."""
    return exported.gen, exported.seq, bool(exported.key_id), -len(exported.left_out)


def _finished(core: Core, before_s: float, ask_s: float) -> Iterator[RunName]:
    oldest_ms = (time.time() - before_s) * 1000
    for one in listed(core, "", ask_s):
        if one.view is not None and one.view.status == "finished" and one.view.at_ms < oldest_ms:
            yield parse_run(one.run)


def _prune(core: Core, name: RunName, exported: Exported | None, ask_s: float, *, damaged: bool) -> Pruned | Left:
    if exported is None:
        return Left(name.text, f"none of the exports is of it: leasekeeper runs export {name} --out FILE")
    try:
        keys = RunKeys(core.ctx.keys, name)
        pruned: Pruned = core.run(prune(core.ctx, keys, exported, core.until(ask_s), damaged=damaged))
    except (ConfigError, Misuse, *ILLEGIBLE) as error:
        return Left(name.text, error.message)
    return pruned


def _sweep(core: Core, ask_s: float) -> tuple[int, int]:
    gone = kept = 0
    start: bytes | None = None
    while True:
        more, stay, start = core.run(sweep(core.ctx, start, core.until(ask_s)))
        gone, kept = gone + more, kept + stay
        if start is None:
            return gone, kept


def _show(results: list[Pruned | Left], swept: int | None, kept: int | None) -> None:
    for each in results:
        if isinstance(each, Left):
            note(f"{each.run} was not pruned: {each.why}")
            continue
        until = f"its id is kept until {at(each.keep_until_ms)}"
        click.echo(one_line(f"{each.run} is pruned, {plural(each.deleted, 'key')}; {until}"))
    if not results and swept is None:
        note("there is nothing to prune")
    if swept is not None:
        click.echo(f"{plural(swept, 'tombstone')} removed, {kept} kept")


def _shape(results: list[Pruned | Left], swept: int | None, kept: int | None) -> dict[str, Any]:
    pruned = [each for each in results if isinstance(each, Pruned)]
    return {
        "pruned": [
            {
                "run": each.run,
                "generation": each.gen,
                "seq": each.seq,
                "deleted": each.deleted,
                "keep_until": at(each.keep_until_ms),
            }
            for each in pruned
        ],
        "left": [{"run": each.run, "why": each.why} for each in results if isinstance(each, Left)],
        "tombs_removed": swept,
        "tombs_kept": kept,
    }
