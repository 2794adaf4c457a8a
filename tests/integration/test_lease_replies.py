"""Replies that a real etcd gives only once in a blue moon: absurd TTLs, odd errors, and bytes that are no message."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from leasekeeper import (
    Keeper,
    Lease,
    LeasekeeperError,
    LeaseLost,
    LeaseSuspended,
    OutOfSpace,
    State,
    Timing,
    Unavailable,
)
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import inspect as look
from leasekeeper.testing import EtcdServer
from tests.intermediary import Act, Intermediary, altered, garbage, refuse
from tests.raw import RawEtcd
from tests.support import until

TIMING = Timing(ttl=2)
ABSURD = 9_223_372_036
CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
CALLS = ("LeaseKeepAlive", "Txn", "LeaseGrant", "LeaseRevoke", "LeaseTimeToLive", "Watch", "Range")
TEXTS = ["", "etcdserver: request timed out", "\u2603 \x7f", "x" * 2000, "etcdserver: not a primary lessor", "%s{}\\n"]


@pytest.fixture
def mid(etcd: EtcdServer) -> Iterator[Intermediary]:
    """What stands between the keeper and etcd."""
    with Intermediary(etcd.endpoint) as made:
        yield made


@pytest.fixture
def keeper(mid: Intermediary, namespace: str) -> Iterator[Keeper]:
    """A keeper behind the intermediary."""
    with Keeper(mid.endpoint, namespace=namespace, timing=TIMING) as made:
        yield made
        mid.off()


def puts(request: bytes) -> bool:
    """Whether this transaction writes a claim."""
    return any(op.HasField("request_put") for op in pb.TxnRequest.FromString(request).success)


def beats_again(lease: Lease) -> bool:
    """Wait until beats are confirmed: whether authority was proven by a new one."""
    proof_s = lease._session.proof_s
    until(lambda: lease._session.proof_s > proof_s)
    return lease.wait(timeout=10) == lease.token


# ---------------------------------------------------------------- TTLs


@pytest.mark.parametrize("ttl", [2**63 - 1, 3])
def test_a_longer_ttl_in_a_beat_moves_nothing_further(keeper: Keeper, mid: Intermediary, ttl: int) -> None:
    """C24: A beat answered with an absurd TTL gives at most what was agreed, from its sending."""
    lease = keeper.acquire("n", timeout=10)
    mid.on("LeaseKeepAlive", altered(pb.LeaseKeepAliveResponse, lambda reply: setattr(reply, "TTL", ttl)))
    assert beats_again(lease)
    assert beats_again(lease)
    assert lease.remaining() <= TIMING.authority_s
    mid.on("LeaseKeepAlive", refuse(grpc.StatusCode.UNAVAILABLE))
    mid.off(mid._rules[0])
    until(lambda: lease.state is State.SUSPENDED)
    assert lease.remaining() <= TIMING.authority_s - TIMING.pause_s


@pytest.mark.parametrize("ttl", [ABSURD, 2**63 - 1])
def test_an_absurd_grant_is_not_believed(keeper: Keeper, mid: Intermediary, ttl: int) -> None:
    """C24 C39: A grant of three hundred years counts as what was asked."""
    mid.on("LeaseGrant", altered(pb.LeaseGrantResponse, lambda reply: setattr(reply, "TTL", ttl)), times=1)
    lease = keeper.acquire("n", timeout=10)
    assert lease.remaining() <= TIMING.authority_s
    assert beats_again(lease)


def test_a_shorter_ttl_in_a_beat_shortens_authority(keeper: Keeper, mid: Intermediary) -> None:
    """C24: When a beat is answered with one second of the two agreed, a second less is believed."""
    lease = keeper.acquire("n", timeout=10)
    mid.on("LeaseKeepAlive", altered(pb.LeaseKeepAliveResponse, lambda reply: setattr(reply, "TTL", 1)))
    until(lambda: lease.state is State.SUSPENDED)
    with pytest.raises(LeaseSuspended):
        lease.check()
    mid.off()
    assert lease.wait(timeout=10) == lease.token


def test_acquiring_under_beats_that_prove_too_little_ends_in_time(keeper: Keeper, mid: Intermediary) -> None:
    """C24: A session whose beats grant too little for a claim ends an acquire in Unavailable, without a storm of beats."""
    keeper.acquire("n", timeout=10).release()
    mid.on("LeaseKeepAlive", altered(pb.LeaseKeepAliveResponse, lambda reply: setattr(reply, "TTL", 1)))
    session = keeper._core.sessions.all()[0]
    until(lambda: not session.fresh(keeper._core.now()))
    before = mid.count("LeaseKeepAlive")
    try:
        keeper.acquire("n", timeout=0.5).release()
    except Unavailable:
        pass
    assert mid.count("LeaseKeepAlive") - before < 30


def test_a_first_beat_with_ttl_0_is_a_loss_and_no_crash(keeper: Keeper, mid: Intermediary) -> None:
    """C36 C04: A held lease whose first beat is answered with TTL 0 is LOST at once, whatever TimeToLive would say."""
    lease = keeper.acquire("n", timeout=10)
    mid.on("LeaseKeepAlive", altered(pb.LeaseKeepAliveResponse, lambda reply: reply.ClearField("TTL")), times=1)
    until(lambda: lease.state is State.LOST)
    with pytest.raises(LeaseLost):
        lease.check()
    again = keeper.acquire("n", timeout=20)
    assert again.token > lease.token
    assert beats_again(again)


def test_a_beat_with_ttl_0_before_the_handout_starts_over(keeper: Keeper, mid: Intermediary, namespace: str) -> None:
    """C36: When the beat that a new claim asks for says that the lease is gone, another lease is taken, and that one is owned."""
    first = keeper.acquire("n", timeout=10)
    first.release()
    until(lambda: not first._session.fresh(keeper._core.now()))
    mid.on("LeaseKeepAlive", altered(pb.LeaseKeepAliveResponse, lambda reply: reply.ClearField("TTL")), times=1)
    lease = keeper.acquire("n", timeout=10)
    assert lease.lease_id != first.lease_id
    assert lease.check() == lease.token


@pytest.mark.parametrize("ttl", [0, -5])
def test_a_grant_of_nothing_is_not_used(keeper: Keeper, mid: Intermediary, ttl: int, etcd: EtcdServer) -> None:
    """C36: A grant without a TTL is no lease: the acquire says so in time, and what may have been granted is revoked."""
    mid.on("LeaseGrant", altered(pb.LeaseGrantResponse, lambda reply: setattr(reply, "TTL", ttl)))
    with pytest.raises(Unavailable):
        keeper.acquire("n", timeout=0.5)
    mid.off()
    ids = {request.ID for request in mid.requests("LeaseGrant", pb.LeaseGrantRequest)}
    until(lambda: not ids & set(RawEtcd(etcd.endpoint).leases()))


def test_a_server_with_a_large_minimum(namespace: str) -> None:
    """C39: Where etcd raises a TTL of 1 to its own minimum, beats, deadline and pause follow what was granted."""
    with (
        EtcdServer(fsync=False, election_timeout_ms=5000, extra_args=["--heartbeat-interval=100"]) as server,
        Keeper(server.endpoint, namespace=namespace, timing=Timing(ttl=1)) as keeper,
    ):
        lease = keeper.acquire("n", timeout=20)
        granted = lease._session.timing
        assert granted.ttl >= 7
        assert lease.remaining() > 5
        assert granted.pause_s == granted.ttl / 2
        (claim,) = keeper.claims("n")
        assert claim.ttl == granted.ttl


def test_ttl_1_is_held(etcd: EtcdServer, namespace: str) -> None:
    """C39 C52: The smallest TTL is asked for and renewed by what the server granted for it."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.lease("n", ttl=1, timeout=10) as lease:
        assert lease._session.timing.ttl >= 1
        assert beats_again(lease)


