"""`acquire` as a process: what it says, how it ends, and that nothing is left behind however it ends."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from leasekeeper import Keeper, Timing
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.commands import Command, call
from tests.raw import RawEtcd


def states(command: Command) -> list[str]:
    """The states that it has told."""
    return [line["state"] for line in command.json_lines()]


def leases_of(raw: RawEtcd, namespace: str) -> set[int]:
    """The etcd leases of a namespace's claims."""
    return {key.lease for key in raw.claims(namespace)}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_held_until_told_to_stop(etcd: EtcdServer, raw: RawEtcd, namespace: str, number: int) -> None:
    """It holds, says so, and on INT, TERM or HUP gives the lease back and ends with 0; no key and no lease is left."""
    with Command("acquire", "job", "-o", "json", endpoint=etcd.endpoint, namespace=namespace) as command:
        command.until(lambda: states(command) == ["HELD"])
        leases = leases_of(raw, namespace)
        command.signal(number)
        done = command.end()
    assert (done.code, done.err) == (0, "")
    assert states(command) == ["HELD", "RELEASED"]
    assert raw.claims(namespace) == []
    assert len(leases) == 1
    assert not leases & set(raw.leases())


def test_what_it_says_in_json(etcd: EtcdServer, raw: RawEtcd, namespace: str) -> None:
    """Each change of state is one line of JSON with the documented fields."""
    with Command("acquire", "job", "-o", "json", endpoint=etcd.endpoint, namespace=namespace) as command:
        command.until(lambda: states(command))
        (key,) = raw.claims(namespace)
        line = command.json_lines()[0]
    assert line.pop("at").endswith("Z")
    assert line.pop("claim")
    assert line.pop("holder")
    assert line == {
        "state": "HELD",
        "name": "job",
        "token": str(key.create_revision),
        "key": key.key,
        "lease": f"{key.lease:x}",
        "loss": None,
    }


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("words", [["acquire", "job"], ["run", "job", "--", "true"]])
def test_stopped_in_the_queue(
    etcd: EtcdServer, keeper: Keeper, raw: RawEtcd, namespace: str, words: list[str], number: int, code: int
) -> None:
    """C44: A signal while it waits ends it with 128+N, in silence, and its entry and lease are gone when it has ended."""
    lease = keeper.acquire("job")
    with Command(*words, endpoint=etcd.endpoint, namespace=namespace) as command:
        command.until(lambda: len(raw.claims(namespace)) == 2)
        entered = leases_of(raw, namespace) - {lease.lease_id}
        command.signal(number)
        done = command.end()
    assert done.code == code
    assert (done.out, done.err) == ("", "")
    assert [key.key for key in raw.claims(namespace)] == [lease.key]
    assert not entered & set(raw.leases())


def test_signals_while_it_gives_up_change_nothing(
    etcd: EtcdServer, keeper: Keeper, raw: RawEtcd, namespace: str
) -> None:
    """C10: An impatient user who presses Ctrl-C again cannot cut the clean-up short."""
    lease = keeper.acquire("job")
    with Command("acquire", "job", endpoint=etcd.endpoint, namespace=namespace) as command:
        command.until(lambda: len(raw.claims(namespace)) == 2)
        for _ in range(5):
            command.signal(signal.SIGINT)
            time.sleep(0.01)
        done = command.end()
    assert done.code == 130
    assert [key.key for key in raw.claims(namespace)] == [lease.key]


@pytest.mark.parametrize("timeout", ["0", "0.5"])
@pytest.mark.parametrize("words", [["acquire", "job's"], ["run", "job's", "--", "true"]])
def test_not_acquired_in_time(
    etcd: EtcdServer, keeper: Keeper, raw: RawEtcd, namespace: str, words: list[str], timeout: str
) -> None:
    """C44: 75, and one line with holder, lease as etcdctl shows it, token, and a break command that works as it stands."""
    lease = keeper.acquire("job's")
    done = call("--timeout", timeout, *words, endpoint=etcd.endpoint, namespace=namespace)
    assert (done.code, done.out) == (75, "")
    assert done.err.count("\n") == 1
    for text in ("worker-1", f"lease {lease.lease_id:x}", f"token {lease.token}"):
        assert text in done.err
    assert [key.key for key in raw.claims(namespace)] == [lease.key]
    copied = shell_words(done.err.rpartition("claim: leasekeeper ")[2].strip())
    assert call(*copied, "--yes", endpoint=etcd.endpoint, namespace=namespace).code == 0
    assert raw.claims(namespace) == []


