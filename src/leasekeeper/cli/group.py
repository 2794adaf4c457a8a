"""Groups of commands, loaded by name from a table: the help page of a group loads none of them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import ClassVar

import click

from leasekeeper.cli.command import GlobalOptions

__all__ = ["CommandTable", "Table"]

Table = Mapping[str, tuple[str, str]]
"""Name, module below the group's package, what it does: in the order of the help page."""


class CommandTable(click.Group, GlobalOptions):
    """A group whose commands are modules of ``package``, each of which calls its command ``command``."""

    table: ClassVar[Table] = {}
    package: ClassVar[str] = ""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return [name for name, (module, _) in self.table.items() if find_spec(f"{self.package}.{module}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load the command's module."""
        if cmd_name not in self.list_commands(ctx):
            return None
        found: click.Command = import_module(f"{self.package}.{self.table[cmd_name][0]}").command
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; a command that is not there is answered with the nearest that is."""
        if self.get_command(ctx, args[0]) is None:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            ctx.fail(f"no such command: {args[0]!r}" + (f"; did you mean {near[0]}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.table[name][1]) for name in self.list_commands(ctx)])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Commands first: who asks for help wants to know what there is."""
        self.format_commands(ctx, formatter)
        GlobalOptions.format_options(self, ctx, formatter)
