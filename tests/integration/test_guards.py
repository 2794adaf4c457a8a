"""Guards on real leases: writes of an owner that is none any more, and replies that never come."""

from __future__ import annotations

import base64
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from leasekeeper import (
    AsyncKeeper,
    ConfigError,
    Keeper,
    Lease,
    LeaseLost,
    Misuse,
    OutcomeUnknown,
    StaleToken,
    State,
    Unavailable,
)
from leasekeeper.errors import LeasekeeperError, shown
from leasekeeper.guards.etcd import aput_if_owner, compares, create_revision, put_if_owner
from leasekeeper.guards.sqlite import Fence
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.loops import eventually, on_loop
from tests.raw import Key, RawEtcd
from tests.support import until


@pytest.fixture
def key(namespace: str) -> str:
    """A key of the user's own."""
    return f"data/{namespace}"


@pytest.fixture
def lease(proxy: FaultProxy, namespace: str) -> Iterator[Lease]:
    """A lease whose keeper is behind the proxy; it has used its connection."""
    with Keeper(proxy.endpoint, namespace=namespace) as keeper:
        yield keeper.acquire("name", timeout=10)


def stored(raw: RawEtcd, key: str) -> Key:
    """The one key of this name."""
    (found,) = raw.keys(key)
    return found


def in_background(call: Callable[[], object]) -> Future[object]:
    """Call it on a thread of its own; the future tells how it ended."""
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except (Exception, LeasekeeperError) as error:  # noqa: BLE001 - the test looks at it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


# ---------------------------------------------------------------- etcd


def test_an_owner_writes(lease: Lease, raw: RawEtcd, key: str) -> None:
    """The put happens at the revision that is returned, once each time, for text and bytes."""
    for value in ("first", b"second \xff"):
        revision = put_if_owner(lease, key, value)
        now = stored(raw, key)
        assert now.value == (value if isinstance(value, bytes) else value.encode())
        assert now.mod_revision == revision


@on_loop
async def test_an_owner_writes_under_asyncio(etcd: EtcdServer, namespace: str, raw: RawEtcd, key: str) -> None:
    """`aput_if_owner` does for an AsyncLease what `put_if_owner` does for a Lease."""
    async with AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper:
        lease = await keeper.acquire("name", timeout=10)
        revision = await aput_if_owner(lease, key, "value")
        assert stored(raw, key).mod_revision == revision
        raw.delete(lease.key)
        with pytest.raises((StaleToken, LeaseLost)):
            await aput_if_owner(lease, key, "too late")
        await eventually(lambda: lease.state is State.LOST)
        assert stored(raw, key).mod_revision == revision


def test_a_lost_reply_is_read_back(lease: Lease, proxy: FaultProxy, raw: RawEtcd, key: str) -> None:
    """G6: a put whose reply never came is found again: one write, and its revision is the one returned."""
    put_if_owner(lease, key, "before")
    trip = proxy.lose_next_reply(b"marked value")
    revision = put_if_owner(lease, key, "marked value")
    assert trip.fired
    now = stored(raw, key)
    assert (now.value, now.mod_revision) == (b"marked value", revision)
    assert writes(raw, key) == 2


def test_a_lost_request_is_sent_again(lease: Lease, proxy: FaultProxy, raw: RawEtcd, key: str) -> None:
    """G6: a put that never arrived, of which the client cannot know that, happens once."""
    put_if_owner(lease, key, "before")
    trip = proxy.lose_next_request(b"marked value")
    revision = put_if_owner(lease, key, "marked value")
    assert trip.fired
    assert stored(raw, key).mod_revision == revision
    assert writes(raw, key) == 2


def test_the_first_put_of_a_key_is_never_made_twice(lease: Lease, proxy: FaultProxy, raw: RawEtcd, key: str) -> None:
    """G6: a new key that somebody deletes before the lost reply of its put is made up for is not written again, but in doubt."""
    trip = proxy.lose_next_reply(b"marked value", then="blackhole")
    late = in_background(lambda: put_if_owner(lease, key, "marked value"))
    assert trip.wait(30)
    raw.delete(key)
    proxy.heal(reset=True)
    error = late.exception(30)
    assert isinstance(error, OutcomeUnknown)
    assert "deleted" in str(error)
    assert not raw.keys(key)


