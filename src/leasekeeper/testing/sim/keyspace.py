"""The key space of a model etcd: revisions, ranges, transactions with compares, history and its compaction.

One request is one step. Nothing here knows of time, leases or networks: `store` adds leases and an alarm, `network` what lies
between it and its clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.plan import Cause, Fault, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Event", "Keyspace", "Kv", "puts_in"]

Kv = pb.KeyValue
RangeRequest = pb.RangeRequest
FIELDS: dict[int, Callable[[Kv], Any]] = {
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
RESULTS: dict[int, Callable[[Any, Any], bool]] = {
    pb.Compare.EQUAL: lambda a, b: a == b,
    pb.Compare.NOT_EQUAL: lambda a, b: a != b,
    pb.Compare.GREATER: lambda a, b: a > b,
    pb.Compare.LESS: lambda a, b: a < b,
}


@dataclass(frozen=True, slots=True)
class Event:
    """One change of one key; ``kv`` is None when it was deleted."""

    revision: int
    key: bytes
    kv: Kv | None

    @property
    def deleted(self) -> bool:
        """Whether the key went."""
        return self.kv is None


class Keyspace:
    """Keys and their history. ``told`` hears of each change as it happens."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self.keys: dict[bytes, Kv] = {}
        self.events: list[Event] = []
        self.told: Callable[[Event], None] | None = None

    # ------------------------------------------------------------ calls

    def header(self) -> pb.ResponseHeader:
        """What stands at the head of a reply."""
        return pb.ResponseHeader(revision=self.revision)

    def range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        """Read keys, as they are or as they were; the header is left to the caller."""
        at = request.revision
        if at > self.revision:
            raise Fault(Kind.FIX, text="etcdserver: mvcc: required revision is a future revision", operation="Range")
        if 0 < at < self.compacted:
            raise compacted_away("Range")
        everything = self.found(request.key, request.range_end, self.as_of(at) if 0 < at < self.revision else None)
        if request.count_only:
            return pb.RangeResponse(count=len(everything))
        found = [kv for kv in everything if _within(kv, request)]
        if request.sort_order != RangeRequest.NONE or request.sort_target != RangeRequest.KEY:
            found.sort(key=FIELDS[request.sort_target], reverse=request.sort_order == RangeRequest.DESCEND)
        taken = found[: request.limit] if request.limit else found
        reply = pb.RangeResponse(kvs=taken, more=len(taken) < len(found), count=len(everything))
        if request.keys_only:
            for kv in reply.kvs:
                kv.ClearField("value")
        return reply

    def txn(
        self, request: pb.TxnRequest, allowed: Callable[[pb.TxnRequest, list[pb.PutRequest]], None]
    ) -> pb.TxnResponse:
        """One transaction. All compares, also of nested ones, see the keys as they were before it.

        ``allowed`` is given what it would put, and raises what etcd would refuse it with.
        """
        for branch in (request.success, request.failure):
            if written_twice(branch):
                text = "etcdserver: duplicate key given in txn request"
                raise Fault(Kind.FIX, text=text, operation="Txn")
        path: list[bool] = []
        ops = list(self._taken(request, path))
        allowed(request, [op.request_put for op in ops if op.HasField("request_put")])
        return self._branch(request, iter(path), self.revision + 1)

    def compact(self, revision: int) -> None:
        """Forget what was before a revision."""
        if revision <= self.compacted:
            raise compacted_away("Compact")
        if revision > self.revision:
            raise Fault(Kind.FIX, text="etcdserver: mvcc: required revision is a future revision", operation="Compact")
        self.compacted = revision

    def drop(self, keys: Iterable[bytes]) -> None:
        """Delete keys at one new revision, as the end of a lease does."""
        doomed = sorted(keys)
        if doomed:
            self.revision += 1
            for key in doomed:
                self._drop(key)

    # ------------------------------------------------------------ history

    def as_of(self, revision: int) -> dict[bytes, Kv]:
        """The keys as they were at a revision."""
        then: dict[bytes, Kv] = {}
        for event in self.events:
            if event.revision > revision:
                break
            if event.kv is None:
                then.pop(event.key, None)
            else:
                then[event.key] = event.kv
        return then

    def since(self, key: bytes, revision: int) -> list[Event]:
        """What happened to a key at a revision and later."""
        found: list[Event] = []
        for event in reversed(self.events):
            if event.revision < revision:
                break
            if event.key == key:
                found.append(event)
        return found[::-1]

    def found(self, key: bytes, range_end: bytes, keys: dict[bytes, Kv] | None = None) -> list[Kv]:
        """The keys of a span, in order."""
        keys = self.keys if keys is None else keys
        if not range_end:
            return [keys[key]] if key in keys else []
        return [keys[each] for each in sorted(keys) if key <= each < range_end]

    # ------------------------------------------------------------ transactions

    def _taken(self, request: pb.TxnRequest, path: list[bool]) -> Iterator[pb.RequestOp]:
        """The operations of the branches that will be taken, in order; ``path`` notes which, transaction by transaction."""
        succeeded = all(self.holds(compare) for compare in request.compare)
        path.append(succeeded)
        for op in request.success if succeeded else request.failure:
            if op.HasField("request_txn"):
                yield from self._taken(op.request_txn, path)
            else:
                yield op

    def holds(self, compare: pb.Compare) -> bool:
        """Whether a compare holds: for every key of its range or, where there is none, for a key that does not exist."""
        attribute, nothing = COMPARED[compare.target]
        wanted = getattr(compare, attribute)
        found = self.found(compare.key, compare.range_end)
        if not found:
            # A value that does not exist equals no value; every number of it is 0.
            return compare.target != pb.Compare.VALUE and RESULTS[compare.result](nothing, wanted)
        return all(RESULTS[compare.result](getattr(kv, attribute), wanted) for kv in found)

    def _branch(self, request: pb.TxnRequest, path: Iterator[bool], written: int) -> pb.TxnResponse:
        succeeded = next(path)
        reply = pb.TxnResponse(succeeded=succeeded)
        for op in request.success if succeeded else request.failure:
            if op.HasField("request_txn"):
                reply.responses.add(response_txn=self._branch(op.request_txn, path, written))
            else:
                reply.responses.append(self._apply(op, written))
        reply.header.revision = self.revision
        return reply

    def _apply(self, op: pb.RequestOp, revision: int) -> pb.ResponseOp:
        if op.HasField("request_range"):
            return pb.ResponseOp(response_range=self.range(op.request_range))
        if op.HasField("request_put"):
            before = self._write(op.request_put, revision)
            return pb.ResponseOp(response_put=pb.PutResponse(prev_kv=before if op.request_put.prev_kv else None))
        deletion = op.request_delete_range
        doomed = self.found(deletion.key, deletion.range_end)
        for kv in doomed:
            self.revision = revision
            self._drop(kv.key)
        gone = doomed if deletion.prev_kv else ()
        return pb.ResponseOp(response_delete_range=pb.DeleteRangeResponse(deleted=len(doomed), prev_kvs=gone))

    def _write(self, put: pb.PutRequest, revision: int) -> Kv | None:
        self.revision = revision
        old = self.keys.get(put.key)
        self.keys[put.key] = kv = Kv(
            key=put.key,
            value=put.value,
            lease=put.lease,
            mod_revision=revision,
            create_revision=revision if old is None else old.create_revision,
            version=1 if old is None else old.version + 1,
        )
        self._happened(Event(revision, put.key, kv))
        return old

    def _drop(self, key: bytes) -> None:
        del self.keys[key]
        self._happened(Event(self.revision, key, None))

    def _happened(self, event: Event) -> None:
        self.events.append(event)
        if self.told is not None:
            self.told(event)


def compacted_away(operation: str) -> Fault:
    """What etcd says of a revision that it has forgotten."""
    text = "etcdserver: mvcc: required revision has been compacted"
    return Fault(Kind.RETRY, Cause.COMPACTED, text, operation=operation)


def puts_in(request: pb.TxnRequest) -> bool:
    """Whether a put stands in a transaction, in the branch that is taken or in the other; etcd does not look into nested ones."""
    return any(op.HasField("request_put") for op in (*request.success, *request.failure))


def written_twice(ops: Iterable[pb.RequestOp]) -> bool:
    """Whether a branch puts one key twice, which etcd refuses also where it is not taken; not looked for in nested ones."""
    keys = [op.request_put.key for op in ops if op.HasField("request_put")]
    return len(set(keys)) < len(keys)


def _within(kv: Kv, request: pb.RangeRequest) -> bool:
    bounds = (
        (request.min_create_revision, kv.create_revision),
        (request.min_mod_revision, kv.mod_revision),
        (-request.max_create_revision, -kv.create_revision),
        (-request.max_mod_revision, -kv.mod_revision),
    )
    return all(not bound or value >= bound for bound, value in bounds)
