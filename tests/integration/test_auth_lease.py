"""Users, roles and logins: rights limited to one namespace, logins that expire, and what happens without the right ones."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from leasekeeper import (
    AsyncKeeper,
    AuthError,
    Keeper,
    Lease,
    LeaseLost,
    NotAcquired,
    State,
    Timing,
)
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.inspect import time_left
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.intermediary import Intermediary
from tests.secured import PASSWORD, USER, Operator
from tests.support import until

TIMING = Timing(ttl=2)
TOKEN_TTL_S = 3


@pytest.fixture(scope="module")
def secured() -> Iterator[EtcdServer]:
    """An etcd that asks for logins, which expire after 3 s without use; its user may only use the namespace "team"."""
    with EtcdServer(fsync=False, auth_token_ttl_s=TOKEN_TTL_S) as server:
        operator = Operator(server.endpoint)
        operator.add_role("team", "leasekeeper/team/")
        operator.add_user(USER, PASSWORD, "team")
        operator.enable_auth()
        yield server


@pytest.fixture
def fresh() -> Iterator[EtcdServer]:
    """An etcd for this test alone, without authentication so far."""
    with EtcdServer(fsync=False, auth_token_ttl_s=TOKEN_TTL_S) as server:
        yield server


def keeper_of(
    endpoint: str, namespace: str = "team", user: str | None = USER, password: str | None = PASSWORD
) -> Keeper:
    """A keeper that logs in."""
    return Keeper(endpoint, namespace=namespace, timing=TIMING, user=user, password=password)


def anonymous(endpoint: str) -> Keeper:
    """A keeper without credentials."""
    return Keeper(endpoint, namespace="team", timing=TIMING)


def to_team(operator: Operator) -> None:
    """Give the namespace "team" its user and role."""
    operator.add_role("team", "leasekeeper/team/")
    operator.add_user(USER, PASSWORD, "team")


# ---------------------------------------------------------------- rights


def test_rights_in_one_namespace_are_enough(secured: EtcdServer) -> None:
    """C54: a user whose role covers `leasekeeper/<namespace>/` and nothing else can do all that the library does."""
    operator = Operator(secured.endpoint)
    with keeper_of(secured.endpoint) as keeper, keeper_of(secured.endpoint) as other:
        with keeper.lease("a/b", note="mine") as lease:
            assert keeper.verify("a/b", lease.token)
            assert [claim.note for claim in other.claims("a/b")] == ["mine"]
            assert list(other.names()) == ["a/b"]
            assert other.try_acquire("a/b") is None
            left = keeper._core.run(time_left(lease.lease_id))
            assert left.kind == "alive"
            assert 0 <= left.seconds <= TIMING.ttl
            with pytest.raises(NotAcquired):
                other.acquire("a/b", timeout=0.1)
            time.sleep(TIMING.ttl)  # beats, watches and read-backs, all with the user's rights
            assert lease.state is State.HELD
            got: list[Lease] = []
            waiter = threading.Thread(target=lambda: got.append(other.acquire("a/b", timeout=30)))
            waiter.start()
            until(lambda: len(operator.claims("team")) == 2)
        waiter.join(30)
        assert got[0].token > lease.token
        operator.delete(got[0].key)  # seen by the watch
        until(lambda: got[0].state is State.LOST)
        assert got[0].loss is not None
        assert got[0].loss.reason == "deleted"
        revoked = keeper.acquire("a/b")
        operator.revoke(revoked.lease_id)
        until(lambda: revoked.state is State.LOST)
        lease_ids = {keeper.acquire("x").lease_id, other.acquire("y").lease_id}
    until(lambda: not lease_ids & set(operator.leases()))  # closing revokes


def test_rights_in_one_namespace_are_enough_for_tasks(secured: EtcdServer) -> None:
    """C54: the same under asyncio."""

    async def work() -> None:
        async with AsyncKeeper(
            secured.endpoint, namespace="team", timing=TIMING, user=USER, password=PASSWORD
        ) as keeper:
            async with keeper.lease("n") as lease:
                assert await keeper.verify("n", lease.token)
                assert [name async for name in keeper.names()] == ["n"]
                waiter = asyncio.ensure_future(keeper.acquire("n"))
                await asyncio.sleep(0.05)
            await (await waiter).release()

    asyncio.run(work())


@pytest.mark.parametrize("ask", ["acquire", "try_acquire", "claims", "names", "verify"])
def test_missing_rights(secured: EtcdServer, ask: str) -> None:
    """A user without rights in a namespace is told at once, as a matter of rights, whose and which ones are missing."""
    with keeper_of(secured.endpoint, namespace="others") as keeper:
        with pytest.raises(AuthError) as caught:
            asked(keeper, ask)
        assert caught.value.denied
        assert caught.value.user == USER
        assert USER in str(caught.value)
        assert "leasekeeper/others/" in str(caught.value)


def asked(keeper: Keeper, ask: str) -> Any:
    """One of the questions that reach etcd."""
    match ask:
        case "acquire":
            return keeper.acquire("n", timeout=20)
        case "verify":
            return keeper.verify("n", 5)
        case "names":
            return list(keeper.names())
    return getattr(keeper, ask)("n")


def test_rights_to_read_only(fresh: EtcdServer) -> None:
    """A user who may only read looks at the queue and is denied to stand in it; nothing is left behind."""
    operator = Operator(fresh.endpoint)
    operator.add_role("reader", "leasekeeper/team/", "READ")
    operator.add_user(USER, PASSWORD, "reader")
    operator.enable_auth()
    with keeper_of(fresh.endpoint) as keeper:
        assert keeper.claims("n") == []
        with pytest.raises(AuthError) as caught:
            keeper.acquire("n", timeout=20)
        assert caught.value.denied
    assert operator.claims("team") == []
    until(lambda: operator.leases() == [])


# ---------------------------------------------------------------- the wrong password


def test_a_wrong_password_is_told_once_and_fast(secured: EtcdServer, caplog: pytest.LogCaptureFixture) -> None:
    """C21: a wrong password is an AuthError with one clear message; ten tries at once cost etcd one login, not ten."""
    caplog.set_level(logging.DEBUG)
    with Intermediary(secured.endpoint) as between, keeper_of(between.endpoint, password="wr0ng") as keeper:
        errors: list[AuthError] = []

        def attempt(number: int) -> None:
            with pytest.raises(AuthError) as caught:
                keeper.acquire(f"n{number}", timeout=20)
            errors.append(caught.value)

        threads = [threading.Thread(target=attempt, args=(number,)) for number in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(errors) == 10
        for error in errors:
            assert not error.denied
            assert error.user == USER
            assert "wrong user or password" in str(error)
        assert between.count("Authenticate") == 1
    assert "wr0ng" not in caplog.text


def test_the_password_is_nowhere(secured: EtcdServer, caplog: pytest.LogCaptureFixture) -> None:
    """Neither password nor login token shows in a repr, an error, its traceback or pickle, or a log."""
    caplog.set_level(logging.DEBUG)
    secrets = [PASSWORD, "an0ther w0rd"]
    shown: list[str] = []
    with keeper_of(secured.endpoint) as keeper:
        lease = keeper.acquire("secret")
        core = keeper._core
        assert core.engine.login.token
        secrets.append(core.engine.login.token)
        seen = (keeper, lease, core.engine.login, core.engine, core, core.ctx, keeper.claims("secret"))
        shown += [repr(thing) for thing in seen]
    for namespace, password in (("others", PASSWORD), ("team", secrets[1])):
        with keeper_of(secured.endpoint, namespace=namespace, password=password) as keeper:
            try:
                keeper.acquire("n", timeout=5)
            except AuthError as error:
                shown += [str(error), repr(error), traceback.format_exc(), repr(vars(error))]
                shown.append(pickle.dumps(error).decode("latin-1"))
            else:
                raise AssertionError("was let in")
    for secret in secrets:
        assert not [text for text in (*shown, caplog.text) if secret in text]


def test_a_password_that_is_changed_while_it_holds(fresh: EtcdServer) -> None:
    """After a change of password the old one is refused at the next login: told as AuthError, and the lease ends."""
    operator = Operator(fresh.endpoint)
    to_team(operator)
    operator.enable_auth()
    with keeper_of(fresh.endpoint) as keeper:
        lease = keeper.acquire("n")
        operator.set_password(USER, "a new one")
        with pytest.raises(AuthError):
            until(lambda: keeper.verify("n", lease.token) is None)
        with pytest.raises(LeaseLost):
            until(lambda: lease.wait(timeout=30) is None)


# ---------------------------------------------------------------- logins that expire


def logins_of(between: Intermediary) -> int:
    """How often somebody logged in."""
    return between.count("Authenticate")


@pytest.mark.slow
def test_a_login_that_expires_every_three_seconds(fresh: EtcdServer) -> None:
    """C21: with logins of 3 s, holding, waiting, acquiring and releasing go on for long; each expiry costs one login."""
    operator = Operator(fresh.endpoint)
    to_team(operator)
    operator.enable_auth()
    with (
        Intermediary(fresh.endpoint) as between,
        keeper_of(between.endpoint) as keeper,
        keeper_of(fresh.endpoint) as other,
    ):
        held, blocking = keeper.acquire("held"), other.acquire("waited for")
        got: list[Lease] = []
        waiter = threading.Thread(target=lambda: got.append(keeper.acquire("waited for", timeout=60)))
        waiter.start()
        over = time.monotonic() + 10
        while time.monotonic() < over:
            keeper.acquire("again and again").release()
            assert held.wait(timeout=20) == held.token
            time.sleep(0.5)
        blocking.release()
        waiter.join(30)
        assert got
        assert held.state is State.HELD
        got[0].release()
        held.release()
        busy = logins_of(between)
        assert busy <= 5
        time.sleep(TIMING.ttl + 2 * TOKEN_TTL_S)  # nothing is claimed: no beats, so the login expires
        keeper.acquire("later").release()
        assert logins_of(between) <= busy + 1


def test_a_restart_forgets_every_login(fresh: EtcdServer) -> None:
    """C21: etcd dies and comes back while a name is held and another waited for, and all logins with it; everything goes on."""
    operator = Operator(fresh.endpoint)
    to_team(operator)
    operator.enable_auth()
    with (
        Intermediary(fresh.endpoint) as between,
        keeper_of(between.endpoint) as keeper,
        keeper_of(fresh.endpoint) as other,
    ):
        held, blocking = keeper.acquire("held"), other.acquire("waited for")
        got: list[Lease] = []
        waiter = threading.Thread(target=lambda: got.append(keeper.acquire("waited for", timeout=60)))
        waiter.start()
        until(lambda: len(operator.claims("team")) == 3)
        before = logins_of(between)
        fresh.kill()
        fresh.start()
        threads = [threading.Thread(target=lambda i=i: keeper.acquire(f"n{i}").release()) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert held.wait(timeout=30) == held.token
        blocking.release()
        waiter.join(30)
        assert got
        # One for what had been forgotten; a second when the first one met etcd on its way up.
        assert logins_of(between) <= before + 2


def test_one_login_for_all_who_need_it(secured: EtcdServer) -> None:
    """No login storm: thirty threads and tasks that find the login expired at once cost one login."""
    with Intermediary(secured.endpoint) as between, keeper_of(between.endpoint) as keeper:
        lease = keeper.acquire("held")
        before = logins_of(between)
        keeper._core.engine.login.token = "forgotten.12"
        threads = [threading.Thread(target=lambda i=i: keeper.acquire(f"n{i}").release()) for i in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert logins_of(between) == before + 1
        lease.release()

    async def many(endpoint: str) -> None:
        async with AsyncKeeper(endpoint, namespace="team", timing=TIMING, user=USER, password=PASSWORD) as aio:
            lease = await aio.acquire("held")
            aio._core.engine.login.token = "forgotten.12"

            async def one(i: int) -> None:
                async with aio.lease(f"n{i}"):
                    pass

            await asyncio.gather(*(one(i) for i in range(30)))
            await lease.release()

    with Intermediary(secured.endpoint) as between:
        asyncio.run(many(between.endpoint))
        assert logins_of(between) == 2


def test_a_watch_whose_login_has_expired(secured: EtcdServer) -> None:
    """C21: a watch opened with a login that etcd does not know logs in and is there: a deletion is seen at once."""
    operator = Operator(secured.endpoint)
    with FaultProxy(secured.endpoint) as proxy, keeper_of(proxy.endpoint) as keeper:
        lease = keeper.acquire("watched", ttl=60)
        until(lambda: lease._authority.slot.watching)
        keeper._core.engine.login.token = "forgotten.12"
        proxy.close_cleanly()  # the stream is opened again, with that login
        until(lambda: keeper._core.engine.login.token not in (None, "forgotten.12"))
        operator.delete(lease.key)
        until(lambda: lease.state is State.LOST, 20)


# ---------------------------------------------------------------- authentication comes and goes


def test_enabled_while_it_holds_and_waits(fresh: EtcdServer) -> None:
    """C47: with credentials configured, authentication that is switched on at run time changes nothing for anybody."""
    operator = Operator(fresh.endpoint)
    to_team(operator)
    with keeper_of(fresh.endpoint) as keeper, keeper_of(fresh.endpoint) as other:
        lease = keeper.acquire("n")
        got: list[Lease] = []
        waiter = threading.Thread(target=lambda: got.append(other.acquire("n", timeout=60)))
        waiter.start()
        until(lambda: len(operator.claims("team")) == 2)
        operator.enable_auth()
        time.sleep(2 * TIMING.ttl)
        assert lease.state is State.HELD
        operator.add_user("somebody else", "whose password")  # makes every login stale
        time.sleep(TIMING.ttl)
        assert lease.state is State.HELD
        lease.release()
        waiter.join(30)
        assert got
        operator.disable_auth()
        time.sleep(TIMING.ttl)
        assert got[0].state is State.HELD
        with other.lease("another"):
            pass


def test_enabled_without_credentials(fresh: EtcdServer) -> None:
    """C47: without credentials an acquire is an AuthError that says so, and what is held pauses and ends; nothing crashes."""
    operator = Operator(fresh.endpoint)
    with anonymous(fresh.endpoint) as keeper, anonymous(fresh.endpoint) as other:
        lease = keeper.acquire("n")
        failures: list[Exception] = []

        def wait_for_it() -> None:
            try:
                other.acquire("n")
            except Exception as error:  # noqa: BLE001 - told below
                failures.append(error)

        waiter = threading.Thread(target=wait_for_it)
        waiter.start()
        until(lambda: len(operator.claims("team")) == 2)
        operator.enable_auth()
        with pytest.raises(AuthError, match="none is configured") as caught:
            keeper.acquire("another", timeout=20)
        assert not caught.value.denied
        assert caught.value.user is None
        with pytest.raises(LeaseLost) as lost:
            until(lambda: lease.wait(timeout=30) is None)
        assert lost.value.reason == "expired"
        waiter.join(60)
        assert [type(error) for error in failures] == [AuthError]
        lease.release()
    until(lambda: operator.claims("team") == [])


def test_what_cannot_be_read_is_not_believed(fresh: EtcdServer) -> None:
    """G3: whoever can neither watch nor read its key stops, although etcd goes on to confirm its beats without a login."""
    operator = Operator(fresh.endpoint)
    with FaultProxy(fresh.endpoint) as proxy, anonymous(proxy.endpoint) as keeper:
        lease = keeper.acquire("n")
        until(lambda: lease._authority.slot.watching)
        operator.enable_auth()
        proxy.close_cleanly()  # its watch was allowed before; the next one is not
        operator.delete(lease.key)
        until(lambda: lease.state is not State.HELD, 20)
        until(lambda: lease.state is State.LOST, 20)


def test_credentials_where_none_are_asked_for(fresh: EtcdServer) -> None:
    """A keeper with credentials works on an etcd without authentication, and does not ask for a login at each call."""
    with Intermediary(fresh.endpoint) as between, keeper_of(between.endpoint) as keeper:
        for _ in range(5):
            keeper.acquire("n").release()
        with keeper.lease("n") as lease:
            time.sleep(TIMING.ttl)
            assert lease.state is State.HELD
        assert logins_of(between) == 1


def test_rights_withdrawn_while_it_holds(fresh: EtcdServer) -> None:
    """A user who loses its role while it holds a name is stopped, and told that rights are missing."""
    operator = Operator(fresh.endpoint)
    to_team(operator)
    operator.enable_auth()
    with keeper_of(fresh.endpoint) as keeper:
        lease = keeper.acquire("n")
        operator.take_role(USER, "team")
        with pytest.raises(AuthError) as caught:
            keeper.acquire("another", timeout=20)
        assert caught.value.denied
        until(lambda: lease.state is State.LOST, 30)


def test_the_login_is_sent_with_every_request(secured: EtcdServer) -> None:
    """The password travels in login requests only."""
    with Intermediary(secured.endpoint) as between, keeper_of(between.endpoint) as keeper:
        keeper.acquire("n").release()
        gc.collect()
        (login,) = between.requests("Authenticate", pb.AuthenticateRequest)
        assert (login.name, login.password) == (USER, PASSWORD)
        others = [request for method, request in between._seen if method != "Authenticate"]
        assert not any(PASSWORD.encode() in request for request in others)
