"""The raw calls that leasekeeper is measured against: hand-written transactions on the same channel."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.keys import Epoch, Keys

__all__ = ["Raw"]

TIMEOUT_S = 5.0


class Raw:
    """Transactions as a careful programmer would write them by hand."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.txn = _method(channel, "KV/Txn", pb.TxnRequest, pb.TxnResponse)
        self.range = _method(channel, "KV/Range", pb.RangeRequest, pb.RangeResponse)
        grant = _method(channel, "Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
        self.lease_id = grant(pb.LeaseGrantRequest(TTL=3600), timeout=TIMEOUT_S).ID
        keys = Keys("bench-raw")
        self.key = keys.claim("name", self.lease_id)
        self.queue = keys.queue("name")
        self.value = b"x" * 200
        self._same = pb.TxnRequest(
            compare=(m.absent(self.key), m.epoch_is(keys.epoch, Epoch())),
            success=(m.last_of(self.queue), m.put(self.key, self.value, self.lease_id)),
            failure=(m.get(self.key), m.get(keys.epoch), m.first_of(self.queue)),
        )

    def same(self) -> None:
        """The two transactions that leasekeeper sends, sent by hand."""
        reply = self.txn(self._same, timeout=TIMEOUT_S)
        self._delete(reply.header.revision)

    async def same_awaited(self) -> None:
        """The same two, as futures of the channel that an event loop awaits."""
        reply = await _awaited(self.txn, self._same)
        await _awaited(self.txn, self._deletion(reply.header.revision))

    def barest(self) -> None:
        """The barest pair that takes and frees a key under a lease."""
        reply = self.txn(
            pb.TxnRequest(compare=(m.absent(self.key),), success=(m.put(self.key, self.value, self.lease_id),)),
            timeout=TIMEOUT_S,
        )
        self._delete(reply.header.revision)

    def _delete(self, revision: int) -> None:
        if not self.txn(self._deletion(revision), timeout=TIMEOUT_S).succeeded:
            raise RuntimeError("the raw transactions do not work as they should")

    def _deletion(self, revision: int) -> pb.TxnRequest:
        return pb.TxnRequest(compare=(m.created_at(self.key, revision),), success=(m.delete(self.key),))


async def _awaited(method: Any, request: Any) -> Any:
    loop = asyncio.get_running_loop()
    answer = loop.create_future()
    call = method.future(request, timeout=TIMEOUT_S)
    call.add_done_callback(lambda done: loop.call_soon_threadsafe(answer.set_result, done.result()))
    return await answer


def _method(channel: grpc.Channel, path: str, request: Any, reply: Any) -> Any:
    return channel.unary_unary(
        f"/etcdserverpb.{path}",
        request_serializer=request.SerializeToString,
        response_deserializer=reply.FromString,
    )
