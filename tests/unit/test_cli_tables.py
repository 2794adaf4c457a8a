"""Tables on terminals of every width: nothing is cut off, numbers are whole, names can be read."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from leasekeeper.cli.output import styled
from leasekeeper.cli.tables import READABLE, fitted, unfolded

HEADINGS = ("NAME", "HOLDER", "TOKEN", "AGE", "TTL LEFT", "WAITING")
TOKEN = "9223372036854775807"
LONG = "".join(chr(97 + i % 26) for i in range(255))
ROWS = [
    ("rotate-certs/prod", "ip-10-0-13-7:31337:deadbeef", TOKEN, "12m05s", "at least 597 s", "12"),
    ("[red]x[/red]", "-", "17", "2s", "OVERDUE by 5 s", "0"),
    (LONG, "名前のとても長い名前です", TOKEN, "-", "expiring", "0"),
]


def lines(width: int, rows: Sequence[tuple[str, ...]] = ROWS, headings: tuple[str, ...] = HEADINGS) -> list[str]:
    """What a terminal of this width shows."""
    screen = Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False, color_system=None)
    for one in fitted(headings, [[styled(cell) for cell in row] for row in rows], width):
        screen.print(one)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 41, 50, 60, 72, 80, 99, 100, 101, 132, 200, 400])
def test_nothing_is_cut_off(width: int) -> None:
    """Every character of every cell is there, numbers and durations in one piece, and no line is too long."""
    shown = lines(width)
    text = "".join("".join(shown).split())
    for row in ROWS:
        for cell in row[2:]:
            assert any(cell in line for line in shown)
    assert "…" not in text
    # Folded text stands in several lines, with the rest of the row between them: its pieces are looked for one by one.
    assert all(LONG[i : i + READABLE // 2] in text for i in range(0, 255 - READABLE, READABLE))
    assert all(styled(line).cell_len <= width for line in shown)


def test_names_are_not_squeezed_by_long_tokens() -> None:
    """On 80 columns, with tokens of 19 digits, names and holders are whole words still."""
    shown = lines(80, ROWS[:2])
    assert "rotate-certs/prod" in "\n".join(shown)
    assert "ip-10-0-13-7:31337:d" in "\n".join(shown)
    assert len(shown) <= 8


def test_what_fits_is_one_line_each() -> None:
    """Where there is room each row is one line below the headings."""
    wide = lines(400)
    assert len(wide) == 4
    assert wide[0].split() == ["NAME", "HOLDER", "TOKEN", "AGE", "TTL", "LEFT", "WAITING"]
    small = lines(80, [("jobs", "worker-1", TOKEN, "2s", "expiring", "0")])
    assert len(small) == 2


def test_without_a_terminal_a_table_looks_as_on_a_wide_one() -> None:
    """Also where letters are two columns wide and cells have several lines."""
    wide = 1000
    assert list(unfolded(HEADINGS, [[styled(cell) for cell in row] for row in ROWS])) == [
        line.rstrip() for line in lines(wide)
    ]
    headings = ("RESULT", "WHERE", "WHAT")
    rows = [("error", "a:1", "it fails\n→ do this"), ("ok", "名前", "fine")]
    assert list(unfolded(headings, [[styled(cell) for cell in row] for row in rows])) == [
        line.rstrip() for line in lines(wide, rows, headings)
    ]
    assert list(unfolded(HEADINGS, [])) == [line.rstrip() for line in lines(wide, [])]


def test_an_empty_table_is_its_headings() -> None:
    """No rows are no error."""
    assert lines(80, [])[0].split()[0] == "NAME"
