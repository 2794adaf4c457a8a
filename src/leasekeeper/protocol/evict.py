"""How an operator removes an owner that will not go: by compare, so that nobody else is ever hit.

The claim's key is deleted only as it was read: same create revision, same lease, same stored record (with its nonce). An owner
that came later, or a claim that was put in its place, is left alone, however late the request arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.inspect import head
from leasekeeper.protocol.plan import TXN, Fault, Kind, Plan, persist

if TYPE_CHECKING:
    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.keys import Claim

__all__ = ["Evicted", "evict"]

# A claim's record is written once; whoever rewrites it so often is not a claim.
TRIES_MAX = 10


@dataclass(frozen=True, slots=True)
class Evicted:
    """``gone``: the claim that had the token and is gone now; None when the token was not the owner's to begin with.

    ``by_itself``: it went before the removal arrived. ``owner``: who owns the name now.
    """

    gone: Claim | None
    owner: Claim | None
    by_itself: bool = False


def evict(ctx: Context, name: str, token: int, until: float) -> Plan[Evicted]:
    """Remove the claim that owns ``name``, if ``token`` is its token.

    Works for every kind of claim: also for one without a lease, or one that leasekeeper did not write. Its etcd lease is left
    alone, since other claims may live by it.
    """
    gone: Claim | None = None
    # Attempts that removed it or may have: a reply can be lost, and then the repeated one fails its compare.
    effects: list[bool] = []
    for _ in range(TRIES_MAX):
        found = yield from head(ctx, name, until)
        if found is None or found[1].token != token:
            owner = None if found is None else found[1]
            return Evicted(gone, owner, by_itself=gone is not None and not any(effects))
        stored, gone = found
        request = pb.TxnRequest(compare=_same(stored), success=(m.delete(stored.key),))
        reply = yield from persist(TXN, request, now=ctx.now, until=until, on_unknown=lambda: effects.append(True))
        effects.append(reply.succeeded)
    raise Fault(Kind.RETRY, text=f"the claim was rewritten {TRIES_MAX} times in a row", operation="Txn")


def _same(kv: pb.KeyValue) -> tuple[pb.Compare, ...]:
    return (
        m.created_at(kv.key, kv.create_revision),
        m.value_is(kv.key, kv.value),
        pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.LEASE, key=kv.key, lease=kv.lease),
    )
