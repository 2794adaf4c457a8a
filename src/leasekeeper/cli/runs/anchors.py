"""Files of anchors that are named on the command line: they must be there, and be what they are given for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.cli.runs.source import read_exported
from leasekeeper.errors import ConfigError
from leasekeeper.run_errors import CorruptState
from leasekeeper.runs.anchor import FileAnchor, anchored_in
from leasekeeper.runs.anchored import BEGIN, changed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasekeeper.runs.anchored import Anchored

__all__ = ["anchor_in", "remembered_in"]


def anchor_in(file: str, option: str) -> FileAnchor:
    """The anchor whose file this is.

    Raises:
        ConfigError: there is no such file, or it is none of an anchor.
        CorruptState: it was changed.
    """
    next(remembered_in(file, option))
    with read_exported(file, option) as lines:
        if not any(line.startswith(BEGIN) for line in lines):
            expected = "a file that a FileAnchor keeps, not a log with its messages: nothing can be told to that"
            raise ConfigError(field=option, value=file, expected=expected)
    return FileAnchor(file)


def remembered_in(file: str, option: str) -> Iterator[Anchored]:
    """All that an anchor's file, or a log that a syslog server has collected, remembers, oldest first. Errors as `anchor_in`."""
    found = False
    with read_exported(file, option) as lines:
        try:
            for each in anchored_in(lines):
                found = True
                yield each
        except CorruptState as error:
            raise changed(f"{file}, {error.where}", error.why) from None
    if not found:
        expected = "a file of an anchor, or a log of its messages: no line in it is one of an anchor"
        raise ConfigError(field=option, value=file, expected=expected)
