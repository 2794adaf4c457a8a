"""What a run's anchors remember of it as it is entered, and a word to people about one that should and does not."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasekeeper.protocol.head import Head
    from leasekeeper.runs.anchor import Anchor

__all__ = ["Marks", "marks", "warn_of_silence"]

log = logging.getLogger("leasekeeper")

# A hash that no record has.
NO_RECORDS = ""


@dataclass(frozen=True, slots=True)
class Marks:
    """Numbers and hashes of records; the files of the anchors that have one; and those that can answer and know nothing."""

    known: dict[int, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    silent: tuple[Anchor, ...] = ()


def marks(anchors: Sequence[Anchor], run: str, gen: int) -> Marks:
    """What anchors remember of a generation of a run: its last record by each. Two that disagree are right of none there is."""
    known: dict[int, str] = {}
    silent = []
    for anchor in anchors:
        head = anchor.last(run, gen)
        if head is None:
            silent += [anchor] if getattr(anchor, "answers", True) else []
        else:
            known[head.seq] = head.hash if known.get(head.seq, head.hash) == head.hash else NO_RECORDS
    files = (getattr(anchor, "file", None) for anchor in anchors)
    return Marks(known, tuple(str(file) for file in files if file), tuple(silent))


def warn_of_silence(run: str, head: Head, found: Marks) -> None:
    """Log it where an anchor knows nothing of a run that has done steps: it was added since, or what it remembered is lost.

    No reason to stop: nobody can tell these two apart, and an anchor that is added has to be let begin.
    """
    if not head.done:
        return  # an anchor is told after a step at the latest
    for anchor in found.silent:
        log.warning(
            "run %s: %r remembers nothing of it, and it has %d records: unless the anchor is a new one, what it remembered is"
            " lost, and that the run was set back before now it cannot show",
            run,
            anchor,
            head.seq,
        )
