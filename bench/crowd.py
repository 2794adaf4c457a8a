"""Many leases, many waiters: what they cost, counted by the server and by the process itself."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc

from bench import server
from bench.measure import Row
from leasekeeper import Keeper, Lease, Timing

__all__ = ["thousand_leases", "waiters"]


def thousand_leases(endpoint: str, count: int, seconds: float) -> list[Row]:
    """Heartbeats and memory of many leases in one process, beside one."""
    timing = Timing(ttl=5, beat_every=0.4)  # often enough that one beat more or less is no tenth of them
    one = _beats(endpoint, timing, 1, seconds)[0]
    many, size, leases = _beats(endpoint, timing, count, seconds)
    return [
        Row(
            f"beats of {count:,} held leases",
            many / one if one else None,
            1.1,
            f"{many:.0f} beside {one:.0f} in {seconds:.0f} s; {leases} etcd lease",
            figures={"one": one, "many": many, "leases": leases},
        ),
        Row(f"memory of one of {count:,} leases", size / 1024, 8.0, "traced by Python's allocator", unit="KiB"),
    ]


def _beats(endpoint: str, timing: Timing, count: int, seconds: float) -> tuple[float, float, int]:
    """Beats in so many seconds, bytes a lease, and etcd leases, while ``count`` leases are held."""
    with Keeper(endpoint, namespace=f"bench-{count}", timing=timing) as keeper:
        keeper.acquire("warm-up").release()
        before = server.leases(endpoint)
        gc.collect()
        tracemalloc.start()
        held: list[Lease] = [keeper.acquire(f"name-{number}") for number in range(count)]
        time.sleep(1)
        gc.collect()
        size = tracemalloc.get_traced_memory()[0] / count
        tracemalloc.stop()
        begun = server.calls(endpoint).get("LeaseKeepAlive", 0.0)
        time.sleep(seconds)
        beats = server.calls(endpoint).get("LeaseKeepAlive", 0.0) - begun
        leases = server.leases(endpoint) - before + 1
        for lease in held:
            lease.release()
    return beats, size, leases


def waiters(endpoint: str, count: int, releases: int) -> Row:
    """Waiters woken by one release: how many looked at the queue, counted by the server."""
    freed = threading.Semaphore(0)
    owned = threading.Semaphore(0)
    with Keeper(endpoint, namespace="bench-waiters", timing=Timing(ttl=30)) as keeper:

        def wait() -> None:
            lease = keeper.acquire("name", timeout=600)
            owned.release()
            freed.acquire()
            lease.release()

        threads = [threading.Thread(target=wait, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        owned.acquire()
        while len(keeper.claims("name")) < count:
            time.sleep(0.1)
        time.sleep(1)
        before = server.calls(endpoint)["Txn"]
        for _ in range(releases):
            freed.release()
            owned.acquire()
        looked = server.calls(endpoint)["Txn"] - before - releases
        for _ in range(count):
            freed.release()
        for thread in threads:
            thread.join(60)
    return Row(
        f"waiters woken per release, of {count}",
        looked / releases,
        1.1,
        f"{looked:.0f} looks at the queue after {releases} releases",
        unit="waiters",
        figures={"looked": looked, "releases": releases},
    )