# ---------------------------------------------------------------- errors in a beat


ODD_BEATS: list[Act] = [
    refuse(grpc.StatusCode.UNKNOWN, "etcdserver: not a primary lessor"),
    refuse(grpc.StatusCode.UNAVAILABLE, "etcdserver: request timed out"),
    refuse(grpc.StatusCode.UNKNOWN, ""),
    garbage(),
    garbage(b""),
    refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests"),
]


@pytest.mark.parametrize("act", ODD_BEATS[:4] + ODD_BEATS[5:])
def test_an_odd_answer_to_a_beat_is_a_missed_beat(keeper: Keeper, mid: Intermediary, act: Act) -> None:
    """C16 C41: Whatever a beat is answered with that is no answer, the next one goes out and the lease stays."""
    lease = keeper.acquire("n", timeout=10)
    rule = mid.on("LeaseKeepAlive", act, times=2)
    until(lambda: rule.hits == 2)
    assert beats_again(lease)
    assert lease.loss is None


def survive(endpoint: str, namespace: str, code: grpc.StatusCode) -> None:
    """Answer every call of a keeper with this code for a while."""
    text = TEXTS[code.value[0] % len(TEXTS)]
    with (
        Intermediary(endpoint) as mid,
        Keeper(mid.endpoint, namespace=namespace, timing=Timing(ttl=4)) as keeper,
        ThreadPoolExecutor(1) as pool,
    ):
        lease = keeper.acquire("n", timeout=20)
        waiting = pool.submit(keeper.acquire, "n", timeout=40)
        until(lambda: len(keeper.claims("n")) == 2)
        for method in CALLS:
            mid.on(method, refuse(code, text))
        for ttl in (4, 5):
            with pytest.raises(LeasekeeperError):
                keeper.acquire("m", ttl=ttl, timeout=0.2)
        assert keeper._core.run(look.time_left(lease.lease_id)).kind in ("unknown", "gone")
        beats = mid.count("LeaseKeepAlive")
        until(lambda: mid.count("LeaseKeepAlive") > beats + 1)
        mid.off()
        assert lease.wait(timeout=20) == lease.token
        assert beats_again(lease)
        lease.release()
        try:
            waiting.result(20).release()
        except LeasekeeperError as error:
            assert not isinstance(error, LeaseLost)  # noqa: PT017 - either outcome is fine, but not this one
        keeper.acquire("n", timeout=20).release()


