"""Losing exactly one message between a gRPC client and a real etcd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.support import tls_files, until

Put = Callable[[str, str], None]
Get = Callable[[str], str]


def channel_to(endpoint: str) -> grpc.Channel:
    """A channel of its own connection, that comes back quickly after a fault."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200)]
    return grpc.insecure_channel(endpoint, options=options)


@pytest.fixture
def channel(proxy: FaultProxy) -> Iterator[grpc.Channel]:
    """A channel through the proxy."""
    with channel_to(proxy.endpoint) as made:
        yield made


@pytest.fixture
def put(channel: grpc.Channel, namespace: str) -> Put:
    """Put a value through the proxy, with a short deadline."""
    call = channel.unary_unary(
        "/etcdserverpb.KV/Put",
        request_serializer=pb.PutRequest.SerializeToString,
        response_deserializer=pb.PutResponse.FromString,
    )

    def put_through(key: str, value: str) -> None:
        call(pb.PutRequest(key=f"{namespace}/{key}".encode(), value=value.encode()), timeout=3)

    return put_through


@pytest.fixture
def get(etcd: EtcdServer, namespace: str) -> Iterator[Get]:
    """Read a value past the proxy: what etcd really has."""
    with channel_to(etcd.endpoint) as direct:
        call = direct.unary_unary(
            "/etcdserverpb.KV/Range",
            request_serializer=pb.RangeRequest.SerializeToString,
            response_deserializer=pb.RangeResponse.FromString,
        )

        def read(key: str) -> str:
            reply = call(pb.RangeRequest(key=f"{namespace}/{key}".encode()), timeout=30)
            return "".join(pair.value.decode() for pair in reply.kvs)

        yield read


# What a broken connection looks like. Old releases of grpc may wait for another one until the call's time is over.
BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def code_of(put: Put, key: str, value: str) -> grpc.StatusCode:
    """The status that a put fails with."""
    with pytest.raises(grpc.RpcError) as caught:
        put(key, value)
    code: grpc.StatusCode = caught.value.code()
    return code


def test_a_lost_reply_means_that_etcd_has_acted(proxy: FaultProxy, put: Put, get: Get) -> None:
    """G6: after lose_next_reply the client knows nothing and etcd has the write; the next call works."""
    put("a", "1")
    trip = proxy.lose_next_reply(b"/b")
    assert code_of(put, "b", "2") in BROKEN
    assert trip.wait(30)
    assert get("b") == "2"
    until(lambda: works(put))


def test_a_lost_request_means_that_etcd_has_not(proxy: FaultProxy, put: Put, get: Get) -> None:
    """After lose_next_request the client sees the same failure, and etcd never had the write."""
    put("a", "1")
    trip = proxy.lose_next_request(b"/b")
    assert code_of(put, "b", "2") in BROKEN
    assert trip.wait(30)
    until(lambda: works(put))
    assert get("b") == ""


def test_a_black_hole_after_the_request(proxy: FaultProxy, put: Put, get: Get) -> None:
    """then="blackhole" leaves the client waiting for its deadline, and everything else too, until heal."""
    put("a", "1")
    proxy.lose_next_reply(b"/b", then="blackhole")
    assert code_of(put, "b", "2") is grpc.StatusCode.DEADLINE_EXCEEDED
    assert get("b") == "2"
    proxy.heal()
    until(lambda: works(put))


def test_a_cut_before_the_request_lasts_until_heal(proxy: FaultProxy, put: Put, get: Get) -> None:
    """C14: then="cut" refuses every later try too, so that a clean-up that is retried can be watched."""
    put("a", "1")
    proxy.lose_next_request(b"/b", then="cut")
    assert code_of(put, "b", "2") in BROKEN
    assert not works(put)
    proxy.heal()
    until(lambda: works(put))
    assert get("b") == ""


def test_a_trip_takes_only_what_matches(proxy: FaultProxy, put: Put, get: Get) -> None:
    """Other calls on the same connection are left alone, and a predicate sees the whole message."""
    trip = proxy.lose_next_request(lambda message: b"poison" in message)
    for number in range(5):
        put("a", str(number))
    assert get("a") == "4"
    assert not trip.fired
    assert code_of(put, "a", "poison") in BROKEN
    assert trip.fired


def test_requests_go_through_while_replies_are_lost(proxy: FaultProxy, put: Put, get: Get) -> None:
    """lose_replies() is the same for every call until heal, and no reply turns up afterwards."""
    put("a", "1")
    proxy.lose_replies()
    assert code_of(put, "a", "2") is grpc.StatusCode.DEADLINE_EXCEEDED
    until(lambda: get("a") == "2")
    proxy.heal()
    until(lambda: works(put))


def test_a_clean_close_is_survived(proxy: FaultProxy, put: Put) -> None:
    """C12: an end of stream ends the connection; the client dials again and goes on."""
    put("a", "1")
    before = proxy.counts.connections
    proxy.close_cleanly()
    until(lambda: works(put))
    assert proxy.counts.connections > before


def works(put: Put) -> bool:
    """True when a put comes through."""
    try:
        put("probe", "x")
    except grpc.RpcError:
        return False
    return True


def test_tls_goes_through_unread(tmp_path: Path) -> None:
    """The proxy is plain TCP: TLS passes, and the next reply can be lost though nothing can be read."""
    files = tls_files(tmp_path)
    credentials = grpc.ssl_channel_credentials(
        Path(files.ca).read_bytes(), Path(files.client_key).read_bytes(), Path(files.client_cert).read_bytes()
    )
    with EtcdServer(tls=files, fsync=False) as server, FaultProxy(server.endpoint) as proxy:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200)]
        with grpc.secure_channel(proxy.endpoint, credentials, options) as channel:
            call = channel.unary_unary(
                "/etcdserverpb.KV/Put",
                request_serializer=pb.PutRequest.SerializeToString,
                response_deserializer=pb.PutResponse.FromString,
            )
            first = call(pb.PutRequest(key=b"a", value=b"1"), timeout=10).header.revision
            trip = proxy.lose_next_reply()
            with pytest.raises(grpc.RpcError):
                call(pb.PutRequest(key=b"a", value=b"2"), timeout=10)
            assert trip.wait(30)
            assert server.status().revision in (first, first + 1)
            assert call(pb.PutRequest(key=b"a", value=b"3"), timeout=10, wait_for_ready=True).header.revision > first
