"""``leasekeeper run``: a command that runs only while a lease is held."""

from __future__ import annotations

import os

import click

from leasekeeper.cli.command import LeaseCommand, lease_command
from leasekeeper.cli.exits import DONE, code_of
from leasekeeper.cli.interrupts import Interrupts
from leasekeeper.cli.output import note
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.taking import WAIT_LEASE, lease_options, take
from leasekeeper.cli.values import Seconds, name_argument
from leasekeeper.errors import ConfigError, LeaseLost

DEFAULT_GRACE_S = 10.0
GRACE_MAX_S = 86_400.0


def check_grace(grace_s: float) -> None:
    """ConfigError for more than a day."""
    if grace_s > GRACE_MAX_S:
        raise ConfigError(field="grace", value=grace_s, expected=f"at most {GRACE_MAX_S:g} seconds")


class RunCommand(LeaseCommand):
    """Options end where the command to run begins, with or without ``--``: what belongs to it is not looked at."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        """As click does, with options allowed on both sides of NAME."""
        extra["allow_interspersed_args"] = False
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put NAME and the command behind all options."""
        before, rest = self._options_first(ctx, args)
        if rest:
            name, after = rest[0], rest[1:]
            options, words = ([], after) if before[-1:] == ["--"] else self._options_first(ctx, after)
            args = [*_without_end(before), *_without_end(options), "--", name, *words]
        return super().parse_args(ctx, args)

    def _options_first(self, ctx: click.Context, args: list[str]) -> tuple[list[str], list[str]]:
        """The options that ``args`` begin with (and the ``--`` that ends them), and the rest."""
        options = [param for param in self.params if isinstance(param, click.Option)]
        _, rest, _ = click.Command(self.name, params=[*options]).make_parser(ctx).parse_args(list(args))
        return args[: len(args) - len(rest)], rest


def _without_end(options: list[str]) -> list[str]:
    return options[:-1] if options[-1:] == ["--"] else options


@lease_command("run", cls=RunCommand, timeout_help=WAIT_LEASE, options_metavar="[OPTIONS]")
@name_argument
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
@lease_options
@click.option(
    "--grace",
    type=Seconds(check_grace),
    metavar="DURATION",
    default=DEFAULT_GRACE_S,
    help="How long the command may take to obey TERM before it is killed; default 10s.",
)
def command(settings: Settings, name: str, cmd: tuple[str, ...], ttl: float | None, remark: str, grace: float) -> int:
    """Hold the lease on NAME while CMD runs.

    CMD and all processes that come from it are frozen while the lease cannot be proven, continued when it is proven again,
    and killed when it is lost (exit code 76). The lease is given back only when all of them are gone. CMD finds
    LEASEKEEPER_NAME, LEASEKEEPER_TOKEN and LEASEKEEPER_KEY in its environment; input, output and signals pass through. The exit
    code is CMD's own, 128+N if signal N ended it.
    """
    from leasekeeper.cli.supervise import supervise

    if not cmd or not cmd[0]:
        raise ConfigError(f"no command to run: write it after --, as in: leasekeeper run {name} -- CMD", field="CMD")
    status = DONE
    with Interrupts() as interrupts, settings.keeper() as keeper:
        _hand_down_key_file()
        try:
            with take(settings, keeper, name, ttl=ttl, remark=remark) as lease:
                status = supervise(lease, cmd, grace_s=grace, notify=note, listening=interrupts.queue).status
        except LeaseLost as lost:
            # A failure of the command's own says more than the loss; a success must not hide it.
            if status != DONE:
                return status
            note(str(lost))
            return code_of(lost)
    return status


def _hand_down_key_file() -> None:
    """LEASEKEEPER_KEY will be the claim's key: a private key's file that was in it goes on under its other name."""
    from leasekeeper.wire.environment import key_file

    if path := key_file(os.environ):
        os.environ["LEASEKEEPER_KEY_FILE"] = path
