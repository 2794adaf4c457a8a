"""``leasekeeper ls``: who owns what."""

from __future__ import annotations

import click

from leasekeeper.cli import phrases
from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE
from leasekeeper.cli.look import Queue, queues
from leasekeeper.cli.output import note, print_json, print_table, styled
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.shapes import queue_shape
from leasekeeper.cli.text import clip
from leasekeeper.cli.values import PREFIX

HEADINGS = ("NAME", "HOLDER", "TOKEN", "AGE", "TTL LEFT", "WAITING")


@lease_command("ls")
@click.argument("prefix", type=PREFIX, required=False)
def command(settings: Settings, prefix: str | None) -> int:
    """List the names that begin with PREFIX, or all, with their owners.

    TTL LEFT is how long etcd will keep the owner's claim at least if no heartbeat comes; it is no promise that the name is
    free then. OVERDUE means that the time is over and the claim still stands.
    """
    with settings.keeper() as keeper:
        found = queues(keeper._core, prefix or "", settings.ask_s)
    if settings.as_json:
        print_json([queue_shape(queue) for queue in found])
    elif found:
        show(found)
    else:
        note("nobody claims a name here" if prefix is None else f"nobody claims a name that begins with {prefix!r}")
    return DONE


def show(found: list[Queue]) -> None:
    """Print the table."""
    rows = []
    for queue in found:
        if (owner := queue.owner) is None:
            continue
        rows.append(
            (
                styled(clip(queue.name, 255)),
                phrases.holder(owner.claim),
                styled(str(owner.claim.token)),
                phrases.age(owner.claim, queue.read_at),
                phrases.time_left(owner),
                styled(str(queue.waiting)),
            )
        )
    print_table(HEADINGS, rows)
