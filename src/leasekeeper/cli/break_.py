"""``leasekeeper break``: remove an owner that will not go, and nobody else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from leasekeeper.cli import phrases
from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE, NEGATIVE
from leasekeeper.cli.output import note, print_json
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.shapes import claim_shape
from leasekeeper.cli.text import one_line
from leasekeeper.cli.values import TOKEN, name_argument
from leasekeeper.errors import ConfigError
from leasekeeper.protocol import inspect
from leasekeeper.protocol.evict import Evicted, evict

if TYPE_CHECKING:
    from leasekeeper.protocol.keys import Claim
    from leasekeeper.runtime.core import Core


@lease_command("break")
@name_argument
@click.option("--token", type=TOKEN, required=True, metavar="TOKEN", help="The token of the owner to remove.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def command(settings: Settings, name: str, token: int, yes: bool) -> int:
    """Remove the claim that owns NAME, if TOKEN is its token.

    Deletes the claim's key by compare, so a newer owner is never hit; exits with 1 when TOKEN is not the owner's (any more).
    The owner, if it lives, learns of it and its lease is LOST; until then only the fence at the resource holds it back. Works
    for claims without a lease and for those of other programs, too; needs no rights but to write the namespace's keys.
    """
    with settings.keeper() as keeper:
        core = keeper._core
        owner: Claim | None = core.run(inspect.owner(core.ctx, name, core.until(settings.ask_s)))
        if owner is None or owner.token != token:
            return _tell(settings, name, token, Evicted(None, owner))
        if not yes and not _agreed(name, owner):
            note("nothing was removed")
            return NEGATIVE
        return _tell(settings, name, token, _evict(core, name, token, settings.ask_s))


def _evict(core: Core, name: str, token: int, ask_s: float) -> Evicted:
    evicted: Evicted = core.run(evict(core.ctx, name, token, core.until(ask_s)))
    return evicted


def _agreed(name: str, owner: Claim) -> bool:
    click.echo(one_line(f"{name!r} is owned by {phrases.who(owner)}."), err=True)
    click.echo("Remove this claim? The owner may go on for a moment before it notices. [y/N] ", nl=False, err=True)
    answer = sys.stdin.readline() if sys.stdin is not None else ""
    if not answer:
        click.echo(err=True)
        raise ConfigError("nobody is there to answer: say --yes", field="--yes")
    return answer.strip().lower() in ("y", "yes")


def _tell(settings: Settings, name: str, token: int, evicted: Evicted) -> int:
    if settings.as_json:
        owner = None if evicted.owner is None else claim_shape(evicted.owner)
        print_json({"name": name, "token": str(token), "removed": evicted.gone is not None, "owner": owner})
    else:
        click.echo(one_line(_sentence(name, token, evicted)))
    return NEGATIVE if evicted.gone is None else DONE


def _sentence(name: str, token: int, evicted: Evicted) -> str:
    now = f"the owner is {phrases.who(evicted.owner)}" if evicted.owner else "nobody owns it"
    if evicted.gone is None:
        return f"nothing was removed: token {token} does not own {name!r}; {now}"
    if evicted.by_itself:
        return f"the claim with token {token} on {name!r} went by itself; now {now}"
    return f"removed the claim with token {token} on {name!r}; now {now}"
