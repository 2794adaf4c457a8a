"""The command line of an etcd server: settings of ours spelled as etcd's flags."""

from __future__ import annotations

import re
from dataclasses import dataclass

from leasekeeper.errors import ConfigError
from leasekeeper.testing.binary import EtcdBinary
from leasekeeper.testing.health import TLSFiles
from leasekeeper.testing.ports import HOST

OLDEST_NO_FSYNC = (3, 4, 20)


@dataclass(frozen=True, slots=True)
class Membership:
    """The place of a server in a cluster of several: what its peers know of it, and it of them.

    ``initial_cluster`` has etcd's form ``name=url,name=url``; ``peer_url`` is the URL in it that
    belongs to this member, which may be a proxy in front of ``peer_port``.
    """

    name: str
    peer_port: int
    peer_url: str
    initial_cluster: str
    token: str

    def as_flags(self) -> list[str]:
        """What names the member to etcd: the same for a start and for a restore."""
        return [
            f"--name={self.name}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            f"--initial-cluster={self.initial_cluster}",
            f"--initial-cluster-token={self.token}",
        ]


def alone(peer_port: int) -> Membership:
    """The place of a server that has no peers."""
    url = f"http://{HOST}:{peer_port}"
    return Membership("default", peer_port, url, f"default={url}", "etcd-cluster")


def settings(
    quota_bytes: int | None,
    auth_token_ttl_s: int | None,
    election_timeout_ms: int | None,
    snapshot_count: int | None,
) -> list[str]:
    """The flags of the settings that are given; ConfigError for one that cannot be."""
    given = {
        "quota-backend-bytes": quota_bytes,
        "auth-token-ttl": auth_token_ttl_s,
        "election-timeout": election_timeout_ms,
        "snapshot-count": snapshot_count,
    }
    for name, value in given.items():
        if value is not None and value <= 0:
            raise ConfigError(field=name, value=value, expected="a number above 0")
    if election_timeout_ms is not None:
        # etcd wants the election timeout to be at least five of its heartbeats.
        given["heartbeat-interval"] = max(1, min(100, election_timeout_ms // 10))
    return [f"--{name}={value}" for name, value in given.items() if value is not None]


def no_fsync(binary: EtcdBinary) -> list[str]:
    """The flag that leaves fsync out, for releases that then still write what they do not sync.

    The first ones that knew the flag kept the log in their own memory, where a kill would lose confirmed writes.
    """
    release = tuple(int(part) for part in re.findall(r"\d+", binary.version)[:3])
    return ["--unsafe-no-fsync"] if release >= OLDEST_NO_FSYNC else []


def tls_files(tls: TLSFiles | None) -> list[str]:
    """The flags that make the client port speak TLS and ask for certificates."""
    if tls is None:
        return []
    return [
        f"--cert-file={tls.cert}",
        f"--key-file={tls.key}",
        f"--trusted-ca-file={tls.ca}",
        "--client-cert-auth",
    ]
