"""`doctor` and rights against real etcds: plain, secured, full, frozen, and for a user who may see little."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import Keeper
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.testing import EtcdCluster, EtcdServer
from tests.commands import call
from tests.intermediary import Intermediary, altered
from tests.raw import RawEtcd
from tests.secured import PASSWORD, ROOT_PASSWORD, USER, Operator
from tests.support import tls_files


def findings(done: Any) -> dict[str, list[dict[str, Any]]]:
    """Findings of a doctor's JSON, by severity."""
    found: dict[str, list[dict[str, Any]]] = {"ok": [], "note": [], "warning": [], "error": []}
    for one in done.json["findings"]:
        found[one["severity"]].append(one)
    return found


def whats(found: list[dict[str, Any]]) -> str:
    """What they say, together."""
    return "\n".join(f"{one['where']}: {one['what']}" for one in found)


def beside_versions(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What must be acted on, beside the known faults of the very etcd that the tests run on."""
    return [one for one in found["warning"] + found["error"] if "upgrade" not in (one["do"] or "")]


# ---------------------------------------------------------------- plain


def test_a_plain_local_etcd(namespace: str) -> None:
    """One healthy local member: nothing to act on but the faults of its release; the JSON has its documented shape."""
    with EtcdServer(fsync=False) as own:
        done = call("doctor", "-o", "json", endpoint=own.endpoint, namespace=namespace)
        version = own.version
    found = findings(done)
    assert beside_versions(found) == []
    assert done.code == (1 if found["warning"] else 0)
    assert done.json["ok"] is (done.code == 0)
    assert set(done.json) == {"ok", "findings", "endpoints", "revision", "epoch", "identity"}
    (endpoint,) = done.json["endpoints"]
    assert (endpoint["endpoint"], endpoint["reachable"], endpoint["version"]) == (own.endpoint, True, version)
    assert set(endpoint) == {
        *("endpoint", "reachable", "version", "member", "leader", "learner", "db_size", "db_quota", "latency_ms"),
        "clock_ahead_s",
    }
    assert abs(endpoint["clock_ahead_s"]) < 3
    assert endpoint["latency_ms"] > 0
    assert "too early to tell" in whats(found["note"])


def test_the_identity_of_the_namespace(etcd: EtcdServer, namespace: str) -> None:
    """Its number, never its secret; none where no run was begun; and that it is gone, or damaged, where some were."""
    raw, key = RawEtcd(etcd.endpoint), f"leasekeeper/{namespace}/identity"
    where: dict[str, Any] = {"endpoint": etcd.endpoint, "namespace": namespace}
    none = call("doctor", "-o", "json", **where)
    assert none.json["identity"] is None
    assert "its identity" not in whats(none.json["findings"])
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        keeper.begin("order", id="1", signer=None)
    (stored,) = raw.keys(key)
    body = json.loads(stored.value)["body"]
    told = call("doctor", "-o", "json", **where)
    assert told.json["identity"] == body["uuid"]
    assert f"namespace: its identity is {body['uuid']}" in whats(findings(told)["ok"])
    assert body["secret"] not in told.out + told.err + call("doctor", **where).out
    for damaged, why in ((b"{}", "its identity cannot be told"), (None, "it is not there, and runs are")):
        raw.delete(key) if damaged is None else raw.put(key, damaged)
        lost = call("doctor", "-o", "json", **where)
        assert (lost.code, lost.json["identity"]) == (1, None)
        assert why in whats(findings(lost)["error"])


def test_the_page_for_people(etcd: EtcdServer, namespace: str) -> None:
    """Each finding is a row with its advice below, and the last line counts what needs action."""
    done = call("doctor", endpoint=etcd.endpoint, namespace=namespace)
    assert done.out.startswith("RESULT")
    assert etcd.endpoint in done.out
    assert bool(re.search(r"\d findings? to act on\.$", done.out.strip())) is (done.code == 1)


def test_it_writes_nothing(etcd: EtcdServer, namespace: str) -> None:
    """The store's revision and its leases are the same before and after, also where it may write."""
    raw = RawEtcd(etcd.endpoint)
    leases, before = raw.leases(), raw.keys(f"leasekeeper/{namespace}/")
    assert call("doctor", endpoint=etcd.endpoint, namespace=namespace).code in (0, 1)
    assert raw.keys(f"leasekeeper/{namespace}/") == before == []
    assert set(raw.leases()) <= set(leases) | {key.lease for key in raw.keys("leasekeeper/")}


def test_claims_that_need_a_person(etcd: EtcdServer, namespace: str) -> None:
    """C33: A key without a lease is an error with the command that removes it."""
    raw = RawEtcd(etcd.endpoint)
    raw.put(f"leasekeeper/{namespace}/lease/job/1", "")
    found = findings(call("doctor", "-o", "json", endpoint=etcd.endpoint, namespace=namespace))
    (error,) = found["error"]
    assert (error["where"], "has no lease" in error["what"]) == ("job", True)
    assert "leasekeeper break job --token" in error["do"]


def test_old_releases_are_named(etcd: EtcdServer, namespace: str) -> None:
    """C46: A member of a release with known lease faults is a warning, one that is too old an error; both change the code."""
    with Intermediary(etcd.endpoint) as between:
        for version, words in (("3.5.12", "revoked already"), ("3.3.27", "too old"), ("3.6.16", "")):
            between.off()

            def change(reply: pb.StatusResponse, version: str = version) -> None:
                reply.version = version

            between.on("Status", altered(pb.StatusResponse, change))
            done = call("doctor", "-o", "json", endpoint=between.endpoint, namespace=namespace)
            found = findings(done)
            amiss = found["warning"] + found["error"]  # a busy machine that is slow to answer is, too
            assert words in whats(amiss)
            assert (version in whats(amiss)) == bool(words)
            assert done.code == (1 if amiss else 0)


def test_history_that_was_never_compacted(namespace: str) -> None:
    """Fact 14: Where revision 1 can still be read after many more, the doctor warns; after a compaction it does not."""
    with EtcdServer(fsync=False) as own:
        raw = RawEtcd(own.endpoint)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("leasekeeper.cli.checkup.findings.YOUNG_REVISIONS", 5)
            for _ in range(10):
                raw.put("churn", "x")
            before = findings(call("doctor", "-o", "json", endpoint=own.endpoint, namespace=namespace))
            raw.compact()
            after = findings(call("doctor", "-o", "json", endpoint=own.endpoint, namespace=namespace))
    assert "automatic compaction seems to be off" in whats(before["warning"])
    assert "compacted" in whats(after["ok"])


def test_a_full_database(namespace: str) -> None:
    """C42: NOSPACE is an error with what to do; everything can still be looked at, and acquiring says what is wrong."""
    with EtcdServer(fsync=False, quota_bytes=64 * 1024) as own:
        raw = RawEtcd(own.endpoint)
        raw.fill()
        done = call("doctor", "-o", "json", endpoint=own.endpoint, namespace=namespace)
        found = findings(done)
        assert done.code == 1
        assert "NOSPACE" in whats(found["error"])
        assert "may read and write" in whats(found["ok"])
        assert call("ls", endpoint=own.endpoint, namespace=namespace).code == 0
        full = call("acquire", "job", "--timeout", "1", endpoint=own.endpoint, namespace=namespace)
        assert full.code == 69
        assert "out of space" in full.err


# ---------------------------------------------------------------- reachability


def test_no_endpoint_answers(namespace: str) -> None:
    """69, and each endpoint is an error with its reason."""
    done = call("doctor", "-o", "json", endpoint="127.0.0.1:9,127.0.0.1:11", namespace=namespace)
    assert done.code == 69
    assert [one["where"] for one in findings(done)["error"]] == ["127.0.0.1:9", "127.0.0.1:11"]
    assert done.json["ok"] is False


def test_one_endpoint_of_two_is_down(etcd: EtcdServer, namespace: str) -> None:
    """1: the good one is examined, the other is an error."""
    done = call("doctor", "-o", "json", endpoint=f"127.0.0.1:9,{etcd.endpoint}", namespace=namespace)
    assert done.code == 1
    assert [one["where"] for one in findings(done)["error"]] == ["127.0.0.1:9"]
    assert [one["reachable"] for one in done.json["endpoints"]] == [False, True]


def test_a_frozen_etcd_does_not_hang_it(namespace: str) -> None:
    """A server that accepts and never answers is told as such within the timeout."""
    with EtcdServer(fsync=False) as own:
        own.freeze()
        try:
            done = call("doctor", "--timeout", "500ms", endpoint=own.endpoint, namespace=namespace)
        finally:
            own.thaw()
    assert done.code == 69
    assert "cannot be reached" in done.out


@pytest.mark.cluster
def test_a_cluster(etcd_cluster: EtcdCluster, namespace: str) -> None:
    """Three members: may lose one; with one endpoint only, the others are named; without a majority it says so."""
    everything = ",".join(member.endpoint for member in etcd_cluster.members)
    found = findings(call("doctor", "-o", "json", endpoint=everything, namespace=namespace))
    assert "3 voting members: 1 may be away" in whats(found["ok"])
    assert beside_versions(found) == []
    one = findings(call("doctor", "-o", "json", endpoint=etcd_cluster.members[0].endpoint, namespace=namespace))
    assert "reach 1 of 3" in whats(one["note"])
    followers = etcd_cluster.members[1:]
    for member in followers:
        member.freeze()
    try:
        lonely = call("doctor", "-o", "json", "--timeout", "2", endpoint=everything, namespace=namespace)
    finally:
        for member in followers:
            member.thaw()
    assert lonely.code == 1
    assert "did not answer" in whats(findings(lonely)["error"])


# ---------------------------------------------------------------- TLS


def test_tls(tmp_path: Path, namespace: str) -> None:
    """By options and by etcdctl's variables; without certificates it is a matter of configuration, said in one line."""
    files = tls_files(tmp_path)
    options = ["--cacert", str(files.ca), "--cert", str(files.client_cert), "--key", str(files.client_key)]
    variables = {
        "ETCDCTL_CACERT": str(files.ca),
        "ETCDCTL_CERT": str(files.client_cert),
        "ETCDCTL_KEY": str(files.client_key),
    }
    with EtcdServer(fsync=False, tls=files) as own:
        for done in (
            call("doctor", "-o", "json", *options, endpoint=own.url, namespace=namespace),
            call("doctor", "-o", "json", endpoint=own.url, namespace=namespace, env=variables),
        ):
            found = findings(done)
            assert "TLS" in whats(found["ok"])
            assert beside_versions(found) == []
            assert done.json["endpoints"][0]["clock_ahead_s"] is not None
        plain = call("ls", "--timeout", "2", endpoint=own.url, namespace=namespace)
        assert plain.code in (2, 69)
        assert plain.err.count("\n") == 1
        nobody = call("doctor", "-o", "json", endpoint=own.url, namespace=namespace)
        assert nobody.code == 69
        assert "cannot be reached" in whats(findings(nobody)["error"])


# ---------------------------------------------------------------- users and rights


@pytest.fixture(scope="module")
def secured() -> Iterator[EtcdServer]:
    """An etcd with authentication, where alice may use the namespace "team" and bob may only read it."""
    with EtcdServer(fsync=False) as server:
        operator = Operator(server.endpoint)
        operator.add_role("team", "leasekeeper/team/")
        operator.add_role("reader", "leasekeeper/team/", "READ")
        operator.add_user(USER, PASSWORD, "team")
        operator.add_user("bob", "b", "reader")
        operator.add_user("eve", "e")
        operator.enable_auth()
        yield server


ALICE = {"LEASEKEEPER_USER": USER, "LEASEKEEPER_PASSWORD": PASSWORD}
BOB = {"LEASEKEEPER_USER": "bob:b"}
EVE = {"LEASEKEEPER_USER": "eve:e"}


def test_a_role_for_one_prefix_is_enough(secured: EtcdServer) -> None:
    """C54: Every command works for a user whose role covers the namespace and nothing else."""
    where: dict[str, Any] = {"endpoint": secured.endpoint, "namespace": "team", "env": ALICE}
    variables = {"user": USER, "password": PASSWORD}
    with Keeper(secured.endpoint, namespace="team", **variables) as keeper:  # type: ignore[arg-type]
        lease = keeper.acquire("job")
        assert call("ls", **where).code == 0
        shown = call("show", "job", "-o", "json", **where)
        assert shown.code == 0
        assert shown.json["owner"]["standing"] in ("alive", "unknown")
        assert call("verify", "job", str(lease.token), **where).code == 0
        assert call("watch", "--timeout", "0.1", **where).code == 0
        assert call("epoch", "show", **where).code == 0
        assert call("break", "job", "--token", str(lease.token), "--yes", **where).code == 0
        assert call("run", "job", "--", "true", **where).code == 0
        done = call("doctor", "-o", "json", **where)
    found = findings(done)
    assert beside_versions(found) == []
    assert f"as '{USER}'" in whats(found["ok"])
    assert "may read and write namespace 'team'" in whats(found["ok"])
    assert PASSWORD not in done.out


def test_root_sees_everything(secured: EtcdServer) -> None:
    """With all rights nothing is "not allowed to see"."""
    root = {"LEASEKEEPER_USER": "root", "LEASEKEEPER_PASSWORD": ROOT_PASSWORD}
    done = call("doctor", "-o", "json", endpoint=secured.endpoint, namespace="team", env=root)
    assert "not allowed" not in done.out
    assert beside_versions(findings(done)) == []


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, "asks for a login and none is configured"),
        ({"LEASEKEEPER_USER": USER, "LEASEKEEPER_PASSWORD": "wr0ng"}, "wrong user or password"),
        (EVE, "denies"),
    ],
)
@pytest.mark.parametrize(
    "args",
    [
        ["ls"],
        ["show", "job"],
        ["verify", "job", "7"],
        ["epoch", "show"],
        ["epoch", "bump"],
        ["watch"],
        ["break", "job", "--token", "7", "--yes"],
        ["acquire", "job", "--timeout", "2"],
        ["run", "job", "--timeout", "2", "--", "true"],
    ],
)
def test_missing_rights_are_77(secured: EtcdServer, args: list[str], env: dict[str, str], words: str) -> None:
    """No login, a wrong password and missing rights: 77 and one line that says which; never the password."""
    done = call(*args, endpoint=secured.endpoint, namespace="team", env=env)
    assert (done.code, done.out) == (77, "")
    assert done.err.count("\n") == 1
    assert words in done.err
    assert "wr0ng" not in done.err


