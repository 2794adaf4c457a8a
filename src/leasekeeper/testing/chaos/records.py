"""What is written down during a storm, and read back by the checker. Times are seconds of the boot clock since the start.

All processes of a storm run on one machine and share its boot clock, so their times can be compared. A time is always taken
on the safe side of what it stands for: before a gate is asked, after an acquire has returned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "OVER",
    "OWNING",
    "Attempt",
    "Blow",
    "Operation",
    "Residue",
    "Story",
    "Told",
    "json_lines",
    "read_lines",
    "replica_of",
    "turns_since",
]

# What a replica says while it owns, and when that is over.
OWNING = ("owner", "HELD", "SUSPENDED")
OVER = ("LOST", "RELEASED", "lost", "released")


def replica_of(holder: str) -> str:
    """The replica of a holder, which is one of its lives: "r1" of "r1.2"."""
    return holder.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One line of the ledger: a write that reached the resource, in order of arrival.

    ``gate_s`` is when its sender last looked at the clock before it asked the gate, so it passed the gate no earlier.
    """

    number: int
    at_s: float
    holder: str
    token: int
    claim: str
    work: str
    gate_s: float
    accepted: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """What a replica said of itself: it waits, owns, changed its state, released, or ended."""

    at_s: float
    who: str
    what: str
    token: int = 0
    claim: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Blow:
    """One fault of the schedule: what befalls whom, when, and for how long.

    ``target`` is the number of a replica or of a member; None leaves the choice to the moment (the owner, the leader).
    """

    at_s: float
    kind: str
    target: int | None
    lasts_s: float

    @property
    def until_s(self) -> float:
        """When it is to end."""
        return self.at_s + self.lasts_s


@dataclass(frozen=True, slots=True)
class Operation:
    """What the director really did: a blow as it was struck, or an operator's hand on a claim."""

    at_s: float
    until_s: float
    kind: str
    who: str
    tokens: tuple[int, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Residue:
    """What was left in etcd when every client was gone and every TTL was out."""

    claims: tuple[str, ...] = ()
    leases: tuple[str, ...] = ()


@dataclass(slots=True)
class Story:
    """Everything that is known of one storm."""

    seed: int
    ttl_s: float
    replicas: int
    seconds: float
    calm_s: float = 0.0
    end_s: float = 0.0
    # By the wall clock, for people and for the age of a proof.
    ended_at_s: float = 0.0
    attempts: list[Attempt] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    residue: Residue = field(default_factory=Residue)
    # Replicas that ended by themselves: ``detail`` is how, with the last that each said.
    deaths: list[Told] = field(default_factory=list)
    workload: str = "lease"
    # Why the storm was broken off; "" for one that came to its end.
    stopped: str = ""
    left_out: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file of lines. A last line that was cut off by a kill is left out; any other is an error."""
    yield from json_lines(path.read_bytes() if path.exists() else b"")


def json_lines(data: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects in whole lines of ``data``."""
    for line in data.split(b"\n")[:-1]:
        if line.startswith(b"{"):
            yield json.loads(line)


def turns_since(told: Iterable[Told], at_s: float) -> set[str]:
    """The replicas that came to own after a moment."""
    return {replica_of(line.who) for line in told if line.what == "owner" and line.at_s > at_s}
