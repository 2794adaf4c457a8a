"""Read-backs of held keys, and of the epoch with them, in as many transactions as they need."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from leasekeeper.errors import ConfigError
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.keys import read_epoch
from leasekeeper.protocol.plan import RANGE, TXN, Call, Cause, Fault

if TYPE_CHECKING:
    from leasekeeper.protocol.actions import Action
    from leasekeeper.protocol.heartbeat import Heartbeat
    from leasekeeper.protocol.keys import Epoch
    from leasekeeper.protocol.session import Session
    from leasekeeper.runtime.watches import KeyWatches

__all__ = ["ReadBacks", "Reading", "learn"]

# etcd takes at most 128 operations in one transaction by default.
OPS_MAX = 128


class Reading:
    """Collects the answers; `take` says when there are no more to come. What could not be read is not in ``found``.

    ``singly``: one plain read for each key. For a full etcd of those releases that refuse every transaction then, also one
    that only reads (3.5.1 does).
    """

    __slots__ = ("_outstanding", "chunks", "found", "full", "refused", "revision", "singly")

    def __init__(self, keys: tuple[bytes, ...], *, singly: bool = False) -> None:
        size = 1 if singly else OPS_MAX
        self.singly = singly
        self.chunks = [keys[i : i + size] for i in range(0, len(keys), size)]
        self._outstanding = len(self.chunks)
        self.found: dict[bytes, pb.KeyValue | None] = {}
        # Some of it failed in a way that only a person can mend; because etcd is full.
        self.refused = False
        self.full = False
        # The lowest at which any of them was read: what happened later, a watch from there tells.
        self.revision = 0

    def call(self, chunk: tuple[bytes, ...], timeout_s: float) -> Call:
        """What to ask for one chunk, linearizably; not for keys only, because etcd 3.7 then leaves out the lease."""
        if self.singly:
            return Call(RANGE, pb.RangeRequest(key=chunk[0]), timeout_s)
        return Call(TXN, m.read_only(m.get(key) for key in chunk), timeout_s)

    def take(self, chunk: tuple[bytes, ...], result: Any) -> bool:
        """One answer, or what came instead; whether it was the last."""
        self._outstanding -= 1
        answers = _answers(result)
        if len(answers) != len(chunk):
            if isinstance(result, Fault):
                self.refused |= result.lasting
                self.full |= result.cause is Cause.NO_SPACE
            return self._outstanding == 0
        for key, kvs in zip(chunk, answers, strict=True):
            self.found[key] = kvs[0] if kvs else None
        revision = result.header.revision
        self.revision = min(self.revision or revision, revision)
        return self._outstanding == 0


def _answers(result: Any) -> list[list[pb.KeyValue]]:
    """What was found at each key that was asked for; empty when there was no answer."""
    if isinstance(result, pb.RangeResponse):
        return [list(result.kvs)]
    if isinstance(result, pb.TxnResponse):
        return [m.range_kvs(result, index) for index in range(len(result.responses))]
    return []


class ReadBacks:
    """The read-backs of one heart: asks, and tells the rules, the watches and whoever follows the epoch what was found.

    Args:
        beats: the rules.
        keys: the watches on what is read.
        decide: asks a rule for what to do now.
        ask: sends a call; what comes of it goes to the function given with it, on the heart's own thread.
        epoch: is given what stands at the epoch's key, see `learn`.
    """

    def __init__(
        self,
        beats: Heartbeat,
        keys: KeyWatches,
        decide: Callable[..., list[Action]],
        ask: Callable[[Call, Callable[[Any], list[Action]]], None],
        epoch: Callable[[pb.KeyValue | None], None],
    ) -> None:
        self._beats = beats
        self._keys = keys
        self._decide = decide
        self._ask = ask
        self._epoch = epoch

    def begin(self, session: Session, keys: tuple[bytes, ...], epoch_key: bytes, *, singly: bool = False) -> None:
        """Read the session's held keys, and the epoch."""
        reading = Reading((*keys, epoch_key), singly=singly)
        for chunk in reading.chunks:
            done = partial(self._done, session, reading, chunk, keys, epoch_key)
            self._ask(reading.call(chunk, session.timing.pause_s), done)

    def _done(
        self,
        session: Session,
        reading: Reading,
        chunk: tuple[bytes, ...],
        keys: tuple[bytes, ...],
        epoch_key: bytes,
        result: Any,
    ) -> list[Action]:
        if not reading.take(chunk, result):
            return []
        if reading.full and not reading.singly:
            self.begin(session, keys, epoch_key, singly=True)
            return []
        found = reading.found
        if epoch_key in found:
            self._epoch(found.pop(epoch_key))
        actions = self._decide(partial(self._beats.read_back, refused=reading.refused), session, found)
        if found:
            self._keys.read(session, reading.revision)
        return actions


def learn(kv: pb.KeyValue | None, take_in: Callable[[Epoch], None]) -> None:
    """Take in an epoch that was read along with held keys, to which only a rise of it matters."""
    try:
        take_in(read_epoch([] if kv is None else [kv]))
    except ConfigError:
        pass  # a record that cannot be trusted: whoever acquires is told
