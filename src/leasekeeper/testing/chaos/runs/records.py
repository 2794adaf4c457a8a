"""What is written down during a storm over runs, beside what every storm writes down (`leasekeeper.testing.chaos.records`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from leasekeeper.testing.chaos.records import Story
from leasekeeper.testing.outside.ledger import Entry

__all__ = ["WORKFLOW", "Era", "Halted", "Order", "RunsStory", "Sent", "Stored"]

WORKFLOW = "order"


@dataclass(frozen=True, slots=True)
class Order:
    """What a run is begun with.

    ``rival``: somebody else has sent its mail before. ``poison``: it kills whoever opens it, until an operator has cured it.
    """

    id: str
    amount_cents: int
    rival: bool = False
    poison: bool = False

    @property
    def buyer(self) -> str:
        """Who gets the mail."""
        return f"{self.id}@example.org"


@dataclass(frozen=True, slots=True)
class Sent:
    """A worker is about to make a call, or has been told an alert: noted by itself, on disk before the call is made.

    ``gate_s`` is when it last looked at the clock before it asked the gate. ``attempt`` 0: it is not told (a bare callable).
    ``key`` is the idempotency key that it sends, "" for none.
    """

    at_s: float
    who: str
    what: str
    run: str
    step: str
    token: int
    attempt: int = 0
    key: str = ""
    gate_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stored:
    """A key of etcd, as it was read: its value, when it was created and last changed, and how often it was written."""

    value: bytes
    create_revision: int
    mod_revision: int
    version: int


@dataclass(frozen=True, slots=True)
class Halted:
    """A halt that stood, from one revision of etcd to another; ``until`` 0: it still does."""

    scope: str
    since: int
    until: int = 0


@dataclass(slots=True)
class Era:
    """What etcd said from its beginning, or from a restore, until the next restore or the end.

    Attributes:
        from_revision: the revision from which on things happened in this era and not in the one before.
        keys: everything below ``run/`` at its end, by key without the namespace.
        gone: the revision at which a claim went, by its nonce.
        halts: those that stood.
        epochs: each epoch that was set, with its revision.
        blind: whether etcd forgot history before the observer had seen it, so that a deletion may be missing.
    """

    from_revision: int = 1
    keys: dict[str, Stored] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    halts: list[Halted] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    blind: bool = False


@dataclass(slots=True)
class RunsStory(Story):
    """Everything that is known of one storm over runs. ``wall_s`` is the wall clock's time at the start of the storm."""

    wall_s: float = 0.0
    orders: dict[str, Order] = field(default_factory=dict)
    ledger: list[Entry] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    eras: list[Era] = field(default_factory=list)
    # Whether the last of them could not be read: then nothing can be held against the records.
    unread: bool = False
    # What the records are signed with.
    ring: Any = None
    # Of runs, in etcd.
    keys_at_end: int = 0
    # Of the namespace, and of the largest member's database: the most that there were.
    most_keys: int = 0
    db_bytes: int = 0
    finished_at_s: float = 0.0
    # Runs that were pruned since the last restore, and those that a tombstone tells of.
    pruned: frozenset[str] = frozenset()
    tombs: frozenset[str] = frozenset()

    def at_s(self, entry: Entry) -> float:
        """When a line was written to the ledger, on the clock of the storm; to the millisecond."""
        return entry.at_ms / 1000 - self.wall_s
