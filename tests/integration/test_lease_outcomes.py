"""Requests and replies that get lost: an unknown outcome is read back, never guessed, and nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import grpc
import pytest

from leasekeeper import Keeper, NotAcquired, State, Timing, Unavailable
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.testing import EtcdServer, FaultProxy, Trip, Way
from tests.intermediary import Intermediary, Passing, refuse
from tests.raw import RawEtcd
from tests.support import until

TIMING = Timing(ttl=2)
NAME = "some-name"


@pytest.fixture
def keeper(proxy: FaultProxy, namespace: str) -> Iterator[Keeper]:
    """A keeper whose messages can get lost."""
    with Keeper(proxy.endpoint, namespace=namespace, timing=TIMING) as made:
        yield made
        proxy.heal()


def is_put(message: bytes) -> bool:
    """Whether this message claims NAME."""
    return NAME.encode() in message and b'"nonce"' in message


def is_delete(message: bytes) -> bool:
    """Whether this message deletes a claim on NAME. What the proxy sees has gRPC's five bytes in front."""
    if NAME.encode() not in message or is_put(message):
        return False
    txn = pb.TxnRequest.FromString(message[5:])
    return any(op.HasField("request_delete_range") for op in txn.success)


def lose(proxy: FaultProxy, what: Literal["request", "reply"], match: Callable[[bytes], bool]) -> Trip:
    """Lose one message; a connection that broke says so, and the next one works."""
    return proxy.lose_next_request(match) if what == "request" else proxy.lose_next_reply(match)


def tokens(raw: RawEtcd, namespace: str) -> list[int]:
    """The create revisions of all claims."""
    return [key.create_revision for key in raw.claims(namespace)]


# ---------------------------------------------------------------- acquiring


@pytest.mark.parametrize("attempt", ["acquire", "try_acquire"])
@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_put_whose_outcome_is_unknown_is_read_back(
    keeper: Keeper,
    proxy: FaultProxy,
    raw: RawEtcd,
    namespace: str,
    what: Literal["request", "reply"],
    attempt: str,
) -> None:
    """G6: After a lost request or reply the name is owned by exactly one claim, which is the one that the handle shows."""
    keeper.acquire("other", timeout=10).release()
    trip = lose(proxy, what, is_put)
    lease = keeper.acquire(NAME, timeout=10) if attempt == "acquire" else keeper.try_acquire(NAME)
    assert trip.fired
    assert lease is not None
    assert tokens(raw, namespace) == [lease.token]
    assert keeper.verify(NAME, lease.token)
    lease.release()
    assert tokens(raw, namespace) == []


@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_grant_whose_outcome_is_unknown_makes_one_lease(
    etcd: EtcdServer, proxy: FaultProxy, raw: RawEtcd, namespace: str, what: Literal["request", "reply"]
) -> None:
    """G6: A grant is repeated with the same id, so a lost reply makes no second lease."""
    with (
        Intermediary(etcd.endpoint) as mid,
        FaultProxy(mid.endpoint) as network,
        Keeper(network.endpoint, namespace=namespace, timing=TIMING) as keeper,
    ):
        trip = lose(network, what, lambda _: True)
        lease = keeper.acquire(NAME, timeout=10)
        assert trip.fired
        granted = {request.ID for request in mid.requests("LeaseGrant", pb.LeaseGrantRequest)}
        assert granted == {lease.lease_id}
        assert granted <= set(raw.leases())
        assert lease.wait(timeout=10) == lease.token
        until(lambda: mid.count("LeaseKeepAlive") > 1)
    assert not granted & set(raw.leases())


@pytest.mark.parametrize("held", [False, True], ids=["alone", "beside a held lease"])
@pytest.mark.parametrize("way", [Way.TO_SERVER, Way.TO_CLIENT])
def test_an_acquire_that_ends_in_the_dark_leaves_nothing(
    keeper: Keeper, proxy: FaultProxy, raw: RawEtcd, namespace: str, way: Way, held: bool
) -> None:
    """C33 G6: A put that is on its way when its acquire times out, and arrives later, is removed; a lease beside it is kept."""
    other = keeper.acquire("other", timeout=10)
    if not held:
        other.release()
    proxy.blackhole(way)
    with pytest.raises((Unavailable, NotAcquired)):
        keeper.acquire(NAME, timeout=0.2)
    proxy.heal()
    expected = [other.token] if held else []
    until(lambda: keeper._core.background._jobs == [])
    until(lambda: tokens(raw, namespace) == expected)
    session = keeper._core.sessions.all()[0]
    until(lambda: session.gone or not any(slot.leaving and not slot.haunted for slot in session.slots.values()))
    if held:
        assert other.wait(timeout=10) == other.token
    assert keeper.acquire(NAME, timeout=10).check()


