"""The timeline on the screen: one line per thing that happened, as it happens."""

from __future__ import annotations

import threading
import time

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["Screen"]

COLOURS = {"A": "cyan", "B": "magenta", "C": "blue", "network": "yellow", "ledger": "red", "etcd": "white"}


class Screen:
    """Prints the story. Safe to call from any thread."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._begun = time.monotonic()
        self._lock = threading.Lock()

    def headline(self, text: str) -> None:
        """What comes now."""
        with self._lock:
            self._console.print()
            self._console.print(Text(text, style="bold"))

    def line(self, who: str, text: str, style: str = "") -> None:
        """Something happened."""
        at = f"{time.monotonic() - self._begun:6.1f} s  "
        with self._lock:
            self._console.print(
                Text.assemble((at, "dim"), (f"{who:<8}", COLOURS.get(who, "")), (text, style)), soft_wrap=True
            )

    def counts(self, rows: list[tuple[str, int]]) -> None:
        """The end: what it comes to."""
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for what, count in rows:
            table.add_row(what, Text(str(count), style="bold"))
        with self._lock:
            self._console.print()
            self._console.print(table)
