"""Tables: on a terminal as wide as it is, nothing cut off, and no column so narrow that its words cannot be read.

Three layouts, the first that fits: a table; a table whose first column stands on lines of its own; a line for each cell, with its
heading. Numbers and durations are never broken; names and other text are folded, but not into less than `READABLE` characters.

Elsewhere, in a file or a pipe, a table is as wide as it needs to be, and laid out here: that takes a tenth of rich's time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

__all__ = ["fitted", "unfolded"]

# Columns of numbers, and those that are worth less when they are broken: other columns give way first.
RIGHT = frozenset({"PLACE", "TOKEN", "AGE", "WAITING", "RECORD", "RECORDS", "DONE", "IN DOUBT", "RESTARTS", "LIFE"})
WHOLE = RIGHT | {"LEASE", "TTL LEFT", "RESULT"}
READABLE = 20
GAP = 2
INDENT = 2

Rows = Sequence[Sequence["Text"]]


def fitted(headings: Sequence[str], rows: Rows, width: int) -> Iterator[Any]:
    """What to print for a table on ``width`` columns."""
    if widths := _widths(headings, rows, width):
        yield _grid(headings, [_bold(headings), *rows], widths)
    elif widths := _widths(headings[1:], [row[1:] for row in rows], width - INDENT):
        yield from _first_apart(headings, rows, widths)
    else:
        yield from _by_cells(headings, rows, width)


def unfolded(headings: Sequence[str], rows: Rows) -> Iterator[str]:
    """The lines of a table that has all the room it needs; a cell of several lines has them below each other."""
    from rich.cells import cell_len

    cells = [[[heading] for heading in headings], *([cell.plain.split("\n") for cell in row] for row in rows)]
    measured = [[[(line, cell_len(line)) for line in cell] for cell in row] for row in cells]
    widths = [max(length for cell in column for _, length in cell) for column in zip(*measured, strict=True)]
    for row in measured:
        for lines in zip_longest(*row, fillvalue=("", 0)):
            padded = []
            for (line, length), heading, width in zip(lines, headings, widths, strict=True):
                room = " " * (width - length)
                padded.append(room + line if heading in RIGHT else line + room)
            yield (" " * GAP).join(padded).rstrip()


def _widths(headings: Sequence[str], rows: Rows, width: int) -> list[int]:
    """How wide each column is; empty when they cannot be had side by side."""
    natural = [
        max(len(heading), *(_length(row[column]) for row in rows)) if rows else len(heading)
        for column, heading in enumerate(headings)
    ]
    least = [n if heading in WHOLE else min(n, READABLE) for heading, n in zip(headings, natural, strict=True)]
    spare = width - sum(least) - GAP * (len(headings) - 1)
    if spare < 0:
        return []
    # The room that is left goes to the columns that can use it, from the one that needs the least.
    given = list(least)
    wanting = sorted((n - g, column) for column, (n, g) in enumerate(zip(natural, given, strict=True)) if n > g)
    for position, (more, column) in enumerate(wanting):
        share = min(more, spare // (len(wanting) - position))
        given[column] += share
        spare -= share
    return given


def _length(cell: Text) -> int:
    return max((line.cell_len for line in cell.split("\n")), default=0)


def _grid(headings: Sequence[str], rows: Rows, widths: Sequence[int], indent: int = 0) -> Table:
    from rich.table import Table

    grid = Table(box=None, show_header=False, pad_edge=True, padding=(0, 0, 0, 0))
    for column, (heading, width) in enumerate(zip(headings, widths, strict=True)):
        before = indent if column == 0 else GAP
        justify: Literal["left", "right"] = "right" if heading in RIGHT else "left"
        if before:
            grid.add_column(width=before)
        grid.add_column(width=width, justify=justify, overflow="fold")
    for row in rows:
        cells: list[Text | str] = []
        for column, cell in enumerate(row):
            cells += ["", cell] if indent or column else [cell]
        grid.add_row(*cells)
    return grid


def _bold(headings: Sequence[str]) -> list[Text]:
    from rich.text import Text

    return [Text(heading, style="bold") for heading in headings]


def _first_apart(headings: Sequence[str], rows: Rows, widths: Sequence[int]) -> Iterator[Any]:
    for first, *rest in [_bold(headings), *rows]:
        yield first
        yield _grid(headings[1:], [rest], widths, INDENT)


def _by_cells(headings: Sequence[str], rows: Rows, width: int) -> Iterator[Any]:
    labels = _bold(headings)[1:]
    label_width = max((label.cell_len for label in labels), default=0)
    cell_width = max(1, width - INDENT - label_width - GAP)
    for first, *rest in rows:
        yield first
        yield _grid(("", ""), list(zip(labels, rest, strict=True)), (label_width, cell_width), INDENT)
