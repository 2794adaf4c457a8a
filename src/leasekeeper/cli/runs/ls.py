"""``leasekeeper runs ls``: which runs there are, and how they stand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from leasekeeper.cli import phrases
from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE
from leasekeeper.cli.output import note, print_json, print_table, styled
from leasekeeper.cli.runs.remedies import passes
from leasekeeper.cli.runs.shapes import listed_shape
from leasekeeper.cli.runs.words import status_word
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.text import clip, short_duration
from leasekeeper.cli.values import PREFIX
from leasekeeper.protocol import halt as halting
from leasekeeper.protocol.run_look import Listed, list_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from leasekeeper.protocol.halt import Halt
    from leasekeeper.runtime.core import Core

__all__ = ["command", "listed"]

HEADINGS = ("RUN", "STATUS", "OWNER", "RECORDS", "DONE", "IN DOUBT", "RESTARTS", "AGE")
STYLES = {"in_doubt": "bold red", "quarantined": "bold red", "finished": "dim"}
UNREADABLE = "unreadable"


@lease_command("ls")
@click.argument("prefix", type=PREFIX, required=False)
@click.option("--stuck", "stuck", is_flag=True, help="Only those that need a person.")
def command(settings: Settings, prefix: str | None, stuck: bool) -> int:
    """List the runs whose WORKFLOW/ID begins with PREFIX, or all, and how they stand.

    OWNER is who holds its lease now; AGE how long ago its last record was written. A run that nobody owns and whose last life
    ended by an error is listed as stopped, with the error's type. A run that a halt covers is marked "halted"; one whose head
    cannot be read is listed as unreadable. --stuck: only runs that are in doubt, quarantined, unreadable, or stopped by an error
    that the next life may meet again.
    """
    with settings.keeper() as keeper:
        core = keeper._core
        halts: list[Halt] = core.run(halting.read_all(core.ctx, core.until(settings.ask_s)))
        found = [each for each in listed(core, prefix or "", settings.ask_s, ends=True) if not stuck or is_stuck(each)]
    if settings.as_json:
        print_json([{**listed_shape(one, halts, time.time()), "stuck": is_stuck(one)} for one in found])
    elif found:
        print_table(HEADINGS, [_row(one, halts, time.time()) for one in found])
    else:
        what = "no run that needs a person" if stuck else "no run"
        note(f"there is {what} here" if prefix is None else f"there is {what} whose name begins with {prefix!r}")
    return DONE


def is_stuck(one: Listed) -> bool:
    """Whether a run needs a person, as far as head and last record tell."""
    if one.view is None or one.view.status in ("in_doubt", "quarantined"):
        return True
    return _stop(one) != "" and not passes(_stop(one))


def _stop(one: Listed) -> str:
    """The type of what stopped a run that nobody owns; "" where nothing did that it could tell."""
    return one.error or (one.last.capitalize() if one.last in ("conflict", "drift") else "")


def listed(core: Core, prefix: str, ask_s: float, *, ends: bool = False) -> Iterator[Listed]:
    """All runs whose text begins with ``prefix``, read page by page; with ``ends``, also what ended their last lives."""
    start: bytes | None = None
    while True:
        found, start = core.run(list_page(core.ctx, prefix, start, core.until(ask_s), ends=ends))
        yield from found
        if start is None:
            return


def _status(one: Listed) -> Text:
    if one.view is None:
        return styled(UNREADABLE, "bold red")
    if stop := _stop(one):
        return styled(f"stopped: {clip(stop, 60)}", "bold red" if is_stuck(one) else "")
    return styled(status_word(one.view.status), STYLES.get(one.view.status, ""))


def _row(one: Listed, halts: Sequence[Halt], now_s: float) -> tuple[Text, ...]:
    view = one.view
    status = _status(one)
    if halting.covering(halts, one.run) is not None:
        status.append(", halted", "yellow")
    owner = styled("free", "dim") if one.owner is None else phrases.holder(one.owner)
    if view is None:
        return (
            styled(clip(one.run, 255)),
            status.append(f": {clip(one.why)}"),
            owner,
            *(styled("-", "dim") for _ in range(5)),
        )
    age = styled(short_duration(max(0.0, now_s - view.at_ms / 1000)))
    counts = (view.seq, view.steps_done, len(view.in_doubt), view.restarts)
    return styled(clip(one.run, 255)), status, owner, *(styled(str(count)) for count in counts), age
