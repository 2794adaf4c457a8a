"""Many replicas that look for work: each piece is done once."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from leasekeeper import Keeper, Timing
from leasekeeper.testing import EtcdServer

REPLICAS = 16
RUNS = 200


@pytest.mark.timeout(300)
def test_sixteen_replicas_do_two_hundred_runs_once_each(etcd: EtcdServer, namespace: str) -> None:
    """A31: whoever owns a run's name and finds it not done does it; in the end each was done exactly once."""
    done: set[int] = set()
    effects: list[int] = []

    def replica(number: int) -> None:
        order = list(range(RUNS))
        if number % 2:
            random.Random(number).shuffle(order)  # the others all want the same one at the same time
        with Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=10)) as keeper:
            for run in order:
                if run in done:
                    continue
                lease = keeper.try_acquire(f"run/{run}")
                if lease is None:
                    continue
                with lease:
                    lease.wait(timeout=30)
                    if run not in done:
                        time.sleep(0.002)  # room for whoever should not be here
                        effects.append(run)
                        done.add(run)

    with ThreadPoolExecutor(REPLICAS) as pool:
        for future in [pool.submit(replica, number) for number in range(REPLICAS)]:
            future.result()
    # A run that somebody else owned at that moment was left to them, and they did it.
    assert set(effects) == set(range(RUNS))
    assert max(Counter(effects).values()) == 1
