"""Commands with the global options: each is taken before the command's name and after it; the later one wins."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import click

from leasekeeper.cli.settings import FORMATS, Settings
from leasekeeper.cli.values import SECONDS

__all__ = ["GlobalOptions", "LeaseCommand", "global_options", "lease_command"]

P = ParamSpec("P")

WAIT_ETCD = "Give up after so long without an answer from etcd; default 10s."

HEADING = "Global options (also before the command's name)"


class GlobalOption(click.Option):
    """An option whose value goes into the settings."""


def _note(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None:
        ctx.ensure_object(dict)[param.name] = value


def global_options(timeout_help: str = WAIT_ETCD) -> list[click.Parameter]:
    """New global options; ``timeout_help`` says what a timeout means for the command."""

    def option(
        *spelled: str, text: str, env: str, kind: click.ParamType[Any] | None = None, metavar: str
    ) -> GlobalOption:
        return GlobalOption(
            spelled,
            help=f"{text} [{env}]",
            type=kind,
            metavar=metavar,
            expose_value=False,
            callback=_note,
            is_eager=True,
        )

    return [
        option(
            "--endpoints",
            metavar="HOST:PORT,...",
            text="Members of etcd, also as http:// or https:// URLs; default 127.0.0.1:2379.",
            env="LEASEKEEPER_ENDPOINTS, ETCDCTL_ENDPOINTS",
        ),
        option("--namespace", metavar="NAME", text="Whose names; default 'default'.", env="LEASEKEEPER_NAMESPACE"),
        option(
            "--user",
            metavar="NAME[:PASSWORD]",
            text="The etcd user. Better give the password by LEASEKEEPER_PASSWORD, or type it when asked for.",
            env="LEASEKEEPER_USER, ETCDCTL_USER",
        ),
        option("--cacert", metavar="FILE", text="Certificates to trust.", env="LEASEKEEPER_CACERT, ETCDCTL_CACERT"),
        option("--cert", metavar="FILE", text="The client's certificate.", env="LEASEKEEPER_CERT, ETCDCTL_CERT"),
        option(
            "--key",
            metavar="FILE",
            text="The private key to it.",
            env="LEASEKEEPER_KEY or LEASEKEEPER_KEY_FILE, ETCDCTL_KEY",
        ),
        option("--timeout", metavar="DURATION", kind=SECONDS, text=timeout_help, env="LEASEKEEPER_TIMEOUT"),
        option(
            "-o",
            "--output",
            metavar="|".join(FORMATS),
            kind=click.Choice(FORMATS),
            text="For people or for programs; default table.",
            env="LEASEKEEPER_OUTPUT",
        ),
    ]


class GlobalOptions(click.Command):
    """Shows a command's own options apart from the global ones."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both sections."""
        own: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                (shared if isinstance(param, GlobalOption) else own).append(record)
        for heading, records in (("Options", own), (HEADING, shared)):
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class LeaseCommand(GlobalOptions):
    """A command with the global options."""

    def __init__(self, *args: Any, timeout_help: str = WAIT_ETCD, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += global_options(timeout_help)


def lease_command(
    name: str, *, cls: type[LeaseCommand] = LeaseCommand, **options: Any
) -> Callable[[Callable[Concatenate[Settings, P], int]], click.Command]:
    """Make a command of a function that is given the settings and returns the exit code."""

    def made(function: Callable[Concatenate[Settings, P], int]) -> click.Command:
        @wraps(function)
        def with_settings(*args: P.args, **kwargs: P.kwargs) -> int:
            return function(Settings.of(click.get_current_context()), *args, **kwargs)

        return click.command(name, cls=cls, **options)(with_settings)

    return made
