"""``leasekeeper runs``: what is recorded of runs, for people who look, and what they may do about it; one command a module."""

from __future__ import annotations

from typing import ClassVar

import click

from leasekeeper.cli.command import global_options
from leasekeeper.cli.group import CommandTable, Table

__all__ = ["COMMANDS", "command"]

COMMANDS: dict[str, tuple[str, str]] = {
    "ls": ("ls", "List runs and how they stand."),
    "show": ("show", "Show all that is recorded of a run."),
    "explain": ("explain", "Tell what happened to a run, and what to do about it."),
    "export": ("export", "Write a run into a file that can be verified without etcd."),
    "verify": ("verify", "Tell whether a run's records are what was written."),
    "state": ("state", "Show what a run was at any of its records."),
    "resolve": ("resolve", "Say whether a step in doubt was applied."),
    "prune": ("prune", "Remove finished runs that were exported."),
    "keygen": ("keygen", "Make a key that signs records."),
}


class Runs(CommandTable):
    """The commands about runs."""

    table: ClassVar[Table] = COMMANDS
    package: ClassVar[str] = "leasekeeper.cli.runs"


@click.command("runs", cls=Runs, params=global_options(), invoke_without_command=True, no_args_is_help=False)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Look at runs, explain, export, verify, resolve and prune them.

    A run is written WORKFLOW/ID, with %2F for "/" inside of either. All of it is in etcd: any host will do.
    """
    if ctx.invoked_subcommand is None:
        raise click.UsageError(f"missing command: {', '.join(COMMANDS)}")
