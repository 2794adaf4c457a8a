"""Random requests to etcd, of the kinds that leasekeeper sends and of those around them, over few keys so that they meet."""

from __future__ import annotations

from google.protobuf.message import Message
from hypothesis import strategies as st

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.keys import prefix_end

__all__ = ["LEASES", "NAMES", "Requests"]

LEASES = (0x7001, 0x7002)
NAMES = (b"a", b"b", b"a/1", b"a/2", b"a/3", b"b/1")
NESTED_MAX = 2

names = st.sampled_from(NAMES)
small = st.integers(0, 6)
values = st.sampled_from([b"", b"x", b"y"])
Compare, Range = pb.Compare, pb.RangeRequest


class Requests:
    """Requests below a prefix of a store that stood at a revision, ``start``, when its history began."""

    def __init__(self, prefix: bytes, start: int) -> None:
        self._start = start
        self.keys = names.map(lambda name: prefix + name)
        self._spans = self.keys.map(lambda key: (key, prefix_end(key))) | self.keys.map(lambda key: (key, b""))
        self._revisions = small.map(lambda number: number and start + number)

    # ------------------------------------------------------------ reading

    def reads(self) -> st.SearchStrategy[pb.RangeRequest]:
        """Ranges of every shape, at the present."""
        return st.builds(
            lambda span, limit, order, target, bounds, shape: Range(
                key=span[0],
                range_end=span[1],
                limit=limit,
                sort_order=order,
                sort_target=target,
                **bounds,
                **shape,
            ),
            self._spans,
            st.integers(0, 2),
            st.sampled_from([Range.NONE, Range.ASCEND, Range.DESCEND]),
            # Equal values have no order of their own in etcd, so only fields that tell keys apart are sorted by.
            st.sampled_from([Range.KEY, Range.CREATE, Range.MOD]),
            st.dictionaries(
                st.sampled_from(["min_mod_revision", "max_mod_revision", "min_create_revision", "max_create_revision"]),
                self._revisions,
                max_size=2,
            ),
            st.sampled_from([{}, {}, {"keys_only": True}, {"count_only": True}]),
        )

    def past_reads(self) -> st.SearchStrategy[pb.RangeRequest]:
        """Ranges at a revision: of the past, forgotten, or still to come."""
        return st.builds(
            lambda span, revision: Range(key=span[0], range_end=span[1], revision=revision),
            self._spans,
            st.integers(0, 25).map(lambda number: number + self._start),
        )

    # ------------------------------------------------------------ transactions

    def compares(self) -> st.SearchStrategy[pb.Compare]:
        """Compares of every field, over one key and over ranges."""
        results = st.sampled_from([Compare.EQUAL, Compare.NOT_EQUAL, Compare.GREATER, Compare.LESS])
        wanted = (
            self._revisions.map(lambda number: {"target": Compare.CREATE, "create_revision": number})
            | self._revisions.map(lambda number: {"target": Compare.MOD, "mod_revision": number})
            | small.map(lambda number: {"target": Compare.VERSION, "version": number})
            | values.map(lambda value: {"target": Compare.VALUE, "value": value})
            | st.sampled_from([0, *LEASES]).map(lambda lease: {"target": Compare.LEASE, "lease": lease})
        )
        return st.builds(
            lambda span, result, want: Compare(key=span[0], range_end=span[1], result=result, **want),
            self._spans,
            results,
            wanted,
        )

    def puts(self) -> st.SearchStrategy[pb.RequestOp]:
        """Puts with and without a lease, some of which want to know what was there."""
        made = st.builds(m.put, self.keys, values, st.sampled_from([0, *LEASES]))
        before = st.builds(
            lambda key, value: pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, prev_kv=True)),
            self.keys,
            values,
        )
        return made | before

    def deletions(self) -> st.SearchStrategy[pb.RequestOp]:
        """Deletions of one key or many."""
        return st.builds(
            lambda span, prev: pb.RequestOp(
                request_delete_range=pb.DeleteRangeRequest(key=span[0], range_end=span[1], prev_kv=prev)
            ),
            self._spans,
            st.booleans(),
        )

    def txns(self, depth: int = NESTED_MAX) -> st.SearchStrategy[pb.TxnRequest]:
        """Transactions, also in each other.

        etcd refuses one that writes a key twice: so there is one write at the most on each way through it.
        """
        reads = self.reads().map(lambda request: pb.RequestOp(request_range=request))
        writes = self.puts() | self.deletions()
        if depth:
            writes |= self.txns(depth - 1).map(lambda txn: pb.RequestOp(request_txn=txn))
        branches = st.builds(
            lambda before, write, after: [*before, *write, *after],
            st.lists(reads, max_size=2),
            st.lists(writes, max_size=1),
            st.lists(reads, max_size=2),
        )
        return st.builds(
            lambda compares, success, failure: pb.TxnRequest(compare=compares, success=success, failure=failure),
            st.lists(self.compares(), max_size=2),
            branches,
            branches,
        )

    # ------------------------------------------------------------ all

    def any(self) -> st.SearchStrategy[Message]:
        """Any request."""
        leases = st.sampled_from(LEASES)
        return st.one_of(
            self.txns(),
            self.puts().map(lambda put: pb.TxnRequest(success=[put])),
            self.reads(),
            self.past_reads(),
            leases.map(lambda lease: pb.LeaseGrantRequest(ID=lease, TTL=600)),
            leases.map(lambda lease: pb.LeaseRevokeRequest(ID=lease)),
            leases.map(lambda lease: pb.LeaseKeepAliveRequest(ID=lease)),
            leases.map(lambda lease: pb.LeaseTimeToLiveRequest(ID=lease, keys=True)),
            st.integers(0, 25).map(lambda number: pb.CompactionRequest(revision=self._start + number)),
        )
