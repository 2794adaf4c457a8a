"""The etcd messages that plans send, put together from their parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.keys import prefix_end

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasekeeper.protocol.keys import Epoch

__all__ = [
    "absent",
    "created_at",
    "delete",
    "epoch_is",
    "first_of",
    "get",
    "last_of",
    "not_created_at",
    "put",
    "queue_empty",
    "range_count",
    "range_kvs",
    "read_only",
    "unchanged",
    "under_lease",
    "value_is",
]

_Compare = pb.Compare
_Range = pb.RangeRequest


def absent(key: bytes) -> pb.Compare:
    """True when the key does not exist."""
    return created_at(key, 0)


def created_at(key: bytes, revision: int) -> pb.Compare:
    """True when the key exists since ``revision``: the same key, not one put in its place."""
    return _Compare(result=_Compare.EQUAL, target=_Compare.CREATE, key=key, create_revision=revision)


def not_created_at(key: bytes, revision: int) -> pb.Compare:
    """True when the key is not the one that exists since ``revision``."""
    return _Compare(result=_Compare.NOT_EQUAL, target=_Compare.CREATE, key=key, create_revision=revision)


def under_lease(key: bytes, lease_id: int) -> pb.Compare:
    """True when the key lives by this lease."""
    return _Compare(result=_Compare.EQUAL, target=_Compare.LEASE, key=key, lease=lease_id)


def unchanged(key: bytes, mod_revision: int) -> pb.Compare:
    """True while the key was last changed at ``mod_revision``; 0: while it does not exist."""
    return _Compare(result=_Compare.EQUAL, target=_Compare.MOD, key=key, mod_revision=mod_revision)


def value_is(key: bytes, value: bytes) -> pb.Compare:
    """True when the key holds exactly these bytes."""
    return _Compare(result=_Compare.EQUAL, target=_Compare.VALUE, key=key, value=value)


def queue_empty(prefix: bytes) -> pb.Compare:
    """True when no key begins with ``prefix``: over an empty range etcd compares as create revision 0."""
    return _Compare(
        result=_Compare.EQUAL,
        target=_Compare.CREATE,
        key=prefix,
        range_end=prefix_end(prefix),
        create_revision=0,
    )


def epoch_is(key: bytes, epoch: Epoch) -> pb.Compare:
    """True while the epoch record is the one that was read. By value: after a restore its revision may repeat."""
    return absent(key) if epoch.stored is None else value_is(key, epoch.stored)


def get(key: bytes, *, keys_only: bool = False) -> pb.RequestOp:
    """Read one key. ``keys_only`` leaves out the value, and on etcd 3.7 the lease as well."""
    return pb.RequestOp(request_range=_Range(key=key, keys_only=keys_only))


def first_of(prefix: bytes) -> pb.RequestOp:
    """Read the first claim of a queue by create revision: its owner."""
    return pb.RequestOp(
        request_range=_Range(
            key=prefix,
            range_end=prefix_end(prefix),
            limit=1,
            sort_order=_Range.ASCEND,
            sort_target=_Range.CREATE,
        )
    )


def last_of(prefix: bytes, before: int = 0) -> pb.RequestOp:
    """Read the last claim of a queue that was created before ``before`` (0: of all), without its value."""
    return pb.RequestOp(
        request_range=_Range(
            key=prefix,
            range_end=prefix_end(prefix),
            limit=1,
            sort_order=_Range.DESCEND,
            sort_target=_Range.CREATE,
            max_create_revision=max(0, before - 1),
            keys_only=True,
        )
    )


def put(key: bytes, value: bytes, lease_id: int = 0) -> pb.RequestOp:
    """Write one key under a lease."""
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease_id))


def delete(key: bytes) -> pb.RequestOp:
    """Delete one key."""
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))


def read_only(ops: Iterable[pb.RequestOp]) -> pb.TxnRequest:
    """Several linearizable reads at one revision."""
    return pb.TxnRequest(success=ops)


def range_kvs(reply: pb.TxnResponse, index: int) -> list[pb.KeyValue]:
    """The key-values of a transaction's ``index``-th answer; empty when it is no range or not there."""
    responses = reply.responses
    return list(responses[index].response_range.kvs) if index < len(responses) else []


def range_count(reply: pb.TxnResponse, index: int) -> int:
    """How many keys there are in the range of a transaction's ``index``-th answer, whatever its limit left out."""
    return int(reply.responses[index].response_range.count) if index < len(reply.responses) else 0
