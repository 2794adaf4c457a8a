"""What an owner saw that had lost its lease meanwhile: left beside the run for those who look, and never believed.

It is written without the fence, so nothing may follow from it: neither that a step was done, nor that it was not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.plan import TXN, Plan, ask

if TYPE_CHECKING:
    from leasekeeper.protocol.append import Log
    from leasekeeper.protocol.receipt import Draft

__all__ = ["leave_late"]

LATE_TIMEOUT_S = 2.0
LATE_MAX_BYTES = 64 * 1024


def leave_late(log: Log, intent: int, draft: Draft) -> Plan[None]:
    """Leave what would have been a record, sealed like one but without a place in the chain. One attempt."""
    head = log.head
    stored = log.writer.seal(draft, seq=intent, prev=head.hash, at_ms=int(log.ctx.wall() * 1000))
    if len(stored) > LATE_MAX_BYTES:
        return
    key = log.keys.late(intent, draft.nonce)
    request = pb.TxnRequest(compare=(m.absent(key), _begun(log)), success=(m.put(key, stored),))
    yield from ask(TXN, request, LATE_TIMEOUT_S)


def _begun(log: Log) -> pb.Compare:
    """The run is still there: nothing is left beside one that was pruned."""
    return m.not_created_at(log.keys.meta, 0)
