"""``leasekeeper unhalt``: end a halt."""

from __future__ import annotations

import click

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE, NEGATIVE
from leasekeeper.cli.output import print_json
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.text import one_line
from leasekeeper.cli.values import SCOPE
from leasekeeper.protocol import halt as halting


@lease_command("unhalt")
@click.argument("scope", type=SCOPE)
def command(settings: Settings, scope: str) -> int:
    """End the halt of just this SCOPE, spelled as it was halted; other halts that cover the same runs stand.

    Exits with 1 when there is none. `leasekeeper halt --list` shows them.
    """
    with settings.keeper() as keeper:
        core = keeper._core
        found: bool = core.run(halting.unhalt(core.ctx, scope, core.until(settings.ask_s)))
    if settings.as_json:
        print_json({"scope": scope, "ended": found})
    else:
        click.echo(
            one_line(
                f"{scope} is not halted any more" if found else f"{scope} was not halted; see: leasekeeper halt --list"
            )
        )
    return DONE if found else NEGATIVE
