"""One read-back of held keys, and of the epoch with them, in as many transactions as they need."""

from __future__ import annotations

from typing import Any

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.plan import RANGE, TXN, Call, Cause, Fault

__all__ = ["Reading"]

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
