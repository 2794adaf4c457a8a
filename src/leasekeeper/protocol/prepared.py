"""The requests of one key, prepared once: what repeats from claim to claim is neither built nor looked up again.

Only the value, the epoch's compare and the create revision change between two claims of one session on one name. A slot
owns its prepared requests alone, from `Session.occupy` to `Session.free`, so filling them in needs no lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m

if TYPE_CHECKING:
    from leasekeeper.protocol.keys import Epoch, Keys
    from leasekeeper.protocol.session import Slot

__all__ = ["Prepared", "prepared"]


class Prepared:
    """The enqueue and release transactions of one key."""

    __slots__ = ("_enqueue", "_epoch", "_put", "_release", "_released_at")

    def __init__(self, keys: Keys, slot: Slot, epoch: Epoch) -> None:
        queue = keys.queue(slot.name)
        self._epoch = epoch
        self._enqueue = pb.TxnRequest(
            compare=(m.absent(slot.key), m.epoch_is(keys.epoch, epoch)),
            success=(m.last_of(queue), m.put(slot.key, b"", slot.session.lease_id)),
            failure=(m.get(slot.key), m.get(keys.epoch), m.first_of(queue)),
        )
        self._put = self._enqueue.success[1].request_put
        self._release = pb.TxnRequest(compare=(m.created_at(slot.key, 0),), success=(m.delete(slot.key),))
        self._released_at = self._release.compare[0]

    def fits(self, epoch: Epoch) -> bool:
        """Whether it was made for this epoch."""
        return self._epoch is epoch

    def enqueue(self, record: bytes) -> pb.TxnRequest:
        """Put the claim if its key is absent and the epoch as known, else read the key, the epoch and the owner."""
        self._put.value = record
        return self._enqueue

    def release(self, create_revision: int) -> pb.TxnRequest:
        """Delete the claim if it is the one created then."""
        self._released_at.create_revision = create_revision
        return self._release


def prepared(keys: Keys, slot: Slot, epoch: Epoch) -> Prepared:
    """The slot's prepared requests; made at its first use and after a change of epoch."""
    if slot.prepared is None or not slot.prepared.fits(epoch):
        slot.prepared = Prepared(keys, slot, epoch)
    return slot.prepared
