"""From a release in one process to the next owner's `acquire` in another, beside the raw steps it must take."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

import grpc

from bench.measure import Row, micros
from bench.raw import TIMEOUT_S, Raw
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m

__all__ = ["handoff"]


def handoff(endpoint: str, rounds: int) -> Row:
    """Medians of both, in turn. Times are of the machine's monotonic clock, the same in both processes."""
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    other = context.Process(target=_other, args=(endpoint, far), daemon=True)
    other.start()
    ours: list[float] = []
    raw: list[float] = []
    from leasekeeper import Keeper

    with Keeper(endpoint, namespace="bench-handoff") as keeper, grpc.insecure_channel(endpoint) as channel:
        mine = Raw(channel)
        for _ in range(rounds):
            ours.append(_ours(keeper, near))
            raw.append(_raw(mine, near))
    near.send(None)
    other.join(10)
    ratio = statistics.median(ours) / statistics.median(raw)
    return Row(
        "handoff to a waiter in another process",
        ratio,
        1.10,
        f"{micros(statistics.median(ours))} beside {micros(statistics.median(raw))}: one commit, one watch event, one read",
        figures={"ours": statistics.median(ours), "raw": statistics.median(raw)},
    )


def _ours(keeper: object, near: Connection) -> float:
    lease = keeper.acquire("name")  # type: ignore[attr-defined]
    near.send("ours")
    near.recv()
    while len(keeper.claims("name")) < 2:  # type: ignore[attr-defined]
        time.sleep(0.005)
    time.sleep(0.02)
    begun = time.monotonic()
    lease.release()
    ended: float = near.recv()
    return ended - begun


def _raw(mine: Raw, near: Connection) -> float:
    put = pb.TxnRequest(success=(m.put(mine.key, mine.value, mine.lease_id),))
    revision = mine.txn(put, timeout=TIMEOUT_S).header.revision
    near.send((mine.key, revision))
    near.recv()
    time.sleep(0.02)
    begun = time.monotonic()
    mine._delete(revision)
    ended: float = near.recv()
    return ended - begun


def _other(endpoint: str, far: Connection) -> None:
    """The waiter's process: waits for a lease, or for a raw deletion and then reads."""
    from leasekeeper import Keeper

    with Keeper(endpoint, namespace="bench-handoff") as keeper, grpc.insecure_channel(endpoint) as channel:
        mine = Raw(channel)
        while (task := far.recv()) is not None:
            if task == "ours":
                far.send("waiting")
                lease = keeper.acquire("name")
                far.send(time.monotonic())
                lease.release()
            else:
                _watch_and_read(mine, channel, far, *task)


def _watch_and_read(mine: Raw, channel: grpc.Channel, far: Connection, key: bytes, revision: int) -> None:
    watch = channel.stream_stream(
        "/etcdserverpb.Watch/Watch",
        request_serializer=pb.WatchRequest.SerializeToString,
        response_deserializer=pb.WatchResponse.FromString,
    )
    create = pb.WatchCreateRequest(key=key, start_revision=revision + 1)
    call = watch(iter([pb.WatchRequest(create_request=create)]))
    for response in call:
        if response.created:
            far.send("watching")
        elif response.events:
            break
    mine.range(pb.RangeRequest(key=mine.queue, range_end=mine.queue[:-1] + b"0"), timeout=TIMEOUT_S)
    far.send(time.monotonic())
    call.cancel()
