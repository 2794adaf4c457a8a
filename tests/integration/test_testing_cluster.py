"""A real cluster: who leads, and what a partition between members really cuts."""

from __future__ import annotations

import itertools
import socket
import sys

import grpc
import pytest

from leasekeeper.errors import ConfigError, Misuse, Unavailable
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.testing import EtcdCluster
from tests.support import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="partitions need sock_diag")


@pytest.fixture
def cluster(etcd_cluster: EtcdCluster) -> EtcdCluster:
    """The plugin's cluster, which is whole again after the test."""
    return etcd_cluster


def can_write(endpoint: str, timeout_s: float = 2.0) -> bool:
    """True when a put through this member is confirmed."""
    with grpc.insecure_channel(endpoint, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        put = channel.unary_unary(
            "/etcdserverpb.KV/Put",
            request_serializer=pb.PutRequest.SerializeToString,
            response_deserializer=pb.PutResponse.FromString,
        )
        try:
            put(pb.PutRequest(key=b"k", value=b"v"), timeout=timeout_s)
        except grpc.RpcError:
            return False
    return True


def test_all_members_serve_and_agree(cluster: EtcdCluster) -> None:
    """Three members, three endpoints, one leader that all of them name."""
    assert len(cluster.members) == len(set(cluster.endpoints.split(","))) == 3
    leader = cluster.wait_leader()
    leader_id = cluster.members[leader].status().member_id
    until(lambda: {member.status().leader_id for member in cluster.members} == {leader_id})
    assert all(can_write(member.endpoint, 30) for member in cluster.members)


def test_leadership_can_be_moved(cluster: EtcdCluster) -> None:
    """C27: move_leader hands the lead to the member that was asked for."""
    target = (cluster.wait_leader() + 1) % 3
    cluster.move_leader(target)
    assert cluster.leader() == target


@linux_only
def test_every_peer_connection_is_told_apart(cluster: EtcdCluster) -> None:
    """Each pair of members has a lane of its own, and whoever is no member is refused."""
    host, port = cluster.peer_proxies[0].endpoint.split(":")
    with pytest.raises(ConnectionResetError), socket.create_connection((host, int(port)), timeout=30) as stranger:
        stranger.recv(1)
    for dialled, dialling in itertools.permutations(range(3), 2):
        switch = cluster.peer_proxies[dialled]._running()
        until(lambda s=switch, lane=str(dialling): any(link.lane is s.lanes[lane] for link in s.links))  # type: ignore[misc]


@linux_only
@pytest.mark.parametrize("how", ["blackhole", "cut"])
def test_an_isolated_leader_is_replaced_and_cannot_write(cluster: EtcdCluster, how: str) -> None:
    """The majority elects another and goes on; the isolated one confirms nothing until it is healed."""
    old = cluster.wait_leader()
    cluster.isolate(old, how=how)  # type: ignore[arg-type]
    new = cluster.wait_leader(apart_from={old})
    until(lambda: can_write(cluster.members[new].endpoint))
    assert not can_write(cluster.members[old].endpoint)
    with pytest.raises(Unavailable):
        cluster.members[old].wait_ready(1)
    cluster.heal()
    until(lambda: can_write(cluster.members[old].endpoint))


@linux_only
@pytest.mark.parametrize("way", ["to", "from"])
def test_a_leader_that_is_cut_off_one_way_is_replaced_or_confirms_nothing(cluster: EtcdCluster, way: str) -> None:
    """Only one direction passes: what is lost is counted in that direction alone, and the leader confirms no write."""
    old = cluster.wait_leader()
    cluster.isolate(old, way=way)  # type: ignore[arg-type]
    until(lambda: not can_write(cluster.members[old].endpoint, 0.5))
    cluster.heal()
    until(lambda: can_write(cluster.members[old].endpoint))


def test_one_way_of_a_cut_is_refused(cluster: EtcdCluster) -> None:
    """A connection that is reset has no direction."""
    with pytest.raises(ConfigError, match="way"):
        cluster.isolate(0, how="cut", way="to")


@linux_only
def test_an_isolated_follower_forwards_nothing(cluster: EtcdCluster) -> None:
    """C20: no byte passes between an isolated follower and the others, lease renewals included."""
    leader = cluster.wait_leader()
    lone, other = (leader + 1) % 3, (leader + 2) % 3
    lease = grant(cluster.members[leader].endpoint)
    assert renew(cluster.members[lone].endpoint, lease)
    cluster.isolate(lone)
    before = bytes_with(cluster, lone)
    assert not renew(cluster.members[lone].endpoint, lease)
    assert not can_write(cluster.members[lone].endpoint)
    assert renew(cluster.members[other].endpoint, lease)
    assert bytes_with(cluster, lone) == before


@linux_only
def test_without_a_majority_nobody_writes(cluster: EtcdCluster) -> None:
    """Three groups of one: no member confirms a write; after heal all do."""
    cluster.partition({0}, {1}, {2})
    until(lambda: not any(can_write(member.endpoint, 0.5) for member in cluster.members))
    cluster.heal()
    for member in cluster.members:
        until(lambda m=member: can_write(m.endpoint))  # type: ignore[misc]


def test_a_frozen_leader_is_replaced(cluster: EtcdCluster) -> None:
    """C19, C20: a leader that is stopped keeps its connections and loses the lead."""
    old = cluster.wait_leader()
    cluster.freeze(old)
    new = cluster.wait_leader(apart_from={old})
    until(lambda: can_write(cluster.members[new].endpoint))
    cluster.thaw(old)
    until(lambda: can_write(cluster.members[old].endpoint))


def test_two_of_three_are_killed_and_come_back(cluster: EtcdCluster) -> None:
    """C19: with one member left nothing is written; on the same ports and data all is as before."""
    endpoints = cluster.endpoints
    cluster.kill(0)
    cluster.kill(1)
    assert not can_write(cluster.members[2].endpoint)
    cluster.restart(0, wait=False)
    cluster.restart(1)
    assert cluster.endpoints == endpoints
    until(lambda: can_write(cluster.members[2].endpoint))


def test_all_members_restored_from_one_snapshot(cluster: EtcdCluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A whole cluster restored goes back in revision together and works."""
    if cluster.binary.etcdctl is None:
        pytest.skip(f"no etcdctl beside {cluster.binary.etcd}")
    saved = cluster.members[0].status().revision
    path = cluster.members[0].snapshot(tmp_path_factory.mktemp("snapshot") / "backup.db")
    for _ in range(3):
        assert can_write(cluster.members[0].endpoint, 30)
    cluster.restore(path)
    assert {member.status().revision for member in cluster.members} == {saved}
    assert can_write(cluster.members[0].endpoint, 30)


def test_wrong_groups_and_use_before_start_are_refused(cluster: EtcdCluster) -> None:
    """A member in two groups, or one that is not there, is named."""
    for groups in ([{0}, {0, 1}], [{0}, {7}]):
        with pytest.raises(ConfigError):
            cluster.partition(*groups)
    with pytest.raises(ConfigError):
        EtcdCluster(0)
    with pytest.raises(Misuse):
        _ = EtcdCluster().endpoints


def grant(endpoint: str) -> int:
    """Grant a lease of a minute through this member."""
    with grpc.insecure_channel(endpoint, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_unary(
            "/etcdserverpb.Lease/LeaseGrant",
            request_serializer=pb.LeaseGrantRequest.SerializeToString,
            response_deserializer=pb.LeaseGrantResponse.FromString,
        )
        lease: int = call(pb.LeaseGrantRequest(TTL=60), timeout=30).ID
    return lease


def renew(endpoint: str, lease: int) -> bool:
    """True when this member confirms a renewal of the lease."""
    with grpc.insecure_channel(endpoint, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.stream_stream(
            "/etcdserverpb.Lease/LeaseKeepAlive",
            request_serializer=pb.LeaseKeepAliveRequest.SerializeToString,
            response_deserializer=pb.LeaseKeepAliveResponse.FromString,
        )
        try:
            reply = next(iter(call(iter([pb.LeaseKeepAliveRequest(ID=lease)]), timeout=5)))
        except (grpc.RpcError, StopIteration):
            return False
    return bool(reply.TTL > 0)


def bytes_with(cluster: EtcdCluster, lone: int) -> int:
    """All bytes that have gone to the lone member's peer port."""
    counts = cluster.peer_proxies[lone].counts
    return counts.bytes_to_server + counts.bytes_to_client
