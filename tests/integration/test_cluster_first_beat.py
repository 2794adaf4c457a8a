"""Leases whose first beat goes to another member than the one that granted them, as soon as it can."""

from __future__ import annotations

from itertools import permutations

import pytest

from leasekeeper import Keeper, LeaseLost, State, Timing
from leasekeeper.testing import EtcdCluster
from tests.support import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

# The first beat goes out a hundredth of a second after the grant was asked for.
TIMING = Timing(ttl=10, beat_every=0.01, pause_after=4)
ROUNDS = 30


@pytest.mark.parametrize(("granting", "beating"), list(permutations(range(3), 2)))
def test_a_first_beat_at_another_member(etcd_cluster: EtcdCluster, namespace: str, granting: int, beating: int) -> None:
    """C36: Granted at one member and renewed at once at another, a lease is held; where that says TTL 0, LOST, never both."""
    endpoints = ",".join(etcd_cluster.members[index].endpoint for index in (granting, beating))
    for _ in range(ROUNDS):
        with Keeper(endpoints, namespace=namespace, timing=TIMING) as keeper:
            keeper._core.engine.beats._index = 1  # beats begin at the second endpoint
            lease = keeper.acquire("n", timeout=30)
            first_s = lease._session.proof_s
            until(lambda: lease._session.proof_s > first_s or lease.state is State.LOST)  # noqa: B023 - in this round only
            if lease.state is State.LOST:
                with pytest.raises(LeaseLost):
                    lease.wait()
                lease = keeper.acquire("n", timeout=30)
            assert lease.wait(timeout=20) == lease.token
            assert keeper.verify("n", lease.token)
