"""Acquiring, owning and giving back, against one real etcd with nothing broken."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from leasekeeper import ConfigError, Keeper, Lease, LeaseLost, Misuse, NotAcquired, State, Timing
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.testing import EtcdServer
from tests.intermediary import Intermediary
from tests.raw import RawEtcd
from tests.support import until

NAMES = [
    "a",
    "a/b",
    "a/",
    "/",
    "//a//b",
    "a b\t"[:3],
    "per%cent",
    "a%2Fb",
    "*?[x]",
    "'\"\\",
    "ключ/ключ",
    "鍵🔑",
    "\u00a0\u200b\ufeff",
    "é",
    "e\u0301",
    "x" * 255,
    "🔑" * 255,
    "epoch",
    "..",
    "lease/epoch",
]


def own_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    """The threads of the library that have been started since."""
    return [
        thread for thread in threading.enumerate() if thread.name.startswith("leasekeeper-") and thread not in before
    ]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_can_be_leased(etcd: EtcdServer, namespace: str, name: str) -> None:
    """A name of any characters is owned, listed and verified under exactly that name, in one key under a lease."""
    raw = RawEtcd(etcd.endpoint)
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.lease(name, timeout=10) as lease:
        assert lease.name == name
        assert [key.key for key in raw.claims(namespace)] == [lease.key]
        assert list(keeper.names()) == [name]
        assert [claim.token for claim in keeper.claims(name)] == [lease.token]
        assert keeper.verify(name, lease.token)


def test_names_that_look_alike_are_different(etcd: EtcdServer, namespace: str) -> None:
    """Names of which one begins with or unescapes to another are owned at the same time, and listed each by itself."""
    names = ["a", "a/", "a/b", "a%2Fb", "a%252Fb", "ab", "A", "é", "e\u0301"]
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        leases = [keeper.acquire(name, timeout=0) for name in names]
        assert sorted(keeper.names()) == sorted(names)
        assert sorted(keeper.names("a/")) == ["a/", "a/b"]
        assert all(len(keeper.claims(name)) == 1 for name in names)
        assert all(lease.check() == lease.token for lease in leases)


@pytest.mark.parametrize("name", ["", "x" * 256, "a\n", "\x00", "\x7f", "\ud800", "a\u2028b", None, 7, b"bytes"])
def test_a_name_that_cannot_be_is_refused_before_anything_is_sent(name: object) -> None:
    """A wrong name is a ConfigError that names the field, without a connection: nothing listens at the endpoint."""
    before = set(threading.enumerate())
    keeper = Keeper("127.0.0.1:1")
    for call in (keeper.acquire, keeper.try_acquire, keeper.lease, keeper.claims):
        with pytest.raises(ConfigError) as caught:
            call(name)  # type: ignore[arg-type]
        assert caught.value.field == "name"
    assert not own_threads(before)


def test_a_lease_tells_what_it_is(etcd: EtcdServer, namespace: str) -> None:
    """Token, key, etcd lease, holder, note and claim of a handle are those that stand in etcd."""
    raw = RawEtcd(etcd.endpoint)
    with (
        Keeper(etcd.endpoint, namespace=namespace, holder="me") as keeper,
        keeper.lease("n", note="why", timeout=10) as lease,
    ):
        (key,) = raw.claims(namespace)
        (claim,) = keeper.claims("n")
        assert (key.key, key.create_revision, key.lease) == (lease.key, lease.token, lease.lease_id)
        assert (claim.nonce, claim.holder, claim.note, claim.ttl) == (lease.claim, "me", "why", 10)
        assert lease.state is State.HELD
        assert 0 < lease.remaining() <= 10 - keeper._core.timing.margin_s


def test_release_is_final_and_harmless(etcd: EtcdServer, namespace: str) -> None:
    """A released handle refuses at the gate, and releasing it again removes nothing, also when the name has a new owner."""
    raw = RawEtcd(etcd.endpoint)
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        old = keeper.acquire("n", timeout=10)
        old.release()
        assert raw.claims(namespace) == []
        new = keeper.acquire("n", timeout=10)
        old.release()
        assert (old.state, old.remaining(), old.loss) == (State.RELEASED, 0.0, None)
        with pytest.raises(LeaseLost) as caught:
            old.check()
        assert caught.value.reason == "released"
        with pytest.raises(LeaseLost, match="released"), old:
            raise AssertionError("never")
        assert new.check() == new.token > old.token
        assert [key.create_revision for key in raw.claims(namespace)] == [new.token]


def test_try_acquire_leaves_no_trace(etcd: EtcdServer, namespace: str) -> None:
    """C13: A try on a name that is taken gives None and makes no key and no etcd lease."""
    raw = RawEtcd(etcd.endpoint)
    with Intermediary(etcd.endpoint) as mid, Keeper(etcd.endpoint, namespace=namespace) as owner:
        lease = owner.acquire("n", timeout=10)
        revision = raw.revision()
        with Keeper(mid.endpoint, namespace=namespace) as other:
            assert [other.try_acquire("n") for _ in range(10)] == [None] * 10
            with pytest.raises(NotAcquired):
                other.acquire("n", timeout=0)
            assert mid.count("LeaseGrant") == 0
            assert raw.revision() == revision
            lease.release()
            taken = other.try_acquire("n")
            assert taken is not None
            assert taken.token > lease.token


def test_who_owns_it_is_known_at_once_too(etcd: EtcdServer, namespace: str) -> None:
    """C44: With and without time to wait the error names the owner and tells how many claims there were before."""
    raw = RawEtcd(etcd.endpoint)
    with Keeper(etcd.endpoint, namespace=namespace) as owner, Keeper(etcd.endpoint, namespace=namespace) as other:
        lease = owner.acquire("n", timeout=10, note="the owner")
        for number in (1, 2):
            raw.put(f"{lease.key.rpartition('/')[0]}/{number}")
        for timeout_s in (0.0, 0.2, 0.0):
            with pytest.raises(NotAcquired) as caught:
                other.acquire("n", timeout=timeout_s)
            assert caught.value.owner == owner.claims("n")[0]
            assert caught.value.ahead == 3
            assert str(lease.token) in str(caught.value)


def test_not_acquired_says_who_owns_it(etcd: EtcdServer, namespace: str) -> None:
    """C44: The error of a timeout carries the owner's claim, also across pickle, and its text the holder, token and lease."""
    with (
        Keeper(etcd.endpoint, namespace=namespace, holder="the-owner") as owner,
        Keeper(etcd.endpoint, namespace=namespace) as other,
        owner.lease("n", timeout=10) as lease,
    ):
        with pytest.raises(NotAcquired) as caught:
            other.acquire("n", timeout=0.2)
        error = pickle.loads(pickle.dumps(caught.value))
        assert (error.owner.token, error.owner.holder) == (lease.token, "the-owner")
        assert error.waited_s >= 0.2
        for part in ("the-owner", str(lease.token), f"{lease.lease_id:x}"):
            assert part in str(error)