def test_a_put_that_arrives_after_its_removal_is_removed_again(etcd: EtcdServer, raw: RawEtcd, namespace: str) -> None:
    """C33: A put that reaches etcd after everything else of its acquire is found by reading back, and its key goes."""
    let_go = threading.Event()

    def much_later(passing: Passing) -> bytes:
        let_go.wait(30)
        with Keeper(etcd.endpoint) as bare:
            call = bare._core.engine.calls.connection().channel
            reply: bytes = call.unary_unary("/etcdserverpb.KV/Txn")(passing.request, timeout=10)  # type: ignore[arg-type]
        return reply

    with Intermediary(etcd.endpoint) as mid, Keeper(mid.endpoint, namespace=namespace, timing=TIMING) as keeper:
        other = keeper.acquire("other", timeout=10)
        rule = mid.on("Txn", much_later, times=1, when=is_put)
        with pytest.raises(Unavailable):
            keeper.acquire(NAME, timeout=0.2)
        assert rule.hits == 1
        until(lambda: keeper._core.background._jobs == [])
        assert tokens(raw, namespace) == [other.token]
        let_go.set()
        until(lambda: len(tokens(raw, namespace)) == 2)
        until(lambda: tokens(raw, namespace) == [other.token])
        assert other.wait(timeout=10) == other.token


@pytest.mark.parametrize("attempt", ["acquire", "try_acquire"])
def test_a_key_of_somebody_else_in_our_place_is_not_mistaken_for_ours(
    keeper: Keeper, raw: RawEtcd, namespace: str, attempt: str
) -> None:
    """G6: The nonce tells: a key with the name of ours but another value is a stranger's claim, which is waited for."""
    other = keeper.acquire("other", timeout=10)
    ours = keeper._core.ctx.keys.claim(NAME, other.lease_id).decode()
    raw.put(ours, '{"v":1,"nonce":"theirs"}', raw.grant(60))
    if attempt == "try_acquire":
        assert keeper.try_acquire(NAME) is None
    else:
        with pytest.raises(NotAcquired):
            keeper.acquire(NAME, timeout=0.5)
    assert [key.value for key in raw.keys(ours)] == [b'{"v":1,"nonce":"theirs"}']
    assert len(tokens(raw, namespace)) == 2
    raw.delete(ours)
    assert keeper.acquire(NAME, timeout=10).check()


# ---------------------------------------------------------------- a lease that goes in between


@pytest.mark.parametrize("how", ["revoked", "expired"])
@pytest.mark.parametrize("first", [True, False], ids=["new session", "session at hand"])
def test_a_lease_that_is_gone_before_the_put_is_replaced(
    etcd: EtcdServer, raw: RawEtcd, namespace: str, how: str, first: bool
) -> None:
    """C40: When the lease is gone between grant and put, the acquire takes a new one within its timeout."""
    lost: list[int] = []

    def in_between(passing: Passing) -> bytes:
        lease_id = pb.TxnRequest.FromString(passing.request).success[1].request_put.lease
        lost.append(lease_id)
        if how == "revoked":
            raw.revoke(lease_id)
        else:
            until(lambda: lease_id not in raw.leases())
        mid.off(beats)
        return passing.forward()

    with Intermediary(etcd.endpoint) as mid, Keeper(mid.endpoint, namespace=namespace, timing=Timing(ttl=1)) as keeper:
        if not first:
            keeper.acquire("other", timeout=10).release()
        beats = mid.on("LeaseKeepAlive", refuse(grpc.StatusCode.UNAVAILABLE), times=0 if how == "revoked" else 10**9)
        mid.on("Txn", in_between, times=1, when=is_put)
        lease = keeper.acquire(NAME, timeout=20)
        assert lease.lease_id != lost[0]
        assert tokens(raw, namespace) == [lease.token]
        assert lease.wait(timeout=10) == lease.token


