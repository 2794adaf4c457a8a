"""Whether a new export may take the place of a file that is there.

Exports are made again and again under one name, by a timer, and what happens to etcd in between shows in the new one: it was
damaged, or set back. So a good export of the same run that has all that the older one has takes its place, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasekeeper.protocol.bundle import Blob
from leasekeeper.protocol.keys import escape
from leasekeeper.run_errors import ILLEGIBLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import BinaryIO

    from leasekeeper.protocol.chain import Point
    from leasekeeper.protocol.verdict import Verdict
    from leasekeeper.runs.export import Export

    Verified = Callable[[BinaryIO, Iterable[Point]], Verdict]

__all__ = ["objection"]


@dataclass(frozen=True, slots=True)
class _Held:
    """What a file has beside its records: its whole large values, and the key that signed its footer."""

    values: frozenset[str]
    key_id: str


def objection(new: BinaryIO, old: BinaryIO, read: Callable[[BinaryIO], Export], verified: Verified) -> str:
    """Why a new export does not take the place of an older file; "": it does. Both are read from their beginning.

    Args:
        new, old: binary streams that can be rewound.
        read: `leasekeeper.runs.export.read_export`.
        verified: `leasekeeper.runs.export.verify_export`, given what is remembered of the run.
    """
    if not old.read(1):
        return ""
    try:
        before, after = _begun(old, read).header, _begun(new, read).header
    except ILLEGIBLE as error:
        return f"what is there is no export that can be read: {error.why}"
    if (before.workflow, before.id) != (after.workflow, after.id):
        return f"what is there is an export of {escape(before.workflow)}/{escape(before.id)}"
    if after.gen and before.gen != after.gen:
        return f"what is there is of generation {before.gen}, and the new one of {after.gen}"
    old.seek(0)
    known = verified(old, ())
    new.seek(0)
    verdict = verified(new, [(known.verified, known.hash)] if known.verified else ())
    if not verdict.ok:
        # What is remembered is not of an anchor here.
        why = verdict.why.replace(": an anchor ", ": what is there ")
        return f"what is there verifies up to record {known.verified}, and of the new one: {why}"
    return _lacking(_held(_begun(old, read)), _held(_begun(new, read)))


def _lacking(before: _Held, after: _Held) -> str:
    if before.key_id and not after.key_id:
        return f"what is there is signed by key {before.key_id!r}, and the new one would not be signed"
    missing = len(before.values - after.values)
    return f"what is there has {missing} large value(s) that the new one would not have" if missing else ""


def _begun(stream: BinaryIO, read: Callable[[BinaryIO], Export]) -> Export:
    stream.seek(0)
    return read(stream)


def _held(export: Export) -> _Held:
    values: set[str] = set()
    try:
        values.update(line.digest for line in export if isinstance(line, Blob) and line.whole)
        return _Held(frozenset(values), export.footer.key_id)
    except ILLEGIBLE:
        return _Held(frozenset(values), "")
