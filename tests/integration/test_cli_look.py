"""`ls`, `show` and `verify` against a real etcd: what they say, in which shape, and what cannot deceive them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from leasekeeper import Keeper
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.testing import EtcdServer
from tests.commands import Command, environment
from tests.intermediary import Intermediary, altered
from tests.raw import RawEtcd

EVIL = "\x1b[31mred\x1b[0m [bold]x[/bold] \u202egnp \x07\x9b2J"
HELD = re.compile(r"at least \d+ s")


def record(**changed: object) -> str:
    """A claim's record as leasekeeper writes it, with something changed."""
    fields = {
        "v": 1,
        "nonce": "n0",
        "holder": "h",
        "host": "box",
        "pid": 7,
        "note": "",
        "claimed_at": 1_772_366_400.0,
        "ttl": 10,
        "epoch": 0,
    }
    return json.dumps({**fields, **changed})


# ---------------------------------------------------------------- ls


def test_ls_lists_owners_and_counts_waiters(cli: Any, keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """One row per name: holder, token, age, time left and how many wait."""
    lease = keeper.acquire("job/a")
    raw.put(f"leasekeeper/{namespace}/lease/job%2Fa/ffff", record(holder="second"), raw.grant(60))
    kept = keeper.acquire("other")
    done = cli("ls")
    assert done.code == 0
    heading, first, second = done.out.splitlines()
    assert heading.split("  ")[0] == "NAME"
    assert re.fullmatch(rf"job/a +worker-1 +{lease.token} +\ds +at least \d+ s +1", first)
    assert second.startswith("other ")
    assert [line.split()[0] for line in cli("ls", "job").out.splitlines()] == ["NAME", "job/a"]
    kept.release()


def test_ls_of_nothing_is_done(cli: Any) -> None:
    """No names is an answer: exit code 0, nothing on stdout, a note for people."""
    done = cli("ls")
    assert (done.code, done.out) == (0, "")
    assert "nobody claims a name" in done.err
    assert cli("ls", "-o", "json").json == []


def test_ls_json_has_its_documented_shape(cli: Any, keeper: Keeper) -> None:
    """The JSON of `ls` has exactly the documented fields, of the documented kinds; the token is text."""
    lease = keeper.acquire("job", note="nightly")
    (listed,) = cli("ls", "-o", "json").json
    owner = listed.pop("owner")
    assert listed == {"name": "job", "lock_key": lease.key.rpartition("/")[0], "waiting": 0}
    assert owner.pop("age_s") >= 0
    assert 0 <= owner.pop("ttl_left_s") <= owner.pop("ttl_s")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", owner.pop("claimed_at"))
    assert owner.pop("standing") in ("alive", "expiring")
    assert owner.pop("host")
    assert owner.pop("pid") > 0
    assert owner == {
        "token": str(lease.token),
        "holder": "worker-1",
        "note": "nightly",
        "key": lease.key,
        "lease": f"{lease.lease_id:x}",
        "claim": lease.claim,
        "epoch": 0,
        "create_revision": lease.token,
        "record": "ok",
    }


def test_tokens_above_2_53_stay_exact(cli: Any, keeper: Keeper) -> None:
    """A token that a double cannot hold comes through JSON digit by digit."""
    assert cli("epoch", "bump").code == 0
    lease = keeper.acquire("job")
    assert lease.token > 2**53
    assert cli("ls", "-o", "json").json[0]["owner"]["token"] == str(lease.token)
    assert cli("verify", "job", str(lease.token)).code == 0


def test_ls_walks_over_pages(cli: Any, raw: RawEtcd, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that is spread over pages is one row, with its true owner and all that wait."""
    monkeypatch.setattr("leasekeeper.protocol.inspect.PAGE", 3)
    lease = raw.grant(60)
    for name in "abc":
        for number in (9, 8, 7, 6, 5):
            raw.put(f"leasekeeper/{namespace}/lease/{name}/{number}", record(holder=f"{name}{number}"), lease)
    listed = cli("ls", "-o", "json").json
    assert [(one["name"], one["owner"]["holder"], one["waiting"]) for one in listed] == [
        ("a", "a9", 4),
        ("b", "b9", 4),
        ("c", "c9", 4),
    ]


# ---------------------------------------------------------------- show


def test_show_tells_owner_queue_and_lock_key(cli: Any, keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """`show` tells everything about the owner, who waits in order, and the key to give to `etcdctl lock`."""
    lease = keeper.acquire("job/a", note="nightly")
    for number in (1, 2):
        raw.put(f"leasekeeper/{namespace}/lease/job%2Fa/f{number}", record(holder=f"waiter-{number}"), raw.grant(60))
    done = cli("show", "job/a")
    assert done.code == 0
    for text in (
        f"lock key    leasekeeper/{namespace}/lease/job%2Fa",
        "owner       worker-1",
        "note        nightly",
        f"token       {lease.token}",
        f"lease       {lease.lease_id:x}",
        "2 claims waiting",
    ):
        assert text in done.out
    assert HELD.search(done.out)
    (remove,) = [line.strip() for line in done.out.splitlines() if "leasekeeper break" in line]
    assert remove == f"leasekeeper break job/a --token {lease.token}"
    assert done.out.index("waiter-1") < done.out.index("waiter-2")
    shown = cli("show", "job/a", "-o", "json").json
    assert [one["holder"] for one in shown["waiters"]] == ["waiter-1", "waiter-2"]
    assert set(shown) == {"name", "lock_key", "owner", "waiting", "waiters"}


def test_the_command_that_show_gives_removes_just_this_claim(cli: Any, keeper: Keeper) -> None:
    """It can be pasted as it stands, whatever the name, and ends the claim that was shown."""
    lease = keeper.acquire("-odd name/'a'")
    done = cli("show", "--", "-odd name/'a'")
    (remove,) = [line for line in done.out.splitlines() if "leasekeeper break" in line]
    removed = cli(*shlex.split(remove)[1:], answer="y\n")
    assert removed.code == 0
    assert f"removed the claim with token {lease.token}" in removed.out


def test_show_of_a_free_name_is_a_negative_answer(cli: Any) -> None:
    """A name that nobody claims: exit code 1, and the page says so; in JSON the owner is null."""
    done = cli("show", "job")
    assert done.code == 1
    assert "nobody" in done.out
    assert cli("show", "job", "-o", "json").json["owner"] is None


def test_the_lock_key_is_the_one_of_etcdctl_lock(cli: Any, keeper: Keeper, raw: RawEtcd) -> None:
    """Who locks the shown key with etcd's own tools stands in the same queue, and shows as foreign."""
    shown = cli("show", "job", "-o", "json").json
    raw.put(f"{shown['lock_key']}/abc", "", raw.grant(60))
    assert keeper.try_acquire("job") is None
    done = cli("show", "job")
    assert "(foreign)" in done.out
    assert cli("show", "job", "-o", "json").json["owner"]["record"] == "foreign"


# ---------------------------------------------------------------- odd and hostile claims


@pytest.mark.parametrize(
    ("value", "flag", "words"),
    [
        ("", "foreign", "(foreign)"),
        ("anything", "foreign", "(foreign)"),
        (record(v=99), "newer", "(newer format)"),
        ("{broken", "corrupt", "(corrupt record)"),
        (record(pid="x"), "corrupt", "(corrupt record)"),
        (record(claimed_at="yesterday"), "corrupt", "(corrupt record)"),
        (json.dumps({"v": 1}), "corrupt", "(corrupt record)"),
        ("[" * 5000, "corrupt", ""),
    ],
)
def test_odd_records_are_flagged(cli: Any, raw: RawEtcd, namespace: str, value: str, flag: str, words: str) -> None:
    """A record that cannot be read in full keeps its place and is flagged; nothing fails on it."""
    raw.put(f"leasekeeper/{namespace}/lease/job/1", value, raw.grant(60))
    (listed,) = cli("ls", "-o", "json").json
    assert listed["owner"]["record"] in (flag, "foreign")
    assert words in cli("ls").out
    assert cli("show", "job").code == 0


def test_a_key_without_a_lease_is_flagged(cli: Any, raw: RawEtcd, namespace: str) -> None:
    """C33: A key that no lease will ever remove is shown as such, in tables and in JSON."""
    raw.put(f"leasekeeper/{namespace}/lease/job/1", record())
    assert "no lease" in cli("ls").out
    assert "it never goes by itself" in cli("show", "job").out
    owner = cli("ls", "-o", "json").json[0]["owner"]
    assert (owner["standing"], owner["lease"], owner["ttl_left_s"]) == ("leaseless", None, None)


@pytest.mark.parametrize("command", [["ls"], ["show", "job"], ["ls", "-o", "json"], ["show", "job", "-o", "json"]])
@pytest.mark.parametrize("color", [{}, {"FORCE_COLOR": "1", "COLUMNS": "400"}])
def test_stored_text_cannot_act_on_the_terminal(
    cli: Any, raw: RawEtcd, namespace: str, command: list[str], color: dict[str, str]
) -> None:
    """Escape sequences and marks in holder, host and note are shown as text, and rich's markup means nothing."""
    raw.put(f"leasekeeper/{namespace}/lease/job/1", record(holder=EVIL, host=EVIL, note=EVIL), raw.grant(60))
    out = cli(*command, env=color).out
    styles = re.sub(r"\x1b\[[0-9;]*m", "", out) if color else out
    assert "\x1b[31m" not in out
    assert all(c == "\n" or c.isprintable() for c in styles)
    assert "[bold]x[/bold]" in styles


def test_hostile_numbers_do_not_break_anything(cli: Any, raw: RawEtcd, namespace: str) -> None:
    """Times and numbers that are none or absurd become null; the output stays JSON."""
    odd = ('"NaN"', "NaN", "Infinity", "1e308", "-1e308", "1" + "0" * 400)
    for number, value in enumerate(odd):
        stored = record().replace("1772366400.0", value)
        raw.put(f"leasekeeper/{namespace}/lease/job{number}/1", stored, raw.grant(60))
    listed = cli("ls", "-o", "json").json
    assert [one["owner"]["claimed_at"] for one in listed] == [None] * len(odd)
    assert [one["owner"]["age_s"] for one in listed] == [None] * len(odd)
    assert cli("ls").code == 0
    assert all(cli("show", f"job{number}").code == 0 for number in range(len(odd)))


# ---------------------------------------------------------------- time left


@pytest.fixture
def between(etcd: EtcdServer) -> Iterator[Intermediary]:
    """A server that can be made to say what no healthy etcd says."""
    with Intermediary(etcd.endpoint) as made:
        yield made


@pytest.mark.parametrize(
    ("ttl", "granted", "words", "standing"),
    [
        (-1928, 10, "OVERDUE by 1928 s", "overdue"),
        (-1, 0, "OVERDUE", "overdue"),
        (0, 10, "expiring", "expiring"),
        (9_223_372_036, 10, "unknown", "unknown"),
    ],
)
def test_what_etcd_tells_of_the_time_left(
    cli: Any, keeper: Keeper, between: Intermediary, ttl: int, granted: int, words: str, standing: str
) -> None:
    """C24 C34 C35: OVERDUE while the key stands, expiring at the end, unknown for what cannot be; never free."""
    lease = keeper.acquire("job")

    def change(reply: pb.LeaseTimeToLiveResponse) -> None:
        reply.TTL, reply.grantedTTL = ttl, granted

    between.on("LeaseTimeToLive", altered(pb.LeaseTimeToLiveResponse, change))
    for args in (["ls"], ["show", "job"]):
        done = cli(*args, endpoint=between.endpoint)
        assert done.code == 0
        assert words in done.out
        assert "free" not in done.out
    assert cli("ls", "-o", "json", endpoint=between.endpoint).json[0]["owner"]["standing"] == standing
    lease.release()


def test_a_claim_that_just_ended_is_not_overdue(cli: Any, keeper: Keeper, between: Intermediary) -> None:
    """A lease that is gone is OVERDUE only if its key still stands when it is read again; else the claim has ended."""
    lease, other = keeper.acquire("job"), keeper.acquire("other")

    def release(reply: pb.LeaseTimeToLiveResponse) -> None:
        lease.release()
        reply.TTL, reply.grantedTTL = -1, 0

    between.on("LeaseTimeToLive", altered(pb.LeaseTimeToLiveResponse, release), times=1)
    done = cli("show", "job", endpoint=between.endpoint)
    assert done.code == 1
    assert "OVERDUE" not in done.out
    other.release()


# ---------------------------------------------------------------- verify


def test_verify_answers_by_exit_code(cli: Any, keeper: Keeper) -> None:
    """0 for the owner's token, 1 for any other and for a name that nobody owns; the answer says who does."""
    lease = keeper.acquire("job")
    yes = cli("verify", "job", str(lease.token))
    assert (yes.code, yes.out[:4]) == (0, "yes:")
    assert cli("verify", "job", f"{lease.token:019d}").code == 0
    no = cli("verify", "job", str(lease.token + 1))
    assert no.code == 1
    assert f"token {lease.token}" in no.out
    assert cli("verify", "free", "1").code == 1


def test_verify_json_has_its_documented_shape(cli: Any, keeper: Keeper) -> None:
    """The JSON of `verify`: the question, the answer, and the owner or null."""
    lease = keeper.acquire("job")
    got = cli("verify", "job", str(lease.token), "-o", "json").json
    assert got.pop("owner")["token"] == str(lease.token)
    assert got == {"name": "job", "token": str(lease.token), "valid": True}
    assert cli("verify", "free", "1", "-o", "json").json == {
        "name": "free",
        "token": "1",
        "valid": False,
        "owner": None,
    }


def test_a_waiters_token_is_not_the_owners(cli: Any, keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """A token that waits in the queue is no owner's yet."""
    with keeper.lease("job"):
        raw.put(f"leasekeeper/{namespace}/lease/job/ff", record(), raw.grant(60))
        waiting = cli("show", "job", "-o", "json").json["waiters"][0]["token"]
        assert cli("verify", "job", waiting).code == 1


# ---------------------------------------------------------------- unavailable, never stale


def test_without_a_quorum_nothing_is_shown(cli: Any, etcd: EtcdServer, namespace: str) -> None:
    """C09: When etcd cannot do a linearizable read the answer is 69 and nothing on stdout, not what was true once."""
    with EtcdServer(fsync=False) as own, Keeper(own.endpoint, namespace=namespace) as keeper:
        lease = keeper.acquire("job")
        assert "job" in cli("ls", endpoint=own.endpoint).out
        own.freeze()
        try:
            for args in (["ls"], ["show", "job"], ["verify", "job", "5"], ["epoch", "show"]):
                done = cli(*args, "--timeout", "1", endpoint=own.endpoint)
                assert (done.code, done.out) == (69, "")
                assert done.err.count("\n") == 1
                assert "leasekeeper doctor" in done.err
        finally:
            own.thaw()
        lease.release()


def test_only_linearizable_reads_are_sent(cli: Any, keeper: Keeper, between: Intermediary) -> None:
    """A30: No read of the command line is serializable."""
    lease = keeper.acquire("job")
    for args in (["ls"], ["show", "job"], ["verify", "job", str(lease.token)], ["epoch", "show"]):
        assert cli(*args, endpoint=between.endpoint).code == 0
    reads = between.requests("Range", pb.RangeRequest)
    reads += [op.request_range for txn in between.requests("Txn", pb.TxnRequest) for op in txn.success]
    assert len(reads) >= 4
    assert not any(read.serializable for read in reads)


# ---------------------------------------------------------------- pipes


def test_a_reader_that_goes_away_is_no_error(etcd: EtcdServer, raw: RawEtcd, namespace: str) -> None:
    """`leasekeeper ls | head -1`: no message, and the exit code of a program that SIGPIPE ended."""
    lease = raw.grant(60)
    for number in range(300):
        raw.put(f"leasekeeper/{namespace}/lease/name-{number}/1", record(note="x" * 1000), lease)
    script = '"$0" -m leasekeeper ls -o json | head -n 1; echo "${PIPESTATUS[0]}"'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
        # Unbuffered, Python takes the part that went through for all of it and sees no error.
        env=environment(etcd.endpoint, namespace, {"PYTHONUNBUFFERED": ""}),
    )
    assert (done.stdout, done.stderr) == ("[\n141\n", "")


def test_letters_that_the_terminal_cannot_show_are_escaped(etcd: EtcdServer, raw: RawEtcd, namespace: str) -> None:
    """On a Latin-1 stdout a holder in another script shows as an escape instead of failing."""
    raw.put(f"leasekeeper/{namespace}/lease/job/1", record(holder="gr\u00f6\u00dfe \u65e5"), raw.grant(60))
    env = {"PYTHONIOENCODING": "latin-1"}
    with Command("ls", endpoint=etcd.endpoint, namespace=namespace, env=env) as command:
        done = command.end()
    assert (done.code, done.err) == (0, "")
    assert r"\u65e5" in done.out
