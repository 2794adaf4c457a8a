"""``leasekeeper verify``: whether a token is the owner's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from leasekeeper.cli import phrases
from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE, NEGATIVE
from leasekeeper.cli.output import print_json
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.shapes import claim_shape
from leasekeeper.cli.text import one_line
from leasekeeper.cli.values import TOKEN, name_argument
from leasekeeper.protocol import inspect

if TYPE_CHECKING:
    from leasekeeper.protocol.keys import Claim


@lease_command("verify")
@name_argument
@click.argument("token", type=TOKEN)
def command(settings: Settings, name: str, token: int) -> int:
    """Tell whether TOKEN is that of NAME's owner at this moment.

    Exits with 0 if it is and with 1 if not. It may be over a moment later: what must not go wrong belongs behind the fence.
    """
    with settings.keeper() as keeper:
        core = keeper._core
        owner: Claim | None = core.run(inspect.owner(core.ctx, name, core.until(settings.ask_s)))
    valid = owner is not None and owner.token == token
    if settings.as_json:
        shape = None if owner is None else claim_shape(owner)
        print_json({"name": name, "token": str(token), "valid": valid, "owner": shape})
    else:
        click.echo(one_line(_sentence(name, token, owner, valid)))
    return DONE if valid else NEGATIVE


def _sentence(name: str, token: int, owner: Claim | None, valid: bool) -> str:
    if owner is None:
        return f"no: nobody owns {name!r}"
    if not valid:
        return f"no: {name!r} is owned by {phrases.who(owner)}"
    return f"yes: token {token} is the owner's of {name!r}: {phrases.who(owner)}"
