"""Starting, stopping and damaging one real etcd, on every etcd that this machine has."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasekeeper.errors import AuthError, ConfigError, Misuse, Unavailable
from leasekeeper.testing import EtcdServer, Gateway, binary, find_etcd, ports
from tests.support import tls_files, until

BUILT = sorted((Path(__file__).parents[2] / "build" / "etcd").glob("*/etcd"))


def found_etcds() -> list[str]:
    """Every etcd at hand: the one that tests use, Debian's, the package's, those built from source."""
    packaged = [directory / "etcdbin" / "etcd" for directory in binary._package_directories()]
    candidates = [find_etcd().etcd, "/usr/bin/etcd", *map(str, packaged), *map(str, BUILT)]
    return [path for path in dict.fromkeys(candidates) if shutil.which(path)]


@pytest.fixture(params=found_etcds())
def server(request: pytest.FixtureRequest) -> Iterator[EtcdServer]:
    """A server of this test's own, once per etcd."""
    with EtcdServer(binary=request.param, fsync=False) as started:
        yield started


def etcdctl(server: EtcdServer, *arguments: str) -> str:
    """Run the etcdctl that belongs to the server."""
    if server.binary.etcdctl is None:
        pytest.skip(f"no etcdctl beside {server.binary.etcd}")
    done = subprocess.run(
        [server.binary.etcdctl, f"--endpoints={server.url}", *arguments],
        env={"PATH": os.environ["PATH"], "ETCDCTL_API": "3"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout


def test_it_serves_as_soon_as_it_is_entered(server: EtcdServer) -> None:
    """Inside the with statement the server answers, and says what its program says."""
    assert server.version == server.binary.version
    assert server.endpoint.startswith("127.0.0.1:")
    assert server.status().leader_id == server.status().member_id
    assert server.data_dir.is_dir()
    etcdctl(server, "put", "a", "1")
    assert "1" in etcdctl(server, "get", "a")


def test_restart_keeps_data_endpoint_and_identity(server: EtcdServer) -> None:
    """After stop, kill and restart it is the same server, with every confirmed write."""
    etcdctl(server, "put", "a", "1")
    endpoint, member, pid = server.endpoint, server.status().member_id, server.pid
    server.restart()
    assert server.pid != pid
    server.kill()
    assert not server.is_running
    with pytest.raises(Misuse):
        _ = server.pid
    server.start()
    assert (server.endpoint, server.status().member_id) == (endpoint, member)
    assert "1" in etcdctl(server, "get", "a")


def test_a_frozen_server_is_silent_thaws_and_can_be_stopped(server: EtcdServer) -> None:
    """SIGSTOP makes it accept and say nothing; it goes on after SIGCONT, and stop() ends it frozen."""
    server.freeze()
    with pytest.raises(Unavailable):
        server.status(timeout_s=0.3)
    server.thaw()
    server.wait_ready()
    server.freeze()
    pid = server.pid
    server.stop(timeout_s=5)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_restore_brings_old_data_and_an_old_revision(server: EtcdServer, tmp_path: Path) -> None:
    """A snapshot restored is a real disaster recovery: data and revision go back, ids stay."""
    etcdctl(server, "put", "a", "before")
    saved = server.status()
    path = server.snapshot(tmp_path / "backup.db")
    etcdctl(server, "put", "a", "after")
    server.restore(path)
    now = server.status()
    assert "before" in etcdctl(server, "get", "a")
    assert (now.revision, now.member_id) == (saved.revision, saved.member_id)


def test_nothing_is_left_behind() -> None:
    """After the with statement the process and the directory are gone."""
    with EtcdServer(fsync=False) as server:
        pid, home = server.pid, server.data_dir.parent
    assert not home.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    server.close()


def test_a_data_directory_of_the_users_own_is_kept(tmp_path: Path) -> None:
    """Data in a named directory outlive the server, and the next one finds them."""
    with EtcdServer(data_dir=tmp_path / "data", fsync=False) as first:
        etcdctl(first, "put", "a", "kept")
    with EtcdServer(data_dir=tmp_path / "data", fsync=False) as second:
        assert "kept" in etcdctl(second, "get", "a")


def test_settings_reach_the_server() -> None:
    """A quota of a few pages is soon full: NOSPACE, which the ready check does not mind."""
    with EtcdServer(quota_bytes=64 * 1024, fsync=False) as server:
        etcdctl(server, "put", "small", "x")

        def is_full() -> bool:
            try:
                etcdctl(server, "put", "large", "x" * 60_000)
            except subprocess.CalledProcessError as error:
                return "database space exceeded" in error.stderr
            return False

        until(is_full)
        assert "NOSPACE" in etcdctl(server, "alarm", "list")
        server.restart()


def test_a_taken_port_is_one_clear_error() -> None:
    """With a fixed port in use it says which and gives up within a bound, stale server or not."""
    with ports.listener() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"127.0.0.1:{port}: address already in use"):
            EtcdServer(client_port=port).start()


def test_a_lost_race_for_a_port_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a drawn port turns out to be taken, others are drawn and the server comes up."""
    with ports.listener() as taken, EtcdServer(fsync=False) as reference:
        drawn = iter([taken.getsockname()[1], ports.free_port()])
        real = ports.free_port
        monkeypatch.setattr(ports, "free_port", lambda: next(drawn, None) or real())
        monkeypatch.setattr(ports, "is_free", lambda port: True)
        with EtcdServer(binary=reference.binary, fsync=False) as server:
            assert server.status().leader_id


def test_a_server_that_cannot_start_shows_its_log() -> None:
    """A wrong flag is reported with what etcd said about it."""
    server = EtcdServer(extra_args=["--no-such-flag"])
    with pytest.raises(Unavailable, match="no-such-flag"):
        server.start()
    server.close()


def test_wrong_settings_are_named() -> None:
    """A setting that cannot be is refused before anything starts."""
    with pytest.raises(ConfigError, match="quota-backend-bytes"):
        EtcdServer(quota_bytes=0)
    with pytest.raises(ConfigError, match="LEASEKEEPER_ETCD"):
        EtcdServer(binary="/does/not/exist")
    with pytest.raises(Misuse):
        _ = EtcdServer().endpoint


def test_a_missing_control_program_is_named(tmp_path: Path) -> None:
    """With the server's program alone, saving and restoring say what is missing and change nothing."""
    lonely = tmp_path / "etcd"
    shutil.copy2(find_etcd().etcd, lonely)
    with EtcdServer(binary=lonely, fsync=False) as server:
        pid = server.pid
        with pytest.raises(ConfigError, match="etcdctl"):
            server.snapshot(tmp_path / "backup.db")
        with pytest.raises(ConfigError, match="etcdutl"):
            server.restore(tmp_path / "backup.db")
        assert server.pid == pid


@pytest.mark.parametrize("path", found_etcds())
def test_tls_with_client_certificates(path: str, tmp_path: Path) -> None:
    """With TLS it serves who shows a certificate, and snapshots and restores all the same."""
    with EtcdServer(binary=path, tls=tls_files(tmp_path), fsync=False) as server:
        assert server.url.startswith("https://")
        assert server.version == server.binary.version
        assert server.status().leader_id
        with pytest.raises(Unavailable):
            Gateway(server.endpoint).status(timeout_s=10)
        if server.binary.etcdctl is not None:
            server.restore(server.snapshot(tmp_path / "backup.db"))
            assert server.status().leader_id


def test_the_environment_does_not_leak_into_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that etcd takes for flags (ETCD_…) are the user's shell's, not this server's."""
    monkeypatch.setenv("ETCD_NAME", "from-the-shell")
    monkeypatch.setenv("ETCD_LISTEN_CLIENT_URLS", "http://127.0.0.1:1")
    with EtcdServer(fsync=False) as server:
        members = json.loads(etcdctl(server, "member", "list", "-w", "json"))
        assert [member["name"] for member in members["members"]] == ["default"]


def test_with_authentication_it_still_starts_and_answers_its_user(server: EtcdServer, tmp_path: Path) -> None:
    """C21: restarts and snapshots work with authentication on; a status is never made up where it is refused."""
    etcdctl(server, "user", "add", "root:secret")
    if "root" not in etcdctl(server, "role", "list"):
        etcdctl(server, "role", "add", "root")
    etcdctl(server, "user", "grant-role", "root", "root")
    etcdctl(server, "auth", "enable")
    server.restart()
    with contextlib.suppress(AuthError):  # 3.4 and 3.5 tell their status to anybody
        assert server.status().leader_id
    server.user = "root:secret"
    assert server.status().leader_id
    server.restore(server.snapshot(tmp_path / "backup.db"))
    assert server.status().leader_id
    server.user = "root:wrong"
    with pytest.raises(AuthError, match="authentication failed") as caught:
        server.status()
    assert caught.value.user == "root"
    assert "wrong" not in str(caught.value)
