"""The fourth way to an etcd: a container, where a Docker daemon answers and LEASEKEEPER_ETCD_IMAGE names an image."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from leasekeeper.errors import ConfigError, Misuse, Unavailable
from leasekeeper.testing import EtcdBinary, EtcdCluster, EtcdServer, binary, container, find_etcd
from tests.support import until

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        container.VARIABLE not in os.environ or container.image_of_a_daemon_that_answers() is None,
        reason=f"needs Docker, testcontainers, and a local image named by {container.VARIABLE}",
    ),
]


@pytest.fixture(scope="module")
def image() -> EtcdBinary:
    """The image as ``find_etcd`` describes it."""
    return EtcdBinary(etcd=os.environ[container.VARIABLE], source="docker")


@pytest.fixture
def server(image: EtcdBinary) -> Iterator[EtcdServer]:
    """A server in a container."""
    with EtcdServer(binary=image) as started:
        yield started


def test_docker_is_the_last_way(
    image: EtcdBinary, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without a variable, a program on PATH or the package, the container is found."""
    monkeypatch.delenv(binary.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("empty")))
    monkeypatch.setattr(binary, "_package_directories", list)
    assert find_etcd() == image


def test_it_lives_like_a_process(server: EtcdServer) -> None:
    """Start, restart, kill, freeze, thaw and the log are as with a plain process; identity and ports stay."""
    member, endpoint = server.status().member_id, server.endpoint
    server.restart()
    server.kill()
    with pytest.raises(Misuse):
        _ = server.pid
    server.start()
    assert (server.status().member_id, server.endpoint) == (member, endpoint)
    server.freeze()
    with pytest.raises(Unavailable):
        server.status(timeout_s=0.3)
    server.thaw()
    server.wait_ready()
    assert "raft" in server.log_tail(200)
    server.freeze()
    server.stop()


def test_control_programs_are_out_of_reach(server: EtcdServer) -> None:
    """A snapshot is refused with the name of what is missing."""
    with pytest.raises(ConfigError, match="etcdctl"):
        server.snapshot("backup.db")


def test_an_image_that_is_not_there_is_unavailable() -> None:
    """An image that can be neither found nor pulled is one clear error."""
    with pytest.raises(Unavailable, match="no-such-image"):
        EtcdServer(binary=EtcdBinary(etcd="no-such-image:none", source="docker")).start()


STARTER = """
import sys, time
from leasekeeper.testing import EtcdBinary, EtcdServer

server = EtcdServer(binary=EtcdBinary(etcd=sys.argv[1], source="docker"))
server.start()
print(server.endpoint, flush=True)
time.sleep(600)
"""


def test_a_container_goes_with_a_killed_starter(image: EtcdBinary) -> None:
    """C28: SIGKILL for the process that started a container removes it, although the daemon is its parent."""
    with subprocess.Popen([sys.executable, "-c", STARTER, image.etcd], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        endpoint = starter.stdout.readline().strip()
        starter.kill()
    host, _, port = endpoint.rpartition(":")

    def refuses() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) != 0

    until(refuses, timeout_s=60)


@pytest.mark.cluster
def test_a_cluster_of_containers_can_be_partitioned(image: EtcdBinary) -> None:
    """Peers in containers are told apart as well, where the daemon's processes are visible to us."""
    with EtcdCluster(3, binary=image) as cluster:
        old = cluster.wait_leader()
        cluster.isolate(old)
        cluster.wait_leader(apart_from={old})
        cluster.heal()
        cluster.wait_ready()
