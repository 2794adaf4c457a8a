"""A run that is owned, and what somebody wants added to it: the words in which `append`, `transaction` and `refused` speak."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.account import Account

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.delay import Delay
    from leasekeeper.protocol.guarded import Ownership
    from leasekeeper.protocol.head import Head
    from leasekeeper.protocol.keys import Epoch
    from leasekeeper.protocol.plan import Signal
    from leasekeeper.protocol.receipt import Draft, Writer
    from leasekeeper.protocol.run_keys import RunKeys
    from leasekeeper.signing import Keyring

__all__ = ["Appended", "Built", "Entry", "Fenced", "Line", "Log", "Unexpected", "fail", "landed"]


class Fenced(Exception):
    """The claim is gone: somebody else may own the run. Never leaves the library."""


class Unexpected(Exception):
    """A key that an entry writes is not as expected; ``found`` is how it stands, None: not at all. Never leaves the library."""

    def __init__(self, key: bytes, found: pb.KeyValue | None) -> None:
        super().__init__(key, found)
        self.key = key
        self.found = found


@dataclass(frozen=True, slots=True)
class Appended:
    """Where an entry stands, and the revision that put it there."""

    seq: int
    revision: int
    stored: bytes


def _as_it_is(head: Head) -> Head:
    return head


@dataclass(slots=True, eq=False)
class Entry:
    """What somebody wants added: a record and what it changes.

    ``puts`` gives, for the record's number, the further puts; ``expects`` names the keys that they write and the revisions of
    their last change (0: not there); ``change`` is what becomes of the head. An ``intent`` is refused where a halt covers the
    run. ``until`` is when nobody wants it any more; None: as long as authority can come back. ``since_s`` is when somebody began
    to want it, and ``delay`` what was told of its not being written yet.
    """

    draft: Draft
    puts: Callable[[int], tuple[pb.RequestOp, ...]] = lambda _: ()
    expects: tuple[tuple[bytes, int], ...] = ()
    change: Callable[[Head], Head] = _as_it_is
    intent: bool = False
    size: int = 0
    until: float | None = None
    since_s: float = 0.0
    delay: Delay | None = None
    bell: Signal | None = None
    appended: Appended | None = None
    error: BaseException | None = None

    @property
    def settled(self) -> bool:
        """Whether it is known what became of it."""
        return self.appended is not None or self.error is not None


class Line(Protocol):
    """Those who wait to add to one run. Every method returns at once and may be called from any thread.

    Whoever joins stands in it until they withdraw: one that leads takes nobody out, so that nothing is lost when it is
    interrupted.
    """

    def join(self, entry: Entry) -> None:
        """Stand at the end."""
        ...

    def withdraw(self, entry: Entry) -> None:
        """Stand in it no longer; may be called twice."""
        ...

    def waiting(self) -> list[Entry]:
        """Who stands in it, the first one first."""
        ...

    def lead(self, entry: Entry) -> bool:
        """Become the one that sends, unless somebody else is; whether one is."""
        ...

    def leave(self, entry: Entry) -> None:
        """Lead no longer, if one does, and wake the first that waits if nobody leads."""
        ...

    def bell(self, entry: Entry) -> Signal:
        """A new signal for an entry; set when it is settled, or when it may lead."""
        ...

    def ring(self, entry: Entry) -> None:
        """Set it."""
        ...

    def delayed(self, delay: Delay) -> None:
        """Tell whoever listens, later and elsewhere, of a record that cannot be written for now, or that it is over."""
        ...


@dataclass(slots=True, eq=False)
class Log:
    """A run that is owned: all that adding to it takes. ``head`` is compared byte by byte, never trusted.

    ``alive`` tells whether authority can still come back; ``over`` is why nothing can be added any more; ``ring`` are the keys by
    which records are believed, and ``signed_from`` the number of the first that is signed (0: none is). ``account`` is what the
    records say of steps and checkpoints: a witness beside these keys, never instead of them.
    """

    ctx: Context
    keys: RunKeys
    mine: Ownership
    writer: Writer
    epoch: Epoch
    line: Line
    alive: Callable[[], bool]
    head: Head
    over: BaseException | None = None
    under_way: Built | None = None
    ring: Keyring | None = None
    signed_from: int = 0
    account: Account = field(default_factory=Account)
    prepared: dict[bool, pb.TxnRequest] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """The run's text."""
        return self.keys.name.text


@dataclass(slots=True, eq=False)
class Built:
    """A transaction as it was sent; sent again, it is this very one. ``unseen`` counts the attempts without an answer."""

    entries: list[Entry]
    stored: list[bytes]
    first: int
    head: Head
    request: pb.TxnRequest
    unseen: int = 0


def landed(log: Log, built: Built, revision: int) -> None:
    """All of it was written."""
    log.account.landed(log.keys, built.entries, built.head)
    log.head = built.head
    for index, entry in enumerate(built.entries):
        entry.appended = Appended(built.first + index, revision, built.stored[index])
        log.line.ring(entry)


def fail(log: Log, entries: Sequence[Entry], error: BaseException) -> None:
    """Those of these that are not settled come to nothing."""
    for entry in entries:
        if not entry.settled:
            entry.error = error
            log.line.ring(entry)
