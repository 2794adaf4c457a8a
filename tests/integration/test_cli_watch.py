"""`watch` against a real etcd: what happens is told once, through restarts, until it is told to stop."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from leasekeeper import Keeper
from leasekeeper.cli.watch import Watcher
from leasekeeper.errors import Unavailable
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.testing import EtcdServer
from tests.commands import Command, call
from tests.intermediary import Intermediary, altered


def events(command: Command, name: str = "job") -> list[tuple[str, str | None]]:
    """The events on one name, each with the token that it is about."""
    lines = [line for line in command.json_lines() if line["name"] == name]
    return [(line["event"], line["claim"] and line["claim"]["token"]) for line in lines]


def watch(server: EtcdServer | Intermediary, namespace: str, *words: str) -> Command:
    """A watch in JSON lines."""
    return Command("watch", "-o", "json", *words, endpoint=server.endpoint, namespace=namespace)


def test_it_begins_with_what_is_and_tells_what_happens(etcd: EtcdServer, namespace: str) -> None:
    """The present owners first; then who comes, waits, goes, and that a name is free."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, watch(etcd, namespace) as command:
        first = keeper.acquire("job")
        command.until(lambda: events(command) == [("owner", str(first.token))])
        first.release()
        command.until(lambda: events(command)[1:] == [("ended", str(first.token)), ("free", None)])
        second = keeper.acquire("job")
        command.until(lambda: events(command)[3:] == [("owner", str(second.token))])
        second.release()


def test_it_can_watch_one_name(etcd: EtcdServer, namespace: str) -> None:
    """With a NAME nothing else is told, also not of names that begin like it."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, watch(etcd, namespace, "job") as command:
        others = [keeper.acquire(name) for name in ("job2", "job/b", "a")]
        lease = keeper.acquire("job")
        command.until(lambda: events(command) == [("owner", str(lease.token))])
        assert {line["name"] for line in command.json_lines()} == {"job"}
        for other in others:
            other.release()


def test_its_lines_have_the_documented_shape(etcd: EtcdServer, namespace: str) -> None:
    """Each line is one JSON object: when, what, on which name, which claim, how many wait."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.lease("job"), watch(etcd, namespace) as command:
        (line,) = command.until(command.json_lines)
    assert set(line) == {"at", "event", "name", "claim", "waiting"}
    assert (line["event"], line["waiting"]) == ("owner", 0)
    assert set(line["claim"]) == {
        *("token", "holder", "host", "pid", "note", "key", "lease", "claim", "epoch", "create_revision"),
        *("claimed_at", "record"),
    }


def test_ctrl_c_ends_it_in_silence(etcd: EtcdServer, namespace: str) -> None:
    """Ctrl-C: exit code 130 and no message."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.lease("job"), watch(etcd, namespace) as command:
        command.until(lambda: command.lines)
        command.signal(signal.SIGINT)
        done = command.end()
    assert (done.code, done.err.strip()) == (130, "")


def test_a_timeout_ends_it_well(etcd: EtcdServer, namespace: str) -> None:
    """--timeout is how long to watch: exit code 0."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.lease("job") as lease:
        done = call("watch", "--timeout", "1.2", endpoint=etcd.endpoint, namespace=namespace)
    assert (done.code, done.err) == (0, "")
    assert f"token {lease.token}" in done.out


def test_it_outlives_a_restart_of_etcd(namespace: str) -> None:
    """C49: While etcd is away one line says so; when it is back the watch goes on and misses no change that lasts."""
    with (
        EtcdServer(fsync=False) as own,
        watch(own, namespace) as command,
        Keeper(own.endpoint, namespace=namespace) as keeper,
    ):
        lease = keeper.acquire("job", ttl=30)
        command.until(lambda: events(command) == [("owner", str(lease.token))])
        own.stop()
        command.until(lambda: "still trying" in command.err)
        own.start()
        command.until(lambda: "answers again" in command.err)
        lease.release()
        command.until(lambda: events(command)[1:] == [("ended", str(lease.token)), ("free", None)])
    assert command.err.count("still trying") == 1


def test_it_does_not_begin_without_etcd(namespace: str) -> None:
    """If etcd cannot be read at all there is nothing to watch: 69."""
    done = call("watch", endpoint="127.0.0.1:9", namespace=namespace, env={"LEASEKEEPER_TIMEOUT": "1"})
    assert (done.code, done.out) == (69, "")


@pytest.mark.parametrize(("watch_s", "least_s", "most_s"), [(0.1, 1.0, 1.0), (2.0, 1.0, 2.0), (60.0, 10.0, 10.0)])
def test_a_timeout_bounds_the_first_look_too(
    monkeypatch: pytest.MonkeyPatch, watch_s: float, least_s: float, most_s: float
) -> None:
    """Where etcd does not answer, the first look asks for no longer than there is to watch, or a second."""
    asked: list[float] = []

    def until(timeout: float) -> float:
        asked.append(timeout)
        raise Unavailable("enough")

    with Keeper("127.0.0.1:9") as keeper:
        core = keeper._core
        monkeypatch.setattr(core, "until", until)
        with pytest.raises(Unavailable):
            list(Watcher(core, None).events(core.now() + watch_s))
        monkeypatch.undo()
    assert len(asked) == 1
    assert least_s <= asked[0] <= most_s


def test_it_reads_little_while_nothing_happens(etcd: EtcdServer, namespace: str) -> None:
    """Without a change the queues are not read again: one small read per look."""
    with (
        Keeper(etcd.endpoint, namespace=namespace) as keeper,
        keeper.lease("job"),
        Intermediary(etcd.endpoint) as between,
    ):
        assert call("watch", "--timeout", "3.5", endpoint=between.endpoint, namespace=namespace).code == 0
        looks = between.requests("Range", pb.RangeRequest)
        assert len(looks) >= 3
        assert all(look.limit == 1 and look.keys_only for look in looks)
        assert between.count("Txn") == 1


def test_an_overdue_owner_is_told_once(etcd: EtcdServer, namespace: str) -> None:
    """C34: When etcd says that a lease's time is over and the key still stands, one event says so."""

    def change(reply: pb.LeaseTimeToLiveResponse) -> None:
        reply.TTL, reply.grantedTTL = -30, 10

    with (
        Keeper(etcd.endpoint, namespace=namespace) as keeper,
        keeper.lease("job") as lease,
        Intermediary(etcd.endpoint) as between,
    ):
        between.on("LeaseTimeToLive", altered(pb.LeaseTimeToLiveResponse, change))
        with watch(between, namespace) as command:
            command.until(lambda: between.count("LeaseTimeToLive") >= 3)
            told = events(command)
    assert told == [("owner", str(lease.token)), ("overdue", str(lease.token))]


@pytest.mark.parametrize("words", [[], ["-o", "json"]])
def test_stored_text_cannot_act_on_the_terminal(etcd: EtcdServer, namespace: str, words: list[str]) -> None:
    """Escape sequences in what others stored are shown as text."""
    evil: Any = "\x1b[2J"
    with Keeper(etcd.endpoint, namespace=namespace, holder="[red]x[/red]") as keeper, keeper.lease("job", note=evil):
        done = call("watch", "--timeout", "0.1", *words, endpoint=etcd.endpoint, namespace=namespace)
    assert "\x1b" not in done.out
    assert "[red]x[/red]" in done.out
