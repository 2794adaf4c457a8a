"""Runs one peer: reads a number of rounds a line, answers with the seconds that each took, as JSON.

Started by the peer's own Python, so it imports nothing of leasekeeper unless leasekeeper is the peer.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable

Once = Callable[[], object]


def leasekeeper(host: str, port: int) -> Once:
    from leasekeeper import Keeper

    keeper = Keeper(f"{host}:{port}", namespace="bench-peers")
    return lambda: keeper.acquire("name").release()


def etcd3(host: str, port: int) -> Once:
    import etcd3

    client = etcd3.client(host=host, port=port)

    def once() -> None:
        lock = client.lock("name", ttl=10)
        assert lock.acquire()
        assert lock.release()

    return once


def aetcd(host: str, port: int) -> Once:
    import aetcd

    loop = asyncio.new_event_loop()
    client = aetcd.Client(host=host, port=port)
    loop.run_until_complete(client.connect())

    async def once() -> None:
        lock = client.lock(b"name", 10)
        assert await lock.acquire()
        await lock.release()

    return lambda: loop.run_until_complete(once())


def tooz(host: str, port: int) -> Once:
    from tooz import coordination

    coordinator = coordination.get_coordinator(f"etcd3+http://{host}:{port}", b"bench")
    coordinator.start(start_heart=False)

    def once() -> None:
        lock = coordinator.get_lock(b"name")
        assert lock.acquire()
        assert lock.release()

    return once


def redis(host: str, port: int) -> Once:
    import redis

    client = redis.Redis(host, port)

    def once() -> None:
        lock = client.lock("name", timeout=10)
        assert lock.acquire()
        lock.release()

    return once


def main() -> None:
    name, host, port = sys.argv[1:4]
    once: Once = globals()[name](host, int(port))
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            begun = time.perf_counter()
            once()
            times.append(time.perf_counter() - begun)
        print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main()
