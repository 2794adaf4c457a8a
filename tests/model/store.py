"""A model of etcd in memory, for tests of plans: revisions, transactions with compares, leases, ranges, watches.

It answers the requests that leasekeeper sends, as etcd 3.4 and later do; `tests/integration/test_model_store.py` compares
the two. It is no server: one call is one step, time is the test's own, and nothing is ever lost unless a test loses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from google.protobuf.message import Message

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.plan import Cause, Fault, Kind

Kv = pb.KeyValue
RangeRequest = pb.RangeRequest
FIELDS = {
    RangeRequest.KEY: lambda kv: kv.key,
    RangeRequest.VERSION: lambda kv: kv.version,
    RangeRequest.CREATE: lambda kv: kv.create_revision,
    RangeRequest.MOD: lambda kv: kv.mod_revision,
    RangeRequest.VALUE: lambda kv: kv.value,
}
COMPARED = {
    pb.Compare.VERSION: ("version", 0),
    pb.Compare.CREATE: ("create_revision", 0),
    pb.Compare.MOD: ("mod_revision", 0),
    pb.Compare.VALUE: ("value", b""),
    pb.Compare.LEASE: ("lease", 0),
}
RESULTS: dict[int, Callable[[object, object], bool]] = {
    pb.Compare.EQUAL: lambda a, b: a == b,
    pb.Compare.NOT_EQUAL: lambda a, b: a != b,
    pb.Compare.GREATER: lambda a, b: a > b,  # type: ignore[operator]
    pb.Compare.LESS: lambda a, b: a < b,  # type: ignore[operator]
}


@dataclass
class Lease:
    """One granted lease."""

    ttl: int
    expires_s: float


@dataclass
class Event:
    """One change of one key."""

    revision: int
    key: bytes
    deleted: bool


@dataclass
class Store:
    """The key space of one model etcd. ``now`` is its clock, ``minimum_ttl`` what it raises a smaller TTL to."""

    now: Callable[[], float]
    minimum_ttl: int = 1
    revision: int = 1
    keys: dict[bytes, Kv] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    compacted: int = 0

    # ------------------------------------------------------------ calls

    def answer(self, request: Message) -> Message:
        """Perform one request: its reply, or the Fault that etcd's refusal is mapped to."""
        self.expire()
        match request:
            case pb.RangeRequest():
                reply = self._range(request)
                reply.header.revision = self.revision
                return reply
            case pb.TxnRequest():
                return self._txn(request)
            case pb.LeaseGrantRequest():
                return self._grant(request)
            case pb.LeaseRevokeRequest():
                return self._revoke(request.ID)
            case pb.LeaseKeepAliveRequest():
                return self._keep_alive(request.ID)
            case pb.LeaseTimeToLiveRequest():
                return self._time_to_live(request)
        raise AssertionError(f"the model does not know {type(request).__name__}")

    def put(self, key: bytes, value: bytes = b"", lease: int = 0) -> int:
        """Put one key from outside: the revision of that."""
        reply = self._txn(
            pb.TxnRequest(success=[pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))])
        )
        return reply.header.revision

    def delete(self, *keys: bytes) -> None:
        """Delete keys from outside, as an operator would."""
        for key in keys:
            self._txn(pb.TxnRequest(success=[pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))]))

    def below(self, prefix: bytes) -> list[Kv]:
        """The keys below a prefix, the oldest first."""
        self.expire()
        return sorted(
            (kv for key, kv in self.keys.items() if key.startswith(prefix)), key=lambda kv: kv.create_revision
        )

    def snapshot(self) -> Store:
        """A copy, to be restored later."""
        copies = {key: Kv.FromString(kv.SerializeToString()) for key, kv in self.keys.items()}
        leases = {number: Lease(lease.ttl, lease.expires_s) for number, lease in self.leases.items()}
        return Store(self.now, self.minimum_ttl, self.revision, copies, leases, list(self.events), self.compacted)

    def restore(self, snapshot: Store) -> None:
        """Become what the snapshot was; its leases run anew. Watches stay silent, as after a real restore."""
        old = snapshot.snapshot()
        self.revision, self.keys, self.leases, self.compacted = old.revision, old.keys, old.leases, old.compacted
        for lease in self.leases.values():
            lease.expires_s = self.now() + lease.ttl
        self.events = []

    # ------------------------------------------------------------ leases

    def expire(self) -> None:
        """End the leases whose time is out."""
        for number in [number for number, lease in self.leases.items() if lease.expires_s <= self.now()]:
            self.end_lease(number)

    def end_lease(self, number: int) -> None:
        """End one lease, with its keys."""
        del self.leases[number]
        attached = [key for key, kv in self.keys.items() if kv.lease == number]
        if attached:
            self.revision += 1
            for key in attached:
                self._drop(key)

    def _grant(self, request: pb.LeaseGrantRequest) -> pb.LeaseGrantResponse:
        if request.ID in self.leases:
            raise Fault(Kind.RETRY, Cause.LEASE_EXISTS, "etcdserver: lease already exists", operation="LeaseGrant")
        ttl = max(self.minimum_ttl, request.TTL)
        self.leases[request.ID] = Lease(ttl, self.now() + ttl)
        return pb.LeaseGrantResponse(header=self._header(), ID=request.ID, TTL=ttl)

    def _revoke(self, number: int) -> pb.LeaseRevokeResponse:
        self._known(number, "LeaseRevoke")
        self.end_lease(number)
        return pb.LeaseRevokeResponse(header=self._header())

    def _keep_alive(self, number: int) -> pb.LeaseKeepAliveResponse:
        lease = self.leases.get(number)
        if lease is None:
            return pb.LeaseKeepAliveResponse(header=self._header(), ID=number)
        lease.expires_s = self.now() + lease.ttl
        return pb.LeaseKeepAliveResponse(header=self._header(), ID=number, TTL=lease.ttl)

    def _time_to_live(self, request: pb.LeaseTimeToLiveRequest) -> pb.LeaseTimeToLiveResponse:
        lease = self.leases.get(request.ID)
        if lease is None:
            return pb.LeaseTimeToLiveResponse(header=self._header(), ID=request.ID, TTL=-1)
        left_s = int(lease.expires_s - self.now())
        reply = pb.LeaseTimeToLiveResponse(header=self._header(), ID=request.ID, TTL=left_s, grantedTTL=lease.ttl)
        if request.keys:
            reply.keys.extend(sorted(kv.key for kv in self.keys.values() if kv.lease == request.ID))
        return reply

    def _known(self, number: int, operation: str) -> None:
        if number not in self.leases:
            text = "etcdserver: requested lease not found"
            raise Fault(Kind.RETRY, Cause.LEASE_NOT_FOUND, text, operation=operation)

    # ------------------------------------------------------------ keys

    def _header(self) -> pb.ResponseHeader:
        return pb.ResponseHeader(revision=self.revision)

    def _txn(self, request: pb.TxnRequest) -> pb.TxnResponse:
        succeeded = all(self._holds(compare) for compare in request.compare)
        branch = list(request.success if succeeded else request.failure)
        self._check_leases(branch)
        before = self.revision
        written = before + 1 if any(self._writes(op) for op in branch) else before
        responses = [self._apply(op, written) for op in branch]
        return pb.TxnResponse(header=self._header(), succeeded=succeeded, responses=responses)

    def _check_leases(self, branch: Iterable[pb.RequestOp]) -> None:
        for op in branch:
            if op.HasField("request_put") and op.request_put.lease:
                self._known(op.request_put.lease, "Txn")

    def _writes(self, op: pb.RequestOp) -> bool:
        if op.HasField("request_delete_range"):
            deletion = op.request_delete_range
            return bool(self._found(deletion.key, deletion.range_end))
        return op.HasField("request_put")

    def _apply(self, op: pb.RequestOp, revision: int) -> pb.ResponseOp:
        if op.HasField("request_range"):
            return pb.ResponseOp(response_range=self._range(op.request_range))
        if op.HasField("request_put"):
            self._write(op.request_put, revision)
            return pb.ResponseOp(response_put=pb.PutResponse())
        deletion = op.request_delete_range
        doomed = [kv.key for kv in self._found(deletion.key, deletion.range_end)]
        for key in doomed:
            self.revision = revision
            self._drop(key)
        return pb.ResponseOp(response_delete_range=pb.DeleteRangeResponse(deleted=len(doomed)))

    def _write(self, put: pb.PutRequest, revision: int) -> None:
        self.revision = revision
        old = self.keys.get(put.key)
        self.keys[put.key] = Kv(
            key=put.key,
            value=put.value,
            lease=put.lease,
            mod_revision=revision,
            create_revision=revision if old is None else old.create_revision,
            version=1 if old is None else old.version + 1,
        )
        self.events.append(Event(revision, put.key, deleted=False))

    def _drop(self, key: bytes) -> None:
        del self.keys[key]
        self.events.append(Event(self.revision, key, deleted=True))

    def _found(self, key: bytes, range_end: bytes) -> list[Kv]:
        if not range_end:
            return [self.keys[key]] if key in self.keys else []
        return [self.keys[k] for k in sorted(self.keys) if key <= k < range_end]

    def _holds(self, compare: pb.Compare) -> bool:
        attribute, nothing = COMPARED[compare.target]
        wanted = getattr(compare, attribute)
        found = self._found(compare.key, compare.range_end)
        if not found:
            # A value that does not exist equals no value; every number of it is 0.
            return compare.target != pb.Compare.VALUE and RESULTS[compare.result](nothing, wanted)
        return all(RESULTS[compare.result](getattr(kv, attribute), wanted) for kv in found)

    def _range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        everything = self._found(request.key, request.range_end)
        found = [kv for kv in everything if _within(kv, request)]
        if request.sort_order != RangeRequest.NONE or request.sort_target != RangeRequest.KEY:
            found.sort(key=FIELDS[request.sort_target], reverse=request.sort_order == RangeRequest.DESCEND)
        taken = found[: request.limit] if request.limit else found
        shown = [Kv.FromString(kv.SerializeToString()) for kv in taken]
        if request.keys_only:
            for kv in shown:
                kv.ClearField("value")
        return pb.RangeResponse(kvs=shown, more=len(taken) < len(found), count=len(everything))


def _within(kv: Kv, request: pb.RangeRequest) -> bool:
    bounds = (
        (request.min_create_revision, kv.create_revision),
        (request.min_mod_revision, kv.mod_revision),
        (-request.max_create_revision, -kv.create_revision),
        (-request.max_mod_revision, -kv.mod_revision),
    )
    return all(not bound or value >= bound for bound, value in bounds)
