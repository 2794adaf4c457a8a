"""One read-back of held keys, in as many transactions as they need."""

from __future__ import annotations

from typing import Any

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.plan import TXN, Call, Fault, Kind

__all__ = ["Reading"]

# etcd takes at most 128 operations in one transaction by default.
OPS_MAX = 128


class Reading:
    """Collects the answers; `take` says when there are no more to come."""

    __slots__ = ("_outstanding", "chunks", "failed", "found", "refused", "revision")

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        self.chunks = [keys[i : i + OPS_MAX] for i in range(0, len(keys), OPS_MAX)]
        self._outstanding = len(self.chunks)
        self.found: dict[bytes, pb.KeyValue | None] = {}
        self.failed = False
        # It failed in a way that only a person can mend.
        self.refused = False
        # The lowest at which any of them was read: what happened later, a watch from there tells.
        self.revision = 0

    @staticmethod
    def call(chunk: tuple[bytes, ...], timeout_s: float) -> Call:
        """What to ask for one chunk, linearizably; not for keys only, because etcd 3.7 then leaves out the lease."""
        return Call(TXN, m.read_only(m.get(key) for key in chunk), timeout_s)

    def take(self, chunk: tuple[bytes, ...], result: Any) -> bool:
        """One answer, or what came instead; whether it was the last."""
        self._outstanding -= 1
        if not isinstance(result, pb.TxnResponse) or len(result.responses) != len(chunk):
            self.failed = True
            self.refused |= isinstance(result, Fault) and result.kind is Kind.FIX
            return self._outstanding == 0
        for index, key in enumerate(chunk):
            kvs = m.range_kvs(result, index)
            self.found[key] = kvs[0] if kvs else None
        revision = result.header.revision
        self.revision = min(self.revision or revision, revision)
        return self._outstanding == 0
