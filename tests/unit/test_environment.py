"""Settings from the environment: ours first, then those that operators have set for etcdctl."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from leasekeeper.errors import ConfigError
from leasekeeper.wire.channel import TLS
from leasekeeper.wire.environment import key_file, read_environment


def test_an_empty_environment_sets_nothing() -> None:
    """The keeper's own defaults hold; an empty variable counts as not set."""
    assert read_environment({}) == {}
    empty = {
        f"LEASEKEEPER_{name}": "" for name in ("ENDPOINTS", "NAMESPACE", "HOLDER", "USER", "PASSWORD", "CACERT", "KEY")
    }
    assert read_environment(empty) == {}
    assert read_environment({**empty, "ETCDCTL_ENDPOINTS": "a:1"}) == {"endpoints": "a:1"}


def test_ours_come_before_etcdctls() -> None:
    """LEASEKEEPER_* decide; ETCDCTL_* fill in what they leave open."""
    env = {
        "LEASEKEEPER_ENDPOINTS": "a:1,b:2",
        "LEASEKEEPER_NAMESPACE": "prod",
        "LEASEKEEPER_HOLDER": "me",
        "ETCDCTL_ENDPOINTS": "c:3",
        "ETCDCTL_USER": "root",
        "ETCDCTL_PASSWORD": "pw",
        "ETCDCTL_NAMESPACE": "not ours",
    }
    assert read_environment(env) == {
        "endpoints": "a:1,b:2",
        "namespace": "prod",
        "holder": "me",
        "user": "root",
        "password": "pw",
    }


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({"ETCDCTL_USER": "root:pw"}, ("root", "pw")),
        ({"ETCDCTL_USER": "root:p:w"}, ("root", "p:w")),
        ({"ETCDCTL_USER": "root", "ETCDCTL_PASSWORD": "pw"}, ("root", "pw")),
        ({"ETCDCTL_USER": "ro:ot", "ETCDCTL_PASSWORD": "pw"}, ("ro:ot", "pw")),
        ({"ETCDCTL_USER": "root:pw", "ETCDCTL_PASSWORD": ""}, ("root", "pw")),
        ({"ETCDCTL_USER": "root"}, ("root", None)),
        ({"ETCDCTL_USER": "root:"}, ("root", None)),
        ({"ETCDCTL_PASSWORD": "pw"}, (None, "pw")),
        ({"LEASEKEEPER_USER": "me:mine", "ETCDCTL_USER": "root", "ETCDCTL_PASSWORD": "theirs"}, ("me", "mine")),
        ({"LEASEKEEPER_USER": "me:mine", "ETCDCTL_PASSWORD": "theirs"}, ("me", "mine")),
        ({"LEASEKEEPER_USER": "me", "ETCDCTL_PASSWORD": "shared"}, ("me", "shared")),
        ({"LEASEKEEPER_USER": "me", "ETCDCTL_USER": "root:theirs"}, ("me", None)),
        ({"LEASEKEEPER_PASSWORD": "mine", "ETCDCTL_USER": "root:theirs"}, ("root", "mine")),
        ({"LEASEKEEPER_USER": "me", "LEASEKEEPER_PASSWORD": "mine", "ETCDCTL_USER": "root:theirs"}, ("me", "mine")),
    ],
    ids=str,
)
def test_who_logs_in(env: dict[str, str], found: tuple[str | None, str | None]) -> None:
    """name:password as for etcdctl; a password that came with one user is never sent for another."""
    settings = read_environment(env)
    assert (settings.get("user"), settings.get("password")) == found


def test_tls_files_are_checked_at_once(tmp_path: Path) -> None:
    """A file that cannot be used is told when the environment is read, by its name."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    assert read_environment({"ETCDCTL_CACERT": str(tmp_path / "ca.pem")}) == {"tls": TLS(ca=str(tmp_path / "ca.pem"))}
    with pytest.raises(ConfigError) as caught:
        read_environment({"LEASEKEEPER_CACERT": str(tmp_path / "none.pem"), "ETCDCTL_CACERT": str(tmp_path / "ca.pem")})
    assert caught.value.field == "ca"


def test_the_key_of_a_claim_is_not_a_private_key() -> None:
    """Under `leasekeeper run` LEASEKEEPER_KEY names a key in etcd; it is told from a file by the token beside it."""
    claim = {"LEASEKEEPER_KEY": "leasekeeper/default/lease/n/1f", "LEASEKEEPER_TOKEN": "42"}
    assert key_file(claim) is None
    assert read_environment(claim) == {}
    assert key_file({**claim, "LEASEKEEPER_KEY_FILE": "/etc/key.pem"}) == "/etc/key.pem"
    assert key_file({"LEASEKEEPER_KEY": "/etc/key.pem"}) == "/etc/key.pem"
    assert key_file({"LEASEKEEPER_KEY": "leasekeeper/key.pem"}) == "leasekeeper/key.pem"
