"""What etcd held of runs, read for the judge: each run's records with their revisions, in words of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from leasekeeper.testing.chaos.runs.etcd import body_of
from leasekeeper.testing.chaos.runs.records import WORKFLOW, Era, RunsStory

__all__ = ["Record", "RunRead", "Witness", "read_era", "witness"]

# The epoch is the part of a token above these bits.
EPOCH_BITS = 44
BEGUN = ("intent", "before")


@dataclass(frozen=True, slots=True)
class Record:
    """One record: what it says, its bytes, and the revision of etcd that wrote it."""

    run: str
    seq: int
    body: Mapping[str, Any]
    value: bytes
    revision: int
    version: int

    @property
    def kind(self) -> str:
        """What it records."""
        return str(self.body.get("kind", ""))

    @property
    def step(self) -> str:
        """Of which step; "" for none."""
        return str(self.body.get("step", ""))

    @property
    def data(self) -> Mapping[str, Any]:
        """What it says of that."""
        data = self.body.get("data")
        return data if isinstance(data, dict) else {}

    @property
    def token(self) -> int:
        """Under which it was written; 0: by an operator."""
        text = str(self.body.get("token", ""))
        return int(text) if text.isdigit() else -1

    @property
    def claim(self) -> str:
        """Whose: the claim's nonce."""
        return str(self.body.get("claim", ""))

    @property
    def life(self) -> str:
        """In which life of the run."""
        return str(self.body.get("life", ""))

    @property
    def holder(self) -> str:
        """By whom."""
        return str(self.body.get("holder", ""))

    @property
    def attempt(self) -> int:
        """Of an intent: the how-manieth call it is for."""
        return int(self.data.get("attempt", 0))

    def __str__(self) -> str:
        return f"record {self.seq} of {self.run} ({self.kind}{f' of {self.step}' if self.step else ''}, {self.holder})"


@dataclass(slots=True)
class RunRead:
    """One run as it stood at the end of an era."""

    id: str
    records: list[Record] = field(default_factory=list)
    head: Mapping[str, Any] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)
    kept: dict[str, bytes] = field(default_factory=dict)
    late: int = 0


def read_era(era: Era) -> dict[str, RunRead]:
    """The runs of an era, by id."""
    found: dict[str, RunRead] = {}
    for key, stored in sorted(era.keys.items()):
        parts = key.split("/")
        if len(parts) < 3 or parts[0] != WORKFLOW:
            continue
        run = found.setdefault(parts[1], RunRead(parts[1]))
        match parts[2:]:
            case ["r", digits]:
                body = body_of(stored.value)
                run.records.append(
                    Record(parts[1], int(digits), body, stored.value, stored.mod_revision, stored.version)
                )
            case ["head"]:
                run.head = body_of(stored.value)
            case ["step", step]:
                run.steps[step] = str(body_of(stored.value).get("state"))
            case ["ck", name]:
                run.kept[name] = stored.value
            case ["late", *_]:
                run.late += 1
    return found


@dataclass(slots=True)
class Witness:
    """A story with its eras read: ``eras`` in order, ``last`` the final one, ``lost`` the records that a restore took away."""

    story: RunsStory
    eras: list[dict[str, RunRead]]
    lost: dict[str, list[Record]]

    @property
    def last(self) -> dict[str, RunRead]:
        """The runs as they stand at the end."""
        return self.eras[-1] if self.eras else {}

    def all_records(self) -> Iterator[Record]:
        """Every record that there was, lost ones first, each once."""
        for records in self.lost.values():
            yield from records
        for run in self.last.values():
            yield from run.records

    def at_s(self, record: Record) -> float:
        """About when it was written, by its writer's wall clock; within the storm."""
        at_ms = record.body.get("at")
        at_s = (at_ms if isinstance(at_ms, int) else 0) / 1000 - self.story.wall_s
        return min(max(at_s, 0.0), self.story.end_s)


def witness(story: RunsStory) -> Witness:
    """Read everything once."""
    eras = [read_era(era) for era in story.eras]
    lost: dict[str, list[Record]] = {}
    for era, after in pairwise(eras):
        for name, run in era.items():
            still = {record.value for record in after[name].records} if name in after else set()
            gone = [record for record in run.records if record.value not in still]
            if gone:
                lost.setdefault(name, []).extend(gone)
    return Witness(story, eras, lost)
