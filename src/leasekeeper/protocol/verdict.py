"""What is found of a chain of records, as data and as a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["BadKind", "Fault", "Rotation", "Verdict", "is_said", "sentence"]

BadKind = Literal[
    "corrupt",
    "newer",
    "changed",
    "removed",
    "swapped",
    "forked",
    "truncated",
    "forged",
    "unsigned",
    "unknown key",
    "other environment",
    "other run",
]

_SAID: dict[BadKind, str] = {
    "corrupt": "is corrupt",
    "newer": "is of a newer format",
    "changed": "was changed",
    "removed": "is missing",
    "swapped": "is out of its place",
    "forked": "is on another branch of history",
    "truncated": "was cut off, or what was before it set back",
    "forged": "is forged or changed",
    "unsigned": "is not signed",
    "unknown key": "is signed with an unexpected key",
    "other environment": "comes from another namespace",
    "other run": "belongs to another run",
}


@dataclass(frozen=True, slots=True)
class Rotation:
    """One key handed over to another in record ``seq``; ``old`` or ``new`` is empty for "not signed"."""

    seq: int
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Fault:
    """The first bad record, and what is wrong with it."""

    bad: int
    kind: BadKind
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far a chain can be believed.

    Args:
        verified: the number of the last record that is verified, as is each before it; 0: none.
        hash: the hash of that record; 64 zeros for none.
        bad: the number of the first bad one; None when there is none, or when what is bad is no record but a part of an export.
        kind: what is wrong there; None: nothing.
        why: all of it in a sentence for people.
        signed: whether signatures were verified, that is, whether a ring was given.
        complete: whether the head and the anchors that were given end with the last verified record: nothing that one of them
            knows was cut off.
        anchored: the number of the last verified record that an anchor confirms; 0: none.
        keys: the ids of the keys that signed, in the order of their first record; 64 at most.
        rotations: the verified changes of the key; 64 at most.
    """

    verified: int
    hash: str
    bad: int | None
    kind: BadKind | None
    why: str
    signed: bool
    complete: bool
    anchored: int = 0
    keys: tuple[str, ...] = ()
    rotations: tuple[Rotation, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing bad was found; see ``complete`` for what that says of the end."""
        return self.kind is None


def is_said(kind: BadKind) -> str:
    """The predicate that tells of a bad record."""
    return _SAID[kind]


def sentence(verified: int, fault: Fault | None, *, signed: bool, complete: bool) -> str:
    """A verdict for people."""
    believed = (
        f"records 1 to {verified} verify" if verified > 1 else "record 1 verifies" if verified else "no record verifies"
    )
    if fault is not None:
        return f"{believed}; {fault.why}"
    if not verified:
        return "there is no record"
    if not signed:
        believed += " by their hashes alone, which whoever can write records can make: no key was given"
    return believed if complete else f"{believed}; nothing here shows whether later ones were cut off"
