"""The program: the table of commands, loaded by name, and how every command ends."""

from __future__ import annotations

import difflib
import io
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

import click

from leasekeeper._version import __version__
from leasekeeper.cli.command import GlobalOptions, global_options
from leasekeeper.cli.exits import USAGE, report

__all__ = ["COMMANDS", "program"]

# Name, module below leasekeeper.cli, what it does: in the order of the help page, which thus loads none of them.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run", "Run a command while holding a lease."),
    "acquire": ("acquire", "Hold a lease until Ctrl-C."),
    "ls": ("ls", "List who owns what."),
    "show": ("show", "Show one name: its owner and its queue."),
    "watch": ("watch", "Show changes of owners and queues as they happen."),
    "verify": ("verify", "Tell whether a token is the owner's."),
    "break": ("break_", "Remove an owner that will not go."),
    "epoch": ("epoch", "Show or raise the epoch, the high part of every token."),
    "doctor": ("doctor", "Examine etcd, the connection and the rights."),
    "migrate": ("migrate", "Check that stored states of every released version are still read."),
    "dev": ("dev", "Run a local etcd in the foreground."),
    "demo": ("demo", "Watch a lease survive a cut network."),
    "sim": ("sim", "Try to break every promise in simulated worlds."),
    "chaos": ("chaos", "Break a real cluster on purpose and check every promise."),
}


class Program(click.Group, GlobalOptions):
    """The group of all commands. Every error ends in one line and an exit code; see `exits`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return [name for name, (module, _) in COMMANDS.items() if find_spec(f"leasekeeper.cli.{module}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load the command's module: it calls its command ``command``."""
        if cmd_name not in self.list_commands(ctx):
            return None
        found: click.Command = import_module(f"leasekeeper.cli.{COMMANDS[cmd_name][0]}").command
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
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Commands first: who asks for help wants to know what there is."""
        self.format_commands(ctx, formatter)
        GlobalOptions.format_options(self, ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what ends it is reported here, where the command's name is known."""
        try:
            return super().invoke(ctx)
        except (SystemExit, click.exceptions.Exit):
            raise
        except BaseException as error:  # noqa: BLE001 - also Ctrl-C: everything that ends a command has its exit code
            return report(error, f"{ctx.command_path} {ctx.invoked_subcommand or ''}".strip())

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = None, *rest: Any, **extra: Any
    ) -> NoReturn:
        """Run and exit; never returns."""
        extra["standalone_mode"] = False
        _never_fail_on_a_character(sys.stdout, sys.stderr)
        try:
            code = super().main(args, prog_name or "leasekeeper", *rest, **extra)
            sys.stdout.flush()
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001 - see invoke
            code = report(error, prog_name or "leasekeeper")
        sys.exit(code if isinstance(code, int) else 0)


def _never_fail_on_a_character(*streams: object) -> None:
    """A terminal that cannot show a letter gets an escape instead of the user getting an error."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@click.command(
    "leasekeeper",
    cls=Program,
    invoke_without_command=True,
    no_args_is_help=False,
    params=global_options(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done; 1 a negative answer; 2 usage or configuration; 69 etcd unavailable; 75 not acquired in"
    " time; 76 authority lost; 77 permission denied. run: the command's own, 128+N for signal N.",
)
@click.version_option(__version__, prog_name="leasekeeper", message="%(prog)s %(version)s")
@click.pass_context
def program(ctx: click.Context) -> None:
    """Leases in etcd: many replicas run, one acts.

    A lease on a name has one owner at a time, a fencing token that grows with every owner, and heartbeats that keep it.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        sys.exit(USAGE)