def test_the_doctor_tells_what_is_missing(secured: EtcdServer) -> None:
    """A reader may not write, a stranger may do nothing, nobody has no login: each is an error that says what to grant."""
    for env, words in ((BOB, "may not write"), (EVE, "may not read"), ({}, "may not read")):
        done = call("doctor", "-o", "json", endpoint=secured.endpoint, namespace="team", env=env)
        found = findings(done)
        assert done.code == 1
        assert words in whats(found["error"])
        assert "leasekeeper/team/" in found["error"][0]["do"]


def test_a_wrong_password_at_the_doctor(secured: EtcdServer) -> None:
    """It is a finding, not a crash, and the password is not in it."""
    env = {"LEASEKEEPER_USER": USER, "LEASEKEEPER_PASSWORD": "wr0ng"}
    done = call("doctor", endpoint=secured.endpoint, namespace="team", env=env)
    assert done.code == 1
    assert "wr0ng" not in done.out + done.err


def test_users_where_nobody_asks_for_them(etcd: EtcdServer, namespace: str) -> None:
    """A user is given and authentication is off: everything works, and the doctor says so."""
    done = call("doctor", "-o", "json", endpoint=etcd.endpoint, namespace=namespace, env=BOB)
    assert "authentication is off" in whats(findings(done)["note"])
    assert call("ls", endpoint=etcd.endpoint, namespace=namespace, env=BOB).code == 0


def test_the_variables_of_etcdctl_are_enough(secured: EtcdServer) -> None:
    """An operator who has set ETCDCTL_ENDPOINTS and ETCDCTL_USER needs nothing else."""
    env = {"ETCDCTL_ENDPOINTS": f"http://{secured.endpoint}", "ETCDCTL_USER": f"{USER}:{PASSWORD}"}
    assert call("ls", namespace="team", env=env).code == 0