def shell_words(line: str) -> list[str]:
    """The words that a shell makes of a line."""
    done = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.splitlines()


def test_the_break_command_has_the_options_of_the_command_line(
    etcd: EtcdServer, keeper: Keeper, namespace: str
) -> None:
    """What was given as an option is in the command to copy, since the next shell may not have it in a variable."""
    lease = keeper.acquire("job")
    done = call("acquire", "job", "--timeout", "0", "--endpoints", etcd.endpoint, "--namespace", namespace)
    assert done.code == 75
    wanted = f"leasekeeper --endpoints {etcd.endpoint} --namespace {namespace} break job --token {lease.token}"
    assert done.err.strip().endswith(wanted)


def test_a_hostile_owner_cannot_act_through_an_error(etcd: EtcdServer, raw: RawEtcd, namespace: str) -> None:
    """The holder's name in an error line is shown as text."""
    evil = (
        '{"v":1,"nonce":"n","holder":"\\u001b[2J\\u202e","host":"","pid":0,"note":"","claimed_at":1,"ttl":1,"epoch":0}'
    )
    raw.put(f"leasekeeper/{namespace}/lease/job/ff", evil, raw.grant(60))
    done = call("acquire", "job", "--timeout", "0.2", endpoint=etcd.endpoint, namespace=namespace)
    assert done.code == 75
    assert r"\x1b[2J\u202e" in done.err
    assert "\x1b" not in done.err


@pytest.mark.parametrize("how", ["revoked", "deleted"])
def test_loss_ends_it_with_76(etcd: EtcdServer, raw: RawEtcd, namespace: str, how: str) -> None:
    """C04 C38: When etcd says that the claim is gone it says LOST with the reason and ends with 76."""
    with Command("acquire", "job", "-o", "json", endpoint=etcd.endpoint, namespace=namespace) as command:
        command.until(lambda: states(command) == ["HELD"])
        (key,) = raw.claims(namespace)
        if how == "revoked":
            raw.revoke(key.lease)
        else:
            raw.delete(key.key)
        done = command.end()
    assert done.code == 76
    assert (states(command)[0], states(command)[-1]) == ("HELD", "LOST")
    assert command.json_lines()[-1]["loss"] == how
    assert done.err.count("\n") == 1
    assert raw.claims(namespace) == []


def test_suspension_is_told(proxy: FaultProxy, namespace: str) -> None:
    """C26: While the network is away it says SUSPENDED, and HELD again when the lease is proven again."""
    with Command("acquire", "job", "--ttl", "6", "-o", "json", endpoint=proxy.endpoint, namespace=namespace) as command:
        command.until(lambda: states(command) == ["HELD"])
        proxy.blackhole()
        command.until(lambda: states(command)[-1] == "SUSPENDED")
        proxy.heal()
        command.until(lambda: states(command)[-1] == "HELD")
        command.signal(signal.SIGTERM)
        assert command.end().code == 0
    tokens = {line["token"] for line in command.json_lines()}
    assert len(tokens) == 1


def test_ttl_and_note_are_those_of_the_claim(etcd: EtcdServer, namespace: str) -> None:
    """C52: --ttl and --note reach the claim: the lease's granted TTL and the text are shown by `show`."""
    with Command(
        "acquire", "job", "--ttl", "25", "--note", "by hand", endpoint=etcd.endpoint, namespace=namespace
    ) as command:
        command.until(lambda: command.lines)
        owner = call("show", "job", "-o", "json", endpoint=etcd.endpoint, namespace=namespace).json["owner"]
    assert (owner["note"], owner["ttl_s"]) == ("by hand", 25)


def test_a_killed_holder_frees_the_name_by_time(etcd: EtcdServer, namespace: str) -> None:
    """C29 C51: After kill -9 the next one gets the name when the TTL is out."""
    with Command("acquire", "job", "--ttl", "2", endpoint=etcd.endpoint, namespace=namespace) as command:
        command.until(lambda: command.lines)
        command.process.kill()
        command.end()
    with Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=2)) as keeper:
        keeper.acquire("job", timeout=30).release()
