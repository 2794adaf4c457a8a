"""``leasekeeper halt``: let no step of a run begin in a scope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE
from leasekeeper.cli.output import note, print_json, print_table, styled
from leasekeeper.cli.runs.shapes import halt_shape
from leasekeeper.cli.runs.words import at
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.text import clip, one_line, plural
from leasekeeper.cli.values import NOTE, SCOPE
from leasekeeper.protocol import halt as halting

if TYPE_CHECKING:
    from leasekeeper.protocol.halt import Halt, Placed

HEADINGS = ("SCOPE", "SINCE", "BY", "REASON")


@lease_command("halt")
@click.argument("scope", type=SCOPE, required=False)
@click.option("--reason", type=NOTE, metavar="TEXT", help="Told to whoever is stopped by it; needed.")
@click.option(
    "--replace", is_flag=True, help="Where SCOPE is halted already, put this reason in place of the one that stands."
)
@click.option("--list", "listing", is_flag=True, help="List the halts that stand.")
def command(settings: Settings, scope: str | None, reason: str | None, replace: bool, listing: bool) -> int:
    """Let no step begin in SCOPE from now on: '*' for all runs, a run as WORKFLOW/ID, or the beginning of such and a '*'.

    When it returns, no step in SCOPE begins any more. Steps that were begun may end, and what came of them is recorded. Quote the
    '*' for the shell. It stands until `leasekeeper unhalt SCOPE`. Where SCOPE is halted already the earlier halt stays as it is,
    and is told; one unhalt ends it for everybody.
    """
    if listing == (scope is not None):
        raise click.UsageError("say SCOPE, or --list to see what is halted")
    if scope is None:
        if reason is not None or replace:
            raise click.UsageError("--reason and --replace go with SCOPE")
        return _list(settings)
    if not reason:
        raise click.UsageError("say --reason TEXT: whoever is stopped will ask")
    with settings.keeper(person=True) as keeper:
        core = keeper._core
        plan = halting.place(core.ctx, scope, reason, core.until(settings.ask_s), replace=replace)
        placed: Placed = core.run(plan)
        by = core.ctx.holder
    if settings.as_json:
        print_json(_placed_shape(scope, reason, by, placed))
    else:
        _tell(settings, scope, placed)
    return DONE


def _placed_shape(scope: str, reason: str, by: str, placed: Placed) -> dict[str, Any]:
    kept = placed.kept
    stands = {"scope": scope, "reason": reason, "by": by} if kept is None else halt_shape(kept)
    stands.pop("at", None)
    return {**stands, "revision": placed.revision, "kept": kept is not None, "covers": placed.covers}


def _tell(settings: Settings, scope: str, placed: Placed) -> None:
    end = settings.command_line("unhalt", scope)
    covers = f"it covers {plural(placed.covers, 'unfinished run')} now"
    if placed.kept is None:
        click.echo(one_line(f"{scope} is halted since revision {placed.revision}; {covers}; to end it: {end}"))
        return
    halt = placed.kept
    since = f" since {at(halt.at_ms)}" if halt.at_ms else ""
    by = f" by {clip(halt.by)}" if halt.by else ""
    click.echo(one_line(f"{scope} is halted already{since}{by}: {clip(halt.reason, 1000)}; {covers}"))
    note(f"that one stands, and one unhalt ends it for all; --replace puts your reason in its place; to end it: {end}")


def _list(settings: Settings) -> int:
    with settings.keeper() as keeper:
        core = keeper._core
        found: list[Halt] = core.run(halting.read_all(core.ctx, core.until(settings.ask_s)))
    if settings.as_json:
        print_json([halt_shape(one) for one in found])
    elif found:
        rows = [
            (clip(one.scope, 255), at(one.at_ms) if one.at_ms else "-", clip(one.by) or "-", clip(one.reason, 1000))
            for one in found
        ]
        print_table(HEADINGS, [tuple(styled(cell) for cell in row) for row in rows])
    else:
        note("nothing is halted here")
    return DONE