def test_a_waiter_whose_lease_was_revoked_queues_again(
    keeper: Keeper, raw: RawEtcd, etcd: EtcdServer, namespace: str
) -> None:
    """C40: A waiter whose lease or key goes never owns by that claim; it stands in the queue again with a new one."""
    with Keeper(etcd.endpoint, namespace=namespace) as owner, ThreadPoolExecutor(1) as pool:
        lease = owner.acquire(NAME, timeout=10)
        waiting = pool.submit(keeper.acquire, NAME, timeout=40)
        until(lambda: len(raw.claims(namespace)) == 2)
        first = raw.claims(namespace)[1]
        raw.delete(first.key)
        until(lambda: [key.create_revision for key in raw.claims(namespace)][1:2] > [first.create_revision])
        second = raw.claims(namespace)[1]
        raw.revoke(second.lease)
        until(lambda: [key.create_revision for key in raw.claims(namespace)][1:2] > [second.create_revision])
        lease.release()
        taken = waiting.result(20)
        assert taken.token > second.create_revision
        assert taken.lease_id != second.lease


def test_releasing_what_is_gone_is_a_success(keeper: Keeper, raw: RawEtcd) -> None:
    """C40: Releasing a lease whose etcd lease was revoked a moment ago neither raises nor hangs."""
    lease = keeper.acquire(NAME, timeout=10)
    raw.revoke(lease.lease_id)
    lease.release()
    assert lease.state in (State.RELEASED, State.LOST)
    assert keeper.acquire(NAME, timeout=10).check()


# ---------------------------------------------------------------- giving back


@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_release_whose_outcome_is_unknown_is_finished_in_the_background(
    keeper: Keeper, proxy: FaultProxy, raw: RawEtcd, namespace: str, what: Literal["request", "reply"]
) -> None:
    """G6: A release whose message is lost returns RELEASED, the key goes soon, and a claim made meanwhile is not touched."""
    other, lease = keeper.acquire("other", timeout=10), keeper.acquire(NAME, timeout=10)
    trip = lose(proxy, what, is_delete)
    lease.release()
    assert trip.fired
    assert lease.state is State.RELEASED
    again = keeper.acquire(NAME, timeout=10)
    until(lambda: tokens(raw, namespace) == [other.token, again.token])
    until(lambda: keeper._core.background._jobs == [])
    assert again.wait(timeout=10) == again.token


def test_a_block_whose_release_is_not_confirmed_ends_well(
    keeper: Keeper, proxy: FaultProxy, raw: RawEtcd, namespace: str
) -> None:
    """C15: Leaving a block with proven authority is a normal end, also when the release itself stays without an answer."""
    with keeper.lease(NAME, timeout=10):
        trip = proxy.lose_next_reply(is_delete, then="cut")
    assert trip.fired
    proxy.heal()
    until(lambda: tokens(raw, namespace) == [])


@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("held", [False, True], ids=["alone", "beside a held lease"])
def test_a_contender_that_could_not_say_goodbye_is_removed(
    keeper: Keeper,
    proxy: FaultProxy,
    etcd: EtcdServer,
    raw: RawEtcd,
    namespace: str,
    what: Literal["request", "reply"],
    held: bool,
) -> None:
    """C14: When the clean-up of a timed-out acquire is cut off, its claim goes in the background, and others get their turn."""
    kept = keeper.acquire("kept", timeout=10) if held else None
    with Keeper(etcd.endpoint, namespace=namespace) as other:
        owner = other.acquire(NAME, timeout=10)
        trip = (proxy.lose_next_request if what == "request" else proxy.lose_next_reply)(is_delete, then="cut")
        with pytest.raises(NotAcquired):
            keeper.acquire(NAME, timeout=0.3)
        assert trip.fired
        assert owner.check() == owner.token
        proxy.heal()
        owner.release()
        third = other.acquire(NAME, timeout=20)
        until(lambda: tokens(raw, namespace) == [*([kept.token] if kept else []), third.token])
        if kept is not None:
            assert kept.wait(timeout=10) == kept.token
