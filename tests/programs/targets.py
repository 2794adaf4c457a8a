"""Resources for `leasekeeper chaos --target`: a careless one, and one that is guarded by SQLite."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from pathlib import Path

from leasekeeper.guards import Bearer
from leasekeeper.guards.sqlite import Fence


def unfenced(resource: str, lease: Bearer, value: str) -> None:
    """Takes whatever comes."""


def crashes(resource: str, lease: Bearer, value: str) -> None:
    """Takes the first writes and then ends its process."""
    if value.endswith("/20"):
        os._exit(9)


def hangs(resource: str, lease: Bearer, value: str) -> None:
    """Takes the first writes and then never comes back."""
    if value.endswith("/20"):
        threading.Event().wait()


class Guarded:
    """Asks the fence of a database of its own."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(Path(tempfile.mkdtemp()) / "data.db", check_same_thread=False)
        with self._connection:
            Fence.create(self._connection)

    def write(self, resource: str, lease: Bearer, value: str) -> None:
        """One transaction."""
        with self._connection:
            Fence(self._connection).admit(resource, lease)


NOT_CALLABLE = 1
