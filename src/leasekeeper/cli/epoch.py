"""``leasekeeper epoch``: the high part of every token, to be raised after etcd was restored from a backup."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import click

from leasekeeper.cli.command import GlobalOptions, global_options, lease_command
from leasekeeper.cli.exits import DONE
from leasekeeper.cli.output import print_json
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.text import clip, moment
from leasekeeper.cli.values import TOKEN
from leasekeeper.protocol import epoch as plans

if TYPE_CHECKING:
    from leasekeeper.protocol.keys import Epoch


MARK = re.compile(r" [0-9a-f]{24}\Z")


class EpochGroup(click.Group, GlobalOptions):
    """The two commands, with the global options between ``epoch`` and them as well."""


@click.command("epoch", cls=EpochGroup, params=global_options(), invoke_without_command=True, no_args_is_help=False)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show or raise the epoch of the namespace.

    A restore from a backup takes etcd's revision back, so tokens could repeat. Raise the epoch after every restore: all tokens
    handed out from then on are larger than all before.
    """
    if ctx.invoked_subcommand is None:
        raise click.UsageError("missing command: show or bump")


@lease_command("show")
def show(settings: Settings) -> int:
    """Show the epoch, and when it was raised by whom."""
    with settings.keeper() as keeper:
        core = keeper._core
        epoch: Epoch = core.run(plans.read(core.ctx, core.until(settings.ask_s)))
    at, by = _record(epoch)
    if settings.as_json:
        print_json({"epoch": epoch.number, "at": moment(at), "by": by})
    elif epoch.stored is None:
        click.echo("epoch 0: it was never raised")
    else:
        click.echo(f"epoch {epoch.number}, raised {moment(at) or 'at an unknown time'} by {clip(_who(by))}")
    return DONE


@lease_command("bump")
@click.option(
    "--above", type=TOKEN, metavar="TOKEN", help="A token that was seen anywhere: the new epoch is above it as well."
)
def bump(settings: Settings, above: int | None) -> int:
    """Raise the epoch. Do it after every restore, before anything is acquired.

    Leases that are held go on under their old tokens; whoever acquires from now on gets larger ones. The new epoch follows
    from the time, so that a second restore of the same backup does not hand it out again; the answer says from when on. Before
    that, give a token that was handed out in between with --above.
    """
    with settings.keeper(person=True) as keeper:
        core = keeper._core
        before: Epoch = core.run(plans.read(core.ctx, core.until(settings.ask_s)))
        after: Epoch = core.run(plans.bump(core.ctx, core.until(settings.ask_s), above or 0))
    until = moment(plans.may_repeat_until(after.number))
    if settings.as_json:
        print_json({"epoch": after.number, "before": before.number, "may_repeat_until": until})
    else:
        click.echo(f"the epoch is now {after.number}; it was {before.number}. New tokens are larger than all before.")
        click.echo(f"If the same backup is restored again before {until}, use --above with a token handed out by then.")
    return DONE


command.add_command(show)
command.add_command(bump)


def _who(by: str | None) -> str:
    """Without the mark at its end that tells one bump from another, which means nothing to people."""
    return MARK.sub("", by or "") or "somebody"


def _record(epoch: Epoch) -> tuple[float | None, str | None]:
    """When and by whom; whatever else stands in the record, its number has been read."""
    fields: dict[str, Any] = json.loads(epoch.stored) if epoch.stored is not None else {}
    at, by = fields.get("at"), fields.get("by")
    good_time = isinstance(at, (int, float)) and not isinstance(at, bool)
    return at if good_time else None, by if isinstance(by, str) else None
