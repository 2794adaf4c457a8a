"""How commands speak: tables for people, JSON for programs, and notes on stderr for both.

On a terminal a table fits its width and nothing is cut off (see `tables`). Elsewhere each row is one line, however
long, for grep and awk. JSON is ASCII, so that nothing in it can act on a terminal either.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from leasekeeper.cli.text import one_line

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["json_line", "note", "print_json", "print_lines", "print_table", "styled"]


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


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Text]]) -> None:
    """A table."""
    from leasekeeper.cli.tables import fitted, unfolded

    listed = list(rows)
    _print(lambda width: fitted(headings, listed, width), lambda: unfolded(headings, listed))


def print_lines(lines: Iterable[Text]) -> None:
    """Lines of text, each folded to the terminal's width."""
    listed = list(lines)
    _print(lambda width: iter(listed), lambda: (line.plain.rstrip() for line in listed))
    sys.stdout.flush()


def _print(rendered: Callable[[int], Iterator[Any]], plain: Callable[[], Iterator[str]]) -> None:
    """Print what comes of a terminal's width, or, where there is none, plain lines."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if console.is_terminal:
        for one in rendered(console.width):
            console.print(one)
        return
    text = "".join(f"{line}\n" for line in plain())
    if text:
        click.echo(text, nl=False)
