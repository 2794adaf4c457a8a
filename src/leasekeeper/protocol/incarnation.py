"""One life of a run, what its steps are made of, and what they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.identity import idempotency_key
from leasekeeper.protocol.limits import UNREAD, Reading, check_length
from leasekeeper.protocol.receipt import Draft
from leasekeeper.run_errors import RunFinished

if TYPE_CHECKING:
    from leasekeeper.protocol.append import Log
    from leasekeeper.protocol.checkpoint import Change
    from leasekeeper.protocol.opening import Opened
    from leasekeeper.protocol.plan import Plan
    from leasekeeper.protocol.pointer import Pointer
    from leasekeeper.protocol.recorded import Recorded

__all__ = ["Blobs", "Calls", "Incarnation", "Spec", "check_room", "draft", "put", "the_key"]

# The outcome and the record that ends the run must have room behind an intent.
ROOM = 3


class Blobs(Protocol):
    """Where large results are kept outside of etcd; see `leasekeeper.runs.blobs`."""

    def put(self, digest: str, data: bytes, /) -> None:
        """Keep them, for good, before it returns."""
        ...

    def get(self, digest: str, /) -> bytes:
        """What was kept under this digest."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a step is, as far as it is decided on. ``args`` is the digest of its arguments; ``about`` canonical JSON for people.

    ``key_ttl_s`` is how long the callee remembers an idempotency key; ``preflight_max_age_s`` how old a preflight may be when
    the call is made; ``need_s`` how much proven authority the call needs; ``settle_s`` how long a postcondition may take to
    show.
    """

    key: str
    kind: Literal["do", "memo"]
    effect: str
    helps: frozenset[str]
    args: str
    about: bytes = b"null"
    key_ttl_s: float = 0.0
    preflight_max_age_s: float = 5.0
    need_s: float = 0.0
    settle_s: float = 0.0
    verify: Literal["always", "recorded"] = "always"
    drift: Literal["raise", "accept"] = "raise"


@dataclass(frozen=True, slots=True)
class Calls:
    """The user's part. Each is given a handle on the step, which `handle` makes of where it stands."""

    handle: Callable[[Pointer], Any]
    effect: Callable[[Any], Any]
    preflight: Callable[[Any], Any] | None = None
    verify: Callable[[Any, Any], Any] | None = None
    # What the result makes of a checkpoint, in the same transaction.
    checkpoint: Callable[[Any], Change] | None = None
    # A note of what a call had got when it raised.
    last_word: Callable[[Any], Plan[None] | None] = lambda _: None


@dataclass(slots=True, eq=False)
class Incarnation:
    """One life of a run.

    ``busy`` are the steps under way, by key; ``leaving``: its block is being left, and none begins any more; ``quota`` is
    how large etcd's database may become, ``space`` when it was last seen to have room; ``anchor`` has the present head
    remembered outside of etcd, with ``drained`` before each call.
    """

    opened: Opened
    recorded: Recorded
    blobs: Blobs | None = None
    quota: int | None = None
    anchor: Callable[[], None] | None = None
    drained: bool = False
    busy: dict[str, object] = field(default_factory=dict)
    leaving: bool = False
    space: Reading = UNREAD

    @property
    def log(self) -> Log:
        """The run's log."""
        return self.opened.log


def the_key(life: Incarnation, step: str) -> str:
    """The idempotency key of a step: from what never changes, not from time or attempt."""
    return idempotency_key(life.opened.identity.secret, life.log.keys.name, life.log.head.gen, step)


def check_room(life: Incarnation) -> None:
    """RunFinished or RunTooLong when no step may be begun."""
    log = life.log
    if log.head.status == "finished":
        raise RunFinished(run=log.run)
    check_length(log.run, log.head.seq, more=ROOM + 2 * len(life.busy))


def draft(life: Incarnation, spec: Spec, kind: str, data: bytes) -> Draft:
    """A record of a step."""
    return Draft(kind, spec.key, data, life.log.ctx.new_nonce())


def put(key: bytes, pointer: Pointer) -> pb.RequestOp:
    """Write where a step stands."""
    return m.put(key, pointer.stored())
