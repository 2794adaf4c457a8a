"""``leasekeeper halt``: let no step of a run begin in a scope."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE
from leasekeeper.cli.output import note, print_json, print_table, styled
from leasekeeper.cli.runs.shapes import halt_shape
from leasekeeper.cli.runs.words import at
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.text import clip, one_line
from leasekeeper.cli.values import NOTE, SCOPE
from leasekeeper.protocol import halt as halting

if TYPE_CHECKING:
    from leasekeeper.protocol.halt import Halt

HEADINGS = ("SCOPE", "SINCE", "BY", "REASON")


@lease_command("halt")
@click.argument("scope", type=SCOPE, required=False)
@click.option("--reason", type=NOTE, metavar="TEXT", help="Shown to whoever is stopped by it; needed.")
@click.option("--list", "listing", is_flag=True, help="List the halts that stand.")
def command(settings: Settings, scope: str | None, reason: str | None, listing: bool) -> int:
    """Let no step begin in SCOPE from now on: '*' for all runs, a run as WORKFLOW/ID, or the beginning of such and a '*'.

    When it returns, no step in SCOPE begins any more. Steps that were begun may end, and what came of them is recorded. Quote the
    '*' for the shell. It stands until `leasekeeper unhalt SCOPE`.
    """
    if listing == (scope is not None):
        raise click.UsageError("say SCOPE, or --list to see what is halted")
    if scope is None:
        if reason is not None:
            raise click.UsageError("--reason goes with SCOPE")
        return _list(settings)
    if not reason:
        raise click.UsageError("say --reason TEXT: whoever is stopped will ask")
    with settings.keeper() as keeper:
        core = keeper._core
        revision: int = core.run(halting.halt(core.ctx, scope, reason, core.until(settings.ask_s)))
    if settings.as_json:
        print_json({"scope": scope, "reason": reason, "revision": revision})
    else:
        click.echo(
            one_line(
                f"{scope} is halted since revision {revision}; to end it: {settings.command_line('unhalt', scope)}"
            )
        )
    return DONE


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
