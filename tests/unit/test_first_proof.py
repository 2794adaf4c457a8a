"""The first proof of a session, and one proven on demand: they count from the moment of asking, not from that of the answer."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.plan import GRANT, KEEP_ALIVE, Call, Cause, Fault, Kind, Operation, Plan, Sleep
from leasekeeper.protocol.session import grant, renew
from leasekeeper.timing import Timing

T = TypeVar("T")
SLOW_S = 0.75


class SlowEtcd:
    """Answers each call a while after it was sent; the clock stands at ``now_s`` in between."""

    def __init__(self, *, loses: int = 0) -> None:
        self.now_s = 100.0
        self.sent: list[tuple[str, float]] = []
        self._loses = loses

    def now(self) -> float:
        """The clock."""
        return self.now_s

    def run(self, plan: Plan[T]) -> T:
        """Run a plan to its end."""
        answer: Any = None
        step = plan.send
        while True:
            try:
                operation = step(answer)
            except StopIteration as done:
                result: T = done.value
                return result
            try:
                answer, step = self._perform(operation), plan.send
            except Fault as fault:
                answer, step = fault, plan.throw

    def _perform(self, operation: Operation) -> Any:
        if isinstance(operation, Sleep):
            self.now_s += operation.seconds
            return None
        assert isinstance(operation, Call)
        self.sent.append((operation.method.operation, self.now_s))
        self.now_s += SLOW_S
        if operation.method is GRANT:
            if len(self.sent) <= self._loses:
                raise Fault(Kind.UNKNOWN, text="the reply was lost")
            if len(self.sent) > 1:
                raise Fault(Kind.RETRY, Cause.LEASE_EXISTS)
            return pb.LeaseGrantResponse(ID=7, TTL=10)
        assert operation.method is KEEP_ALIVE
        return pb.LeaseKeepAliveResponse(ID=7, TTL=10)


def _grant(etcd: SlowEtcd) -> float:
    """Open a session: its first proof."""
    return etcd.run(grant(Timing(ttl=10), now=etcd.now, until=math.inf, new_id=lambda: 7))[2]


def test_the_first_proof_is_as_old_as_the_asking_for_the_lease() -> None:
    """G3: a grant that took long to be answered proves authority from when it was sent: etcd may have granted it just then."""
    etcd = SlowEtcd()
    assert _grant(etcd) == etcd.sent[0][1] == etcd.now_s - SLOW_S


def test_a_grant_that_is_found_by_a_beat_is_proven_by_that_beat() -> None:
    """G3 G6: of a grant whose reply was lost the sending of the beat that found it is the proof, never the beat's answer."""
    etcd = SlowEtcd(loses=1)
    proof_s = _grant(etcd)
    assert [name for name, _ in etcd.sent] == ["LeaseGrant", "LeaseGrant", "LeaseKeepAlive"]
    assert proof_s == etcd.sent[-1][1] == etcd.now_s - SLOW_S


def test_a_beat_on_demand_proves_from_its_sending() -> None:
    """G3: the beat that a new claim sends through an old session counts from when it was sent."""
    etcd = SlowEtcd()
    assert etcd.run(renew(7, now=etcd.now, until=math.inf)) == (etcd.sent[0][1], 10)
