"""The call that stays open under asyncio, so that grpc keeps its thread: where it is opened, and that it never stays behind."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent import futures

import grpc
import pytest

from leasekeeper import AsyncKeeper, Keeper
from leasekeeper.testing import EtcdServer
from leasekeeper.wire.route import Connection
from leasekeeper.wire.standing import Standing, stand_by
from tests.support import until


def connection_of(keeper: AsyncKeeper | Keeper) -> Connection:
    """The connection of a keeper's calls."""
    return keeper._core.engine.calls.connection()


async def use(keeper: AsyncKeeper) -> None:
    """Acquire and release, twice."""
    for _ in range(2):
        async with keeper.lease("name", ttl=5):
            pass


def test_it_is_open_between_calls_and_ends_with_the_keeper(etcd: EtcdServer, namespace: str) -> None:
    """One call stays open from the second call on, is the same for all loops, and closing the keeper ends it."""

    async def first() -> AsyncKeeper:
        keeper = AsyncKeeper(etcd.endpoint, namespace=namespace)
        await use(keeper)
        return keeper

    async def second(keeper: AsyncKeeper) -> None:
        await use(keeper)
        await keeper.close()

    keeper = asyncio.run(first())
    standing = connection_of(keeper).standing
    assert standing is not None
    assert standing.active
    asyncio.run(second(keeper))
    until(lambda: not standing.active)


def test_it_does_not_stay_on_a_lent_channel(etcd: EtcdServer, namespace: str) -> None:
    """A channel that goes on after the keeper carries nothing of it any more."""

    async def main(channel: grpc.Channel) -> Standing:
        async with AsyncKeeper(channel=channel, namespace=namespace) as keeper:
            await use(keeper)
            standing = connection_of(keeper).standing
            assert standing is not None
            return standing

    with grpc.insecure_channel(etcd.endpoint) as channel:
        standing = asyncio.run(main(channel))
        until(lambda: not standing.active)


def test_threads_have_none(etcd: EtcdServer, namespace: str) -> None:
    """A blocking call brings its answer itself: no call stays open for it."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        for _ in range(2):
            keeper.acquire("name", ttl=5).release()
        assert connection_of(keeper).standing is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_finds_none(etcd: EtcdServer, namespace: str) -> None:
    """For the moment of a fork it is closed, and the parent's next call opens another."""

    async def main() -> None:
        async with AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper:
            await use(keeper)
            before = connection_of(keeper).standing
            assert before is not None
            keeper._core.quiet(time.monotonic() + 5)
            try:
                assert not before.active
                assert connection_of(keeper).standing is None
            finally:
                keeper._core.go_on()
            await use(keeper)
            after = connection_of(keeper).standing
            assert after is not None
            assert after.active

    asyncio.run(main())


def test_where_it_is_refused_nothing_else_happens() -> None:
    """Something that does not know the health check ends the call; it is not tried again."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            connection = Connection(channel, 0, "it", 0.0, lent=False)
            connection.worked = True
            stand_by(connection)
            standing = connection.standing
            assert standing is not None
            until(lambda: not standing.active)
            stand_by(connection)
            assert connection.standing is standing
            standing.end()
    finally:
        server.stop(None)


def test_a_closed_channel_is_no_error() -> None:
    """Whoever calls next is told that the channel is closed, not whoever wants its thread kept."""
    channel = grpc.insecure_channel("127.0.0.1:1")
    channel.close()
    standing = Standing(channel)
    assert not standing.active
    standing.end()
