"""What tests of many at once on one run share: threads that begin at one moment, a state, and whether the chain is whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from leasekeeper import (
    Keeper,
)
from leasekeeper.protocol.history import Walk
from leasekeeper.protocol.run_keys import RunKeys, RunName


@dataclass(frozen=True)
class Count:
    """A state."""

    total: int = 0


def chain_is_whole(keeper: Keeper, name: str = "1") -> int:
    """Walk over all records of run ``order/NAME``: how many there are."""
    core = keeper._core
    walk = Walk(RunKeys(core.ctx.keys, RunName("order", name)))
    while core.run(walk.next_page(core.ctx, 10**6, core.until())):
        found = core.run(_last(core, name))
        if walk.seq >= found:
            break
    return walk.seq


def _last(core: Any, name: str) -> Any:
    from leasekeeper.protocol.history import last

    found = yield from last(core.ctx, RunKeys(core.ctx.keys, RunName("order", name)), core.until())
    assert found is not None
    return found[0].seq


def in_threads(count: int, work: Callable[[int], Any], bound_s: float = 60.0) -> list[Any]:
    """Do something in so many threads at the same moment: what each came to, errors raised."""
    together = threading.Barrier(count)

    def one(index: int) -> Any:
        together.wait(30)
        return work(index)

    with ThreadPoolExecutor(count) as pool:
        return [each.result(bound_s) for each in [pool.submit(one, index) for index in range(count)]]