def test_the_first_put_of_a_key_is_found(lease: Lease, proxy: FaultProxy, raw: RawEtcd, key: str) -> None:
    """G6: where it does stand after a lost reply, the outcome is known."""
    trip = proxy.lose_next_reply(b"marked value")
    revision = put_if_owner(lease, key, "marked value")
    assert trip.fired
    assert stored(raw, key).mod_revision == revision
    assert writes(raw, key) == 1


def writes(raw: RawEtcd, key: str) -> int:
    """How often a key was written since it was made."""
    answer = raw.post("kv/range", key=base64.b64encode(key.encode()).decode())
    return int(answer["kvs"][0]["version"])


def test_what_cannot_be_told_is_said(lease: Lease, proxy: FaultProxy, raw: RawEtcd, key: str) -> None:
    """G6: when the reply is lost and etcd stays away, the outcome is unknown and neither success nor failure."""
    proxy.lose_next_reply(b"marked value", then="cut")
    with pytest.raises(OutcomeUnknown, match="cannot be told") as caught:
        put_if_owner(lease, key, "marked value", timeout=1.0)
    assert caught.value.operation == "put_if_owner"
    assert stored(raw, key).value == b"marked value"


def test_nothing_sent_is_nothing_written(lease: Lease, proxy: FaultProxy, raw: RawEtcd, key: str) -> None:
    """While etcd cannot be reached a put is Unavailable, and no key appears later."""
    proxy.cut()
    with pytest.raises(Unavailable):
        put_if_owner(lease, key, "value", timeout=0.5)
    proxy.heal()
    until(lambda: lease.remaining() > 9)
    assert not raw.keys(key)


def test_a_write_that_was_late_is_refused(
    etcd: EtcdServer, namespace: str, lease: Lease, proxy: FaultProxy, raw: RawEtcd, key: str
) -> None:
    """G4: a put that passed its gate and arrives when somebody else owns the name is refused, and told who that is."""
    put_if_owner(lease, key, "before")
    trip = proxy.lose_next_request(b"marked value", then="blackhole")
    late = in_background(lambda: put_if_owner(lease, key, "marked value"))
    assert trip.wait(30)
    raw.delete(lease.key)
    with Keeper(etcd.endpoint, namespace=namespace, holder="the next one") as keeper:
        other = keeper.acquire("name", timeout=10)
        put_if_owner(other, key, "after")
        proxy.heal()
        error = late.exception(30)
        assert isinstance(error, StaleToken)
        assert (error.token, error.highest, error.holder) == (lease.token, other.token, "the next one")
        assert error.resource == key
    assert stored(raw, key).value == b"after"


def test_a_name_that_nobody_owns_refuses_too(lease: Lease, proxy: FaultProxy, raw: RawEtcd, key: str) -> None:
    """C07: a claim that an operator removed writes no more, even without a rival; the error says that nobody owns it."""
    put_if_owner(lease, key, "before")
    trip = proxy.lose_next_request(b"marked value", then="blackhole")
    late = in_background(lambda: put_if_owner(lease, key, "marked value"))
    assert trip.wait(30)
    raw.delete(lease.key)
    proxy.heal()
    error = late.exception(30)
    assert isinstance(error, StaleToken)
    assert (error.highest, error.holder) == (0, "")
    assert "nobody owns it" in str(error)
    assert stored(raw, key).value == b"before"