def test_every_code_on_every_call_is_survived(etcd: EtcdServer, namespace: str) -> None:
    """C41: With every call answered by any one code and an odd text, nothing but public errors comes, and no thread dies."""
    with ThreadPoolExecutor(len(CODES)) as pool:
        outcomes = [pool.submit(survive, etcd.endpoint, f"{namespace}-{code.name}", code) for code in CODES]
    assert {code.name: done.exception() for code, done in zip(CODES, outcomes, strict=True) if done.exception()} == {}


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_every_code_on_a_login_is_survived(mid: Intermediary, namespace: str, code: grpc.StatusCode) -> None:
    """C41: A login answered by any code and an odd text is a public error at most; answered again, the keeper works."""
    with Keeper(mid.endpoint, namespace=namespace, timing=TIMING, user="somebody", password="secret") as keeper:
        rule = mid.on("Authenticate", refuse(code, TEXTS[code.value[0] % len(TEXTS)]))
        try:
            keeper.acquire("n", timeout=0.3).release()
        except LeasekeeperError as error:
            assert "secret" not in str(error)  # noqa: PT017 - either outcome is fine, but not this one
        assert rule.hits
        mid.off()
        lease = keeper.acquire("n", timeout=20)
        assert beats_again(lease)


def test_lease_not_found_in_a_beat_is_final(keeper: Keeper, mid: Intermediary) -> None:
    """C46 C04: One answer "requested lease not found" is a loss; nobody else is asked until somebody says yes."""
    lease = keeper.acquire("n", timeout=10)
    mid.on("LeaseKeepAlive", refuse(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found"), times=1)
    until(lambda: lease.state is State.LOST)
    beats = [request.ID for request in mid.requests("LeaseKeepAlive", pb.LeaseKeepAliveRequest)]
    time.sleep(TIMING.ttl)  # to see that nothing comes
    assert [r.ID for r in mid.requests("LeaseKeepAlive", pb.LeaseKeepAliveRequest)] == beats


def test_full_and_busy_are_told_apart(keeper: Keeper, mid: Intermediary) -> None:
    """C42: Code 8 with "too many requests" is tried again; with "database space exceeded" it is OutOfSpace at once."""
    busy = mid.on("Txn", refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests"), times=3)
    lease = keeper.acquire("n", timeout=10)
    assert busy.hits == 3
    full = refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")
    rule = mid.on("Txn", full, when=puts)
    with pytest.raises(OutOfSpace):
        keeper.acquire("m", timeout=10)
    assert rule.hits == 1
    assert lease.wait(timeout=10) == lease.token


def test_a_busy_server_is_not_stormed(keeper: Keeper, mid: Intermediary) -> None:
    """C42: While every call is refused as too many, a retrying acquire asks with growing pauses, and beats keep their rhythm."""
    lease = keeper.acquire("n", timeout=10)
    busy = refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests")
    mid.on("Txn", busy)
    mid.on("LeaseKeepAlive", busy)
    txns, beats = mid.count("Txn"), mid.count("LeaseKeepAlive")
    with pytest.raises(Unavailable):
        keeper.acquire("m", timeout=1.5)
    assert mid.count("Txn") - txns < 20
    assert mid.count("LeaseKeepAlive") - beats < 20
    mid.off()
    assert lease.wait(timeout=20) == lease.token


# ---------------------------------------------------------------- errors elsewhere


@pytest.mark.parametrize("method", ["LeaseGrant", "Txn"])
def test_a_malformed_reply_is_no_success(
    keeper: Keeper, mid: Intermediary, method: str, etcd: EtcdServer, namespace: str
) -> None:
    """C16 G6: A reply that is no message is an unknown outcome: it is read back, and one claim under one lease comes of it."""
    act = garbage()
    mid.on(method, lambda passing: (passing.forward(), act(passing))[1], times=1)
    lease = keeper.acquire("n", timeout=10)
    assert [key.create_revision for key in RawEtcd(etcd.endpoint).claims(namespace)] == [lease.token]
    assert len({request.ID for request in mid.requests("LeaseGrant", pb.LeaseGrantRequest)}) == 1


def test_an_empty_reply_is_no_success(keeper: Keeper, mid: Intermediary, etcd: EtcdServer, namespace: str) -> None:
    """C16: A transaction answered by a message without content is not taken for a lease."""
    mid.on("Txn", garbage(b""), times=1)
    try:
        lease = keeper.acquire("n", timeout=10)
    except Unavailable:
        until(lambda: RawEtcd(etcd.endpoint).claims(namespace) == [])
    else:
        assert [key.create_revision for key in RawEtcd(etcd.endpoint).claims(namespace)] == [lease.token]


def test_a_broken_watch_reply_costs_no_waiter_its_turn(
    keeper: Keeper, mid: Intermediary, etcd: EtcdServer, namespace: str
) -> None:
    """C41: Bytes that are no watch reply end the stream, not the thread that reads it: the waiter gets its turn."""
    mid.on("WatchResponse", garbage(), times=3)
    with Keeper(etcd.endpoint, namespace=namespace) as owner, ThreadPoolExecutor(1) as pool:
        lease = owner.acquire("n", timeout=10)
        waiting = pool.submit(keeper.acquire, "n", timeout=20)
        until(lambda: mid.count("Watch") >= 3)
        lease.release()
        assert waiting.result(20).token > lease.token


def test_a_watch_that_is_refused_without_a_number(
    keeper: Keeper, mid: Intermediary, etcd: EtcdServer, namespace: str
) -> None:
    """C41: A refusal that does not say which watch it means (id -1) is understood: the waiter looks at the queue itself."""

    def refused(reply: pb.WatchResponse) -> None:
        if reply.created:
            reply.watch_id, reply.canceled, reply.cancel_reason = -1, True, "something is wrong with it"
        del reply.events[:]

    mid.on("WatchResponse", altered(pb.WatchResponse, refused))
    with Keeper(etcd.endpoint, namespace=namespace) as owner, ThreadPoolExecutor(1) as pool:
        lease = owner.acquire("n", timeout=10)
        waiting = pool.submit(keeper.acquire, "n", timeout=20)
        until(lambda: mid.count("WatchResponse") >= 1)
        lease.release()
        assert waiting.result(10).token > lease.token


def test_watches_that_are_always_refused_make_no_storm(keeper: Keeper, mid: Intermediary) -> None:
    """C41: While every watch is refused at once, owners and waiters go on reading, at a pace that etcd can bear."""

    def refused(reply: pb.WatchResponse) -> None:
        if reply.created:
            reply.canceled, reply.cancel_reason = True, "something is wrong with it"
        del reply.events[:]

    mid.on("WatchResponse", altered(pb.WatchResponse, refused))
    lease = keeper.acquire("n", timeout=10)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(keeper.acquire, "n", timeout=20)
        until(lambda: len(keeper.claims("n")) == 2)
        txns, watches = mid.count("Txn"), mid.count("WatchResponse")
        assert beats_again(lease)
        assert beats_again(lease)
        assert mid.count("Txn") - txns < 30
        assert mid.count("WatchResponse") - watches < 30
        lease.release()
        assert waiting.result(10).token > lease.token
