"""How commands speak: tables for people, JSON for programs, and notes on stderr for both.

On a terminal a table fits its width, long words are folded and nothing is cut off. Elsewhere each row is one line, however
long, for grep and awk. JSON is ASCII, so that nothing in it can act on a terminal either.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from leasekeeper.cli.text import one_line

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["json_line", "note", "print_json", "print_lines", "print_table", "styled"]

# Wide enough for every row; only what a row needs is written.
UNLIMITED_WIDTH = 100_000


def print_json(value: Any) -> None:
    """One JSON value, indented."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def json_line(value: Any) -> None:
    """One JSON value on one line, written out at once."""
    click.echo(json.dumps(value, allow_nan=False))
    sys.stdout.flush()


def note(text: str) -> None:
    """One line to stderr, for a person who may be watching; when nobody does, what is being done goes on."""
    try:
        click.echo(f"leasekeeper: {one_line(text)}", err=True)
    except OSError:
        pass  # a pipe without a reader, a full disk: not worth a lease


def styled(text: str, style: str = "") -> Text:
    """Text that is shown as it is: markup in it means nothing. The caller has made it safe."""
    from rich.text import Text

    return Text(text, style=style, overflow="fold")


# Columns of numbers, and those that are worth less when they are broken: other columns give way first.
RIGHT = frozenset({"PLACE", "TOKEN", "AGE", "WAITING"})
WHOLE = RIGHT | {"LEASE", "TTL LEFT", "RESULT"}


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Text]]) -> None:
    """A table."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        justify: Literal["left", "right"] = "right" if heading in RIGHT else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=heading in WHOLE)
    for row in rows:
        table.add_row(*row)
    _print(table)


def print_lines(lines: Iterable[Text]) -> None:
    """Lines of text, each folded to the terminal's width."""
    from rich.console import Group

    _print(Group(*lines))
    sys.stdout.flush()


def _print(renderable: Any) -> None:
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if console.is_terminal:
        console.print(renderable)
        return
    console.width = UNLIMITED_WIDTH
    with console.capture() as captured:
        console.print(renderable)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())