def test_the_gate_comes_first(etcd: EtcdServer, namespace: str, key: str) -> None:
    """A lease that is over writes nothing and asks nothing; a need that no proof covers is Misuse."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        lease = keeper.acquire("name", timeout=10)
        for ask in (lambda: put_if_owner(lease, key, "", need=11), lambda: compares(lease, need=11)):
            with pytest.raises(Misuse):
                ask()
        lease.release()
        for refused in (lambda: put_if_owner(lease, key, ""), lambda: compares(lease)):
            with pytest.raises(LeaseLost, match="released"):
                refused()


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        None,
        5,
        "leasekeeper/{namespace}/lease/x",
        "leasekeeper/{namespace}/epoch",
        "leasekeeper/other/lease/x",
        "leasekeeper/",
        b"leasekeeper/other/epoch",
        "\ud800",
    ],
)
def test_a_wrong_key_is_named(etcd: EtcdServer, namespace: str, wrong: object) -> None:
    """A key that cannot be, or under which any namespace's claims are kept, is a ConfigError and is not written."""
    given = wrong.format(namespace=namespace) if isinstance(wrong, str) else wrong
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.lease("name", timeout=10) as lease:
        with pytest.raises(ConfigError) as caught:
            put_if_owner(lease, given, "value")  # type: ignore[arg-type]
        assert caught.value.field == "key"
        assert shown(given) in str(caught.value)
        with pytest.raises(ConfigError) as caught:
            put_if_owner(lease, "key", None)  # type: ignore[arg-type]
        assert caught.value.field == "value"


def test_compares_hold_in_anybodys_transaction(etcd: EtcdServer, namespace: str, raw: RawEtcd, key: str) -> None:
    """A transaction of the user's own succeeds as long as the claim owns the name, and not a moment longer."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        lease = keeper.acquire("name", timeout=10)
        (compare,) = compares(lease, pb.Compare)
        assert (compare.key.decode(), compare.create_revision) == (lease.key, create_revision(lease))

        def write() -> bool:
            answer = raw.post(
                "kv/txn",
                compare=[
                    {
                        "key": base64.b64encode(lease.key.encode()).decode(),
                        "target": "CREATE",
                        "create_revision": str(create_revision(lease)),
                    }
                ],
                success=[{"request_put": {"key": base64.b64encode(key.encode()).decode()}}],
            )
            return bool(answer.get("succeeded"))

        assert write()
        lease.release()
        assert not write()


# ---------------------------------------------------------------- SQLite


def test_a_fence_outlives_the_lease(etcd: EtcdServer, namespace: str) -> None:
    """C02: an owner whose key was removed after it had passed its gate is refused by the database once the next one wrote."""
    database = sqlite3.connect(":memory:")
    Fence.create(database)
    fence = Fence(database)
    with Keeper(etcd.endpoint, namespace=namespace, holder="the next one") as keeper:
        old = keeper.acquire("name", timeout=10)
        with database:
            assert fence.admit("accounts", old) == old.token

        class AfterItsGate:
            """The old owner, frozen between its gate and its write."""

            claim, holder, token = old.claim, old.holder, old.check()

            def check(self, need: float = 0.0) -> int:
                return self.token

        old.release()
        with keeper.lease("name", timeout=10) as new, database:
            assert fence.admit("accounts", new) == new.token
            assert new.token > old.token
        with pytest.raises(StaleToken, match="the next one"), database:
            fence.admit("accounts", AfterItsGate())
        with pytest.raises(LeaseLost):
            fence.admit("accounts", old)
    database.close()


@pytest.mark.parametrize("first", ["old", "new"])
def test_the_same_number_can_be_somebody_elses(namespace: str, tmp_path: Path, first: str) -> None:
    """G4: after a restore without a new epoch two claims have one token; the resource lets in only the one that came first."""
    database = sqlite3.connect(":memory:")
    Fence.create(database)
    fence = Fence(database)
    with EtcdServer(fsync=False) as server, Keeper(server.endpoint, namespace=namespace) as before:
        backup = server.snapshot(tmp_path / "backup")
        old = before.acquire("name", timeout=10)
        server.restore(backup)
        # One that was started after the restore, and cannot know of it.
        with Keeper(server.endpoint, namespace=namespace) as keeper, keeper.lease("name", timeout=10) as new:
            assert new.token == old.token
            assert new.claim != old.claim
            one, other = (old, new) if first == "old" else (new, old)
            with database:
                fence.admit("accounts", Passed(one))
            with pytest.raises(StaleToken), database:
                fence.admit("accounts", Passed(other))
            with database:
                fence.admit("accounts", Passed(one))
    database.close()


class Passed:
    """An owner whose process was frozen between its gate and its write: whatever became of its lease since."""

    def __init__(self, lease: Lease) -> None:
        self.token, self.claim, self.holder = lease.token, lease.claim, lease.holder

    def check(self, need: float = 0.0) -> int:
        """What its gate said."""
        return self.token
