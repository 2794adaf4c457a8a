"""A model of etcd in memory: a key space, leases by etcd's rules, the NOSPACE alarm, snapshots.

It answers the requests that leasekeeper sends as etcd 3.4 and later do; `tests/integration/test_model_store.py` compares the
two. It is no server: one call is one step, time is handed in, and nothing is ever lost unless somebody loses it.

The rules of leases: a beat gives a lease its full TTL; a new leader or a restart does so too; an expired one goes when etcd
next looks, so late and never early, and cannot be renewed in between; a client may choose the id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from google.protobuf.message import Message

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.plan import Cause, Fault, Kind
from leasekeeper.testing.sim.keyspace import Keyspace, Kv, puts_in

__all__ = ["Lease", "Store"]

# What it says of its size: that it is full, or far from it.
QUOTA = 2**31


@dataclass(slots=True)
class Lease:
    """One granted lease."""

    ttl: int
    expires_s: float


class Store(Keyspace):
    """One model etcd. ``now`` is its clock, ``minimum_ttl`` what it raises a smaller TTL to, ``full`` its alarm."""

    def __init__(self, now: Callable[[], float], minimum_ttl: int = 1) -> None:
        super().__init__()
        self.now = now
        self.minimum_ttl = minimum_ttl
        self.leases: dict[int, Lease] = {}
        self.full = False
        # Some releases (3.5.1 is one) refuse every transaction then, also one that only reads.
        self.refuses_all = False
        # Who hears of the end of a lease: its number and its TTL.
        self.lease_ended: Callable[[int, int], None] | None = None
        self._answers: dict[type[Message], Callable[..., Message]] = {
            pb.RangeRequest: self._range,
            pb.TxnRequest: self._txn,
            pb.CompactionRequest: self._compact,
            pb.LeaseGrantRequest: self._grant,
            pb.LeaseRevokeRequest: self._revoke,
            pb.LeaseKeepAliveRequest: self._keep_alive,
            pb.LeaseTimeToLiveRequest: self._time_to_live,
            pb.StatusRequest: self._status,
        }

    # ------------------------------------------------------------ calls

    def answer(self, request: Message) -> Message:
        """Look which leases are over, and perform one request: its reply, or the Fault that etcd's refusal is mapped to."""
        self.expire()
        return self.perform(request)

    def perform(self, request: Message) -> Message:
        """Perform one request, whatever the time is."""
        return self._answers[type(request)](request)

    def put(self, key: bytes, value: bytes = b"", lease: int = 0) -> int:
        """Put one key from outside: the revision of that."""
        put = pb.PutRequest(key=key, value=value, lease=lease)
        return self._txn(pb.TxnRequest(success=[pb.RequestOp(request_put=put)])).header.revision

    def delete(self, *keys: bytes) -> None:
        """Delete keys from outside, as an operator would."""
        for key in keys:
            self.drop([key] if key in self.keys else [])

    def below(self, prefix: bytes) -> list[Kv]:
        """The keys below a prefix, the oldest first."""
        return sorted(
            (kv for key, kv in self.keys.items() if key.startswith(prefix)), key=lambda kv: kv.create_revision
        )

    def snapshot(self) -> Store:
        """A copy, to be restored later."""
        copy = Store(self.now, self.minimum_ttl)
        copy.revision, copy.compacted, copy.full = self.revision, self.compacted, self.full
        copy.keys, copy.events = dict(self.keys), list(self.events)  # what they hold is never changed
        copy.leases = {number: replace(lease) for number, lease in self.leases.items()}
        return copy

    def restore(self, snapshot: Store) -> None:
        """Become what the snapshot was; its leases run anew. Watches stay silent, as after a real restore."""
        old = snapshot.snapshot()
        self.revision, self.compacted, self.full = old.revision, old.compacted, old.full
        self.keys, self.events, self.leases = old.keys, old.events, old.leases
        self.rearm()

    # ------------------------------------------------------------ leases

    def expire(self) -> list[int]:
        """End the leases whose time is out, as etcd does when it looks: which."""
        over = [number for number, lease in self.leases.items() if lease.expires_s <= self.now()]
        for number in over:
            self.end_lease(number)
        return over

    def overdue(self, number: int) -> bool:
        """Whether a lease's time is out and etcd has not looked yet: a beat for it waits until it has."""
        lease = self.leases.get(number)
        return lease is not None and lease.expires_s <= self.now()

    def rearm(self) -> None:
        """A new leader, or a restart: every lease has its full TTL again."""
        for lease in self.leases.values():
            lease.expires_s = self.now() + lease.ttl

    def end_lease(self, number: int) -> None:
        """End one lease, with its keys."""
        lease = self.leases.pop(number)
        if self.lease_ended is not None:
            self.lease_ended(number, lease.ttl)
        self.drop([key for key, kv in self.keys.items() if kv.lease == number])

    def _grant(self, request: pb.LeaseGrantRequest) -> pb.LeaseGrantResponse:
        if self.full:
            raise out_of_space("LeaseGrant")
        if request.ID in self.leases:
            raise Fault(Kind.RETRY, Cause.LEASE_EXISTS, "etcdserver: lease already exists", operation="LeaseGrant")
        ttl = max(self.minimum_ttl, request.TTL)
        self.leases[request.ID] = Lease(ttl, self.now() + ttl)
        return pb.LeaseGrantResponse(header=self.header(), ID=request.ID, TTL=ttl)

    def _revoke(self, request: pb.LeaseRevokeRequest) -> pb.LeaseRevokeResponse:
        self._known(request.ID, "LeaseRevoke")
        self.end_lease(request.ID)
        return pb.LeaseRevokeResponse(header=self.header())

    def _keep_alive(self, request: pb.LeaseKeepAliveRequest) -> pb.LeaseKeepAliveResponse:
        lease = self.leases.get(request.ID)
        if lease is None:
            return pb.LeaseKeepAliveResponse(header=self.header(), ID=request.ID)
        lease.expires_s = self.now() + lease.ttl
        return pb.LeaseKeepAliveResponse(header=self.header(), ID=request.ID, TTL=lease.ttl)

    def _time_to_live(self, request: pb.LeaseTimeToLiveRequest) -> pb.LeaseTimeToLiveResponse:
        lease = self.leases.get(request.ID)
        if lease is None:
            return pb.LeaseTimeToLiveResponse(header=self.header(), ID=request.ID, TTL=-1)
        left_s = int(lease.expires_s - self.now())
        reply = pb.LeaseTimeToLiveResponse(header=self.header(), ID=request.ID, TTL=left_s, grantedTTL=lease.ttl)
        if request.keys:
            reply.keys.extend(sorted(kv.key for kv in self.keys.values() if kv.lease == request.ID))
        return reply

    def _known(self, number: int, operation: str) -> None:
        if number not in self.leases:
            text = "etcdserver: requested lease not found"
            raise Fault(Kind.RETRY, Cause.LEASE_NOT_FOUND, text, operation=operation)

    # ------------------------------------------------------------ keys

    def _range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        reply = self.range(request)
        reply.header.revision = self.revision
        return reply

    def _txn(self, request: pb.TxnRequest) -> pb.TxnResponse:
        return self.txn(request, self._allowed)

    def _allowed(self, request: pb.TxnRequest, puts: list[pb.PutRequest]) -> None:
        if self.full and (self.refuses_all or puts_in(request)):
            raise out_of_space("Txn")
        for put in puts:
            if put.lease:
                self._known(put.lease, "Txn")

    def _status(self, _: pb.StatusRequest) -> pb.StatusResponse:
        used = QUOTA if self.full else QUOTA // 8
        return pb.StatusResponse(header=self.header(), version="3.5.0", dbSize=used, dbSizeQuota=QUOTA)

    def _compact(self, request: pb.CompactionRequest) -> pb.CompactionResponse:
        self.compact(request.revision)
        return pb.CompactionResponse(header=self.header())


def out_of_space(operation: str) -> Fault:
    """What a full etcd says to grants, and to transactions in which a put stands, taken or not."""
    return Fault(Kind.FIX, Cause.NO_SPACE, "etcdserver: mvcc: database space exceeded", operation=operation)