def test_fifty_threads_on_one_keeper_add_up(etcd: EtcdServer, namespace: str) -> None:
    """C05: Fifty threads that share a keeper do a thousand read-modify-writes under one name, and none is lost."""
    total = 0

    def add(keeper: Keeper) -> None:
        nonlocal total
        for _ in range(20):
            with keeper.lease("sum") as lease:
                seen = total
                time.sleep(0)  # an invitation to another thread
                total = seen + 1
                lease.check()

    with Keeper(etcd.endpoint, namespace=namespace) as keeper, ThreadPoolExecutor(50) as pool:
        for done in [pool.submit(add, keeper) for _ in range(50)]:
            done.result(50)
    assert total == 1000
    assert RawEtcd(etcd.endpoint).claims(namespace) == []


def test_nested_acquire_in_one_thread_is_refused(etcd: EtcdServer, namespace: str) -> None:
    """C05: A thread that owns a name and would wait for itself gets Misuse at once; with a timeout, NotAcquired."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.lease("n", timeout=10):
        with pytest.raises(Misuse):
            keeper.acquire("n")
        with pytest.raises(NotAcquired):
            keeper.acquire("n", timeout=0.1)
        with keeper.lease("m"):
            pass


def _release_when_two_stand(keeper: Keeper, lease: Lease) -> None:
    until(lambda: len(keeper.claims(lease.name)) == 2)
    lease.release()


def _own_in_second_slot(keeper: Keeper, _: EtcdServer) -> tuple[Lease, Keeper]:
    """A claim that queued behind another of the same session, which is released then: its slot is not the lowest."""
    first = keeper.acquire("n", timeout=10)
    with ThreadPoolExecutor(1) as pool:
        release = pool.submit(_release_when_two_stand, keeper, first)
        second = keeper.acquire("n", timeout=10)
        release.result(10)
    assert second.key.endswith(".1")
    return second, keeper


def _own_under_another_ttl(keeper: Keeper, _: EtcdServer) -> tuple[Lease, Keeper]:
    return keeper.acquire("n", ttl=4, timeout=10), keeper


def _own_through_a_retired_session(keeper: Keeper, _: EtcdServer) -> tuple[Lease, Keeper]:
    lease = keeper.acquire("n", timeout=10)
    lease._session.retired = True
    keeper.acquire("other", timeout=10)
    return lease, keeper


@pytest.mark.parametrize("own", [_own_in_second_slot, _own_under_another_ttl, _own_through_a_retired_session])
def test_nested_acquire_is_seen_however_the_name_came_to_be_owned(
    etcd: EtcdServer, namespace: str, own: Callable[[Keeper, EtcdServer], tuple[Lease, Keeper]]
) -> None:
    """C05: The claim that a thread would wait for is found in whichever slot and session it stands."""
    with Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=3)) as made:
        lease, keeper = own(made, etcd)
        with pytest.raises(Misuse):
            keeper.acquire("n")
        assert lease.check() == lease.token


def test_handles_work_across_threads(etcd: EtcdServer, namespace: str) -> None:
    """C49: A lease acquired in one thread is checked, waited for and released in others, and then the first may take it."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, ThreadPoolExecutor(1) as pool:
        lease = keeper.acquire("n")
        assert pool.submit(lease.check).result(10) == lease.token
        assert pool.submit(lease.wait).result(10) == lease.token
        pool.submit(lease.release).result(10)
        assert lease.state is State.RELEASED
        again = pool.submit(keeper.acquire, "n").result(10)
        # The name is owned by a thread of the pool, so this thread may queue for it without being told of a deadlock.
        done = pool.submit(_release_when_two_stand, keeper, again)
        assert keeper.acquire("n").token > again.token
        done.result(10)


