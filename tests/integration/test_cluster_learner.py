"""A learner in the endpoint list: a member that follows without a vote, and refuses what clients ask of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from leasekeeper import Keeper, State, Timing, observe
from leasekeeper.observe import BeatMissed, Event
from leasekeeper.testing import EtcdServer
from leasekeeper.testing.flags import Membership
from leasekeeper.testing.ports import free_port
from tests.raw import RawEtcd
from tests.support import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

TIMING = Timing(ttl=3)
TOKEN = "with-a-learner"


@pytest.fixture
def voter_and_learner() -> Iterator[tuple[EtcdServer, EtcdServer]]:
    """A cluster of one member that votes and one learner, which is never promoted."""
    ports = free_port(), free_port()
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    alone, both = f"voter={urls[0]}", f"voter={urls[0]},learner={urls[1]}"
    voter = EtcdServer(membership=Membership("voter", ports[0], urls[0], alone, TOKEN), fsync=False)
    learner = EtcdServer(
        membership=Membership("learner", ports[1], urls[1], both, TOKEN),
        fsync=False,
        extra_args=["--initial-cluster-state=existing"],
    )
    with voter:
        RawEtcd(voter.endpoint).post("cluster/member/add", peerURLs=[urls[1]], isLearner=True)
        try:
            learner.start(wait=False)
            until(lambda: learner.is_running and _is_learner(learner))
            yield voter, learner
        finally:
            learner.close()


def _is_learner(server: EtcdServer) -> bool:
    try:
        return bool(RawEtcd(server.endpoint).post("maintenance/status").get("isLearner"))
    except (OSError, ValueError):
        return False


def test_a_learner_first_in_the_list(
    voter_and_learner: tuple[EtcdServer, EtcdServer], namespace: str, request: pytest.FixtureRequest
) -> None:
    """C48: a learner as first endpoint is passed over for acquiring, beats, watches and looks; no beat is missed for it."""
    voter, learner = voter_and_learner
    events: list[Event] = []
    observe.add(events.append)
    request.addfinalizer(lambda: observe.remove(events.append))
    endpoints = f"{learner.endpoint},{voter.endpoint}"
    with (
        Keeper(endpoints, namespace=namespace, timing=TIMING) as keeper,
        Keeper(endpoints, namespace=namespace, timing=TIMING) as other,
    ):
        lease = keeper.acquire("n", timeout=30)
        assert [claim.token for claim in other.claims("n")] == [lease.token]
        assert other.try_acquire("n") is None
        over = time.monotonic() + TIMING.ttl
        while time.monotonic() < over:
            assert lease.state is State.HELD
            time.sleep(0.02)
        # A busy machine may be late at the voter; nothing may ever have been expected of the learner.
        assert [event for event in events if isinstance(event, BeatMissed) and event.endpoint == learner.endpoint] == []
        RawEtcd(voter.endpoint).delete(lease.key)
        until(lambda: lease.state is State.LOST, 10)
        taken = other.acquire("n", timeout=10)
        assert other.verify("n", taken.token)
        taken.release()
