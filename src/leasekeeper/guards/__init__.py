"""Guards: the fence rule, applied at one kind of resource each.

A lease tells its owner when to stop; a guard makes the resource refuse whoever did not. It needs no clock and no network
beyond the resource itself, so it holds even for a process that was frozen between its gate and its write (G4).

The contract of a guard
=======================

``admit(resource, lease)``, called inside the caller's own transaction at the resource:

1. takes the token from the lease *at the gate* (``lease.check()``), so work that is paused or over does not even ask;
2. applies the rule of `leasekeeper.fencing.admits` to what the resource remembers: accept iff the token is larger than the
   highest one, or equal to it and of the same claim;
3. remembers token, claim and holder when it accepts, in the same transaction as the caller's writes, so that both are there
   or neither is;
4. raises `StaleToken` with the highest token and its holder when it refuses, and leaves everything as it was.

=======================  =====================================================================================
`guards.sqlite.Fence`    a table in the SQLite database that holds the data
`guards.etcd`            compares for a transaction of your own in etcd, and a put that is guarded by them
`guards.grant`           the token with a signature, for a resource that cannot believe whoever reaches it; at the
                         resource a verified grant stands where a lease stands in its owner's process
=======================  =====================================================================================

One of your own
===============

Whatever can do "compare and write" as one step can be guarded: a row and an UPDATE with a condition, a file under a lock, an
object store with conditional writes. Keep token, claim and holder beside the data, let one step both decide and remember,
and take the answer from that step, not from a read before it. `refused` makes the error. Check the step against
`leasekeeper.fencing.admits` for every combination of smaller, equal and larger tokens with equal and other claims: ``>=``
passes most tests and is wrong, because after a restore of etcd the same number can belong to somebody else.
"""

from __future__ import annotations

from typing import Protocol

from leasekeeper.errors import StaleToken

__all__ = ["Bearer", "refused"]


class Bearer(Protocol):
    """What a guard needs of a lease: `leasekeeper.Lease` and `leasekeeper.AsyncLease` fit, and so does a `guards.grant.Grant`."""

    def check(self, need: float = 0.0) -> int:
        """The token, or LeaseSuspended or LeaseLost."""
        ...

    @property
    def claim(self) -> str:
        """The claim's nonce."""
        ...

    @property
    def holder(self) -> str:
        """Who holds it, for people to read."""
        ...


def refused(resource: str, token: int, highest: int, holder: str) -> StaleToken:
    """The error of a guard that has seen a newer owner. ``highest`` and ``holder`` belong to that owner."""
    who = f"{holder!r}" if holder else "an owner that left no name"
    return StaleToken(
        f"{resource!r} refuses token {token}: it has accepted token {highest} of {who}",
        resource=resource,
        token=token,
        highest=highest,
        holder=holder,
    )
