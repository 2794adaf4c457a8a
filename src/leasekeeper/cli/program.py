"""The program: the table of commands, loaded by name, and how every command ends."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

import click

from leasekeeper._version import __version__
from leasekeeper.cli.command import global_options
from leasekeeper.cli.exits import USAGE, report
from leasekeeper.cli.group import CommandTable, Table

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
    "runs": ("runs", "Look at runs, explain, export, verify, resolve and prune them."),
    "halt": ("halt", "Let no step of a run begin in a scope."),
    "unhalt": ("unhalt", "End a halt."),
    "epoch": ("epoch", "Show or raise the epoch, the high part of every token."),
    "doctor": ("doctor", "Examine etcd, the connection and the rights."),
    "migrate": ("migrate", "Check that stored states of every released version are still read."),
    "dev": ("dev", "Run a local etcd in the foreground."),
    "demo": ("demo", "Watch a lease survive a cut network."),
    "sim": ("sim", "Try to break every promise in simulated worlds."),
    "chaos": ("chaos", "Break a real cluster on purpose and check every promise."),
}


class Program(CommandTable):
    """The group of all commands. Every error ends in one line and an exit code; see `exits`."""

    table: ClassVar[Table] = COMMANDS
    package: ClassVar[str] = "leasekeeper.cli"

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
    " time; 76 authority lost, or the run is halted; 77 permission denied; 78 a run needs a person. run: the command's own,"
    " 128+N for signal N.",
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