def test_exclusion_does_not_rest_on_names(etcd: EtcdServer, namespace: str) -> None:
    """C25: Two keepers with the same holder name exclude each other, and the queue shows both."""
    with (
        Keeper(etcd.endpoint, namespace=namespace, holder="twin") as a,
        Keeper(etcd.endpoint, namespace=namespace, holder="twin") as b,
        a.lease("n", timeout=10) as lease,
    ):
        assert b.try_acquire("n") is None
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(b.acquire, "n", timeout=20)
            until(lambda: len(a.claims("n")) == 2)
            claims = a.claims("n")
            assert [claim.holder for claim in claims] == ["twin", "twin"]
            assert len({claim.nonce for claim in claims}) == 2
            lease.release()
            assert waiting.result(20).token == claims[1].token


def test_a_thousand_rounds_leave_nothing(etcd: EtcdServer, namespace: str) -> None:
    """C17 C53: After 1,000 rounds in threads no beat is sent any more, one lease was used, and an idle TTL later none is left."""
    raw = RawEtcd(etcd.endpoint)

    def rounds(keeper: Keeper, number: int) -> None:
        for _ in range(125):
            lease = keeper.acquire(f"n{number}", timeout=20)
            lease.release()
            lease.release()

    with (
        Intermediary(etcd.endpoint) as mid,
        Keeper(mid.endpoint, namespace=namespace, timing=Timing(ttl=2)) as keeper,
        ThreadPoolExecutor(8) as pool,
    ):
        for done in [pool.submit(rounds, keeper, i) for i in range(8)]:
            done.result(50)
        ids = {request.ID for request in mid.requests("LeaseGrant", pb.LeaseGrantRequest)}
        beats = mid.count("LeaseKeepAlive")
        assert raw.claims(namespace) == []
        assert len(ids) == 1
        # Not to be polled: what is to be seen is that nothing comes.
        time.sleep(1)
        assert mid.count("LeaseKeepAlive") == beats
        until(lambda: not ids & set(raw.leases()), 10)
        assert mid.count("LeaseKeepAlive") == beats
        assert raw.claims(namespace) == []


def test_closing_a_keeper_gives_everything_back(etcd: EtcdServer, namespace: str) -> None:
    """A closed keeper has revoked its lease, its handles are LOST with reason ``closed``, and it refuses further use."""
    raw = RawEtcd(etcd.endpoint)
    keeper = Keeper(etcd.endpoint, namespace=namespace)
    leases = [keeper.acquire(f"n{i}", timeout=10) for i in range(3)]
    keeper.close()
    assert raw.claims(namespace) == []
    assert leases[0].lease_id not in raw.leases()
    assert [lease.state for lease in leases] == [State.LOST] * 3
    assert {lease.loss.reason for lease in leases if lease.loss} == {"closed"}
    keeper.close()
    with pytest.raises(Misuse):
        keeper.acquire("n0")
    for lease in leases:
        lease.release()


def test_no_threads_before_use_and_none_after_the_end(etcd: EtcdServer, namespace: str) -> None:
    """A keeper starts no thread before first use; all that it started are daemons with its name and end with it."""
    before = set(threading.enumerate())
    keeper = Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=2))
    assert own_threads(before) == []
    with keeper, keeper.lease("n", timeout=10) as lease:
        lease.subscribe(lambda _: None)
        until(lambda: any(t.name == "leasekeeper-watch" for t in own_threads(before)))
        assert all(t.daemon for t in own_threads(before))
        assert len(own_threads(before)) <= 4
    until(lambda: own_threads(before) == [])
