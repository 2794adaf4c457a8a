"""``leasekeeper show``: one name, its owner and its queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from leasekeeper.cli import phrases
from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE, NEGATIVE
from leasekeeper.cli.look import Queue, queue_of
from leasekeeper.cli.output import print_json, print_lines, print_table, styled
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.shapes import queue_shape, seen_shape
from leasekeeper.cli.text import clip, lease_hex, moment, one_line, plural
from leasekeeper.cli.values import name_argument

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.text import Text

    from leasekeeper.cli.standing import Seen

LABEL_WIDTH = 12
HEADINGS = ("PLACE", "HOLDER", "TOKEN", "LEASE", "AGE", "TTL LEFT")


@lease_command("show")
@name_argument
def command(settings: Settings, name: str) -> int:
    """Show who owns NAME and who waits for it, in order.

    Exits with 1 when nobody claims it. The lock key is what to give to `etcdctl lock` to stand in the same queue. With the owner
    comes the command that removes its claim, for one that hangs or is gone; one that lives may have something to record yet.
    """
    with settings.keeper() as keeper:
        queue = queue_of(keeper._core, name, settings.ask_s)
    if settings.as_json:
        waiters = [seen_shape(seen, queue.read_at) for seen in queue.seen[1:]]
        print_json({**queue_shape(queue), "waiters": waiters})
    else:
        show(queue, settings.command_line)
    return DONE if queue.owner is not None else NEGATIVE


def show(queue: Queue, command_line: Callable[..., str]) -> None:
    """Print the page. ``command_line`` makes a command to copy of its name, what it is about and its options."""
    lines = [styled(clip(queue.name, 255), "bold"), _field("lock key", styled(clip(queue.lock_key, 1000)))]
    if queue.owner is None:
        print_lines([*lines, _field("owner", styled("nobody; the name is free"))])
        return
    print_lines([*lines, *_owner(queue.owner, queue.read_at)])
    print_lines(
        [_field("remove", styled("only if it hangs or is gone; one that lives may have something to record yet:"))]
    )
    # Not folded: it is there to be copied.
    click.echo(one_line(f"    {command_line('break', queue.name, token=str(queue.owner.claim.token))}"))
    if queue.waiting:
        print_lines([styled(""), styled(f"{plural(queue.waiting, 'claim')} waiting", "bold")])
        _waiters(queue)


def _owner(seen: Seen, read_at: float) -> list[Text]:
    claim = seen.claim
    lines = [_field("owner", phrases.holder(claim))]
    if claim.host or claim.pid:
        lines.append(_field("process", styled(f"{claim.pid or '?'} on {clip(claim.host) or '?'}")))
    if claim.note:
        lines.append(_field("note", styled(clip(claim.note, 1000))))
    lines.append(_field("token", styled(str(claim.token))))
    if claim.claimed_at is not None:
        since = phrases.age(claim, read_at).append(f", since {moment(claim.claimed_at) or 'a time that is none'}")
        lines.append(_field("age", since))
    granted = f" of {seen.granted_s} s" if seen.granted_s else ""
    lines.append(_field("TTL left", phrases.time_left(seen).append(granted)))
    lines.append(
        _field("lease", styled(lease_hex(claim.lease_id) if claim.lease_id else "none: it never goes by itself"))
    )
    lines.append(_field("key", styled(clip(claim.key, 1000))))
    return lines


def _field(label: str, value: Text) -> Text:
    return styled(f"  {label:<{LABEL_WIDTH}}", "dim").append_text(value)


def _waiters(queue: Queue) -> None:
    rows = [
        (
            styled(str(place)),
            phrases.holder(seen.claim),
            styled(str(seen.claim.token)),
            styled(lease_hex(seen.claim.lease_id) if seen.claim.lease_id else phrases.NOBODY),
            phrases.age(seen.claim, queue.read_at),
            phrases.time_left(seen),
        )
        for place, seen in enumerate(queue.seen[1:], 2)
    ]
    print_table(HEADINGS, rows)
