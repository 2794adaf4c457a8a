"""A run's state as a register: on a cluster in trouble every read and write takes effect at one moment while it is called."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import pytest

from leasekeeper import Keeper, Timing, Unavailable
from leasekeeper.protocol.history import last
from leasekeeper.protocol.run_keys import RunKeys, RunName
from leasekeeper.testing import EtcdCluster
from tests.support import until

WRITERS = 3
LOOKS_S = 4.0
Kind = Literal["write", "read"]


@dataclass(frozen=True)
class Count:
    """A register's value: the number of the write that made it."""

    total: int = 0


@dataclass(frozen=True)
class Op:
    """One operation of a history: when it was called and had returned, and the value that it wrote or saw."""

    kind: Kind
    value: int
    called_s: float
    returned_s: float


def contradictions(history: list[Op]) -> list[tuple[Op, Op]]:
    """Pairs that no order of moments explains. Writes count on by one, so values are the only order there can be.

    Ordered by value, a write before the reads of it, the history is linearizable just where nobody had returned before another,
    who comes before, was called.
    """
    ordered = sorted(history, key=lambda op: (op.value, op.kind == "read"))
    found: list[tuple[Op, Op]] = []
    latest: Op | None = None
    for op in ordered:
        if latest is not None and op.returned_s < latest.called_s:
            found.append((latest, op))
        if latest is None or op.called_s > latest.called_s:
            latest = op
    return found


def test_what_is_contradictory() -> None:
    """The judge itself: it finds a read of the past and one of the future, and a lost write; not what merely overlaps."""
    write, later = Op("write", 1, 0, 2), Op("write", 2, 3, 5)
    assert not contradictions([write, later, Op("read", 1, 1, 4), Op("read", 2, 4, 6), Op("read", 1, 4, 4.5)])
    for bad in (Op("read", 1, 6, 7), Op("read", 2, 1, 2), Op("read", 0, 2.5, 2.6), Op("write", 3, 1, 2)):
        assert contradictions([write, later, bad]), bad


def timed(kind: Kind, history: list[Op], work: Callable[[], int], unknown: list[Unavailable]) -> None:
    """Do an operation and note it; one whose end is not known is noted as that."""
    called_s = time.monotonic()
    try:
        value = work()
    except Unavailable as error:
        unknown.append(error)
    else:
        history.append(Op(kind, value, called_s, time.monotonic()))


def trouble(cluster: EtcdCluster, seed: int) -> None:
    """One member after the other, the leader among them, is cut off, frozen or killed; never two at once."""
    chance = random.Random(seed)
    for how in ("partition", "freeze", "kill", "partition"):
        one = chance.choice([cluster.wait_leader(60), chance.randrange(3)])
        others = [index for index in range(3) if index != one]
        if how == "partition":
            cluster.partition([one], others)
        elif how == "freeze":
            cluster.freeze(one)
        else:
            cluster.kill(one)
        time.sleep(1.5)
        if how == "partition":
            cluster.heal()
        elif how == "freeze":
            cluster.thaw(one)
        else:
            cluster.restart(one)
        cluster.wait_ready(60)


def reads(history: list[Op]) -> int:
    """How many reads there are in it."""
    return len([op for op in history if op.kind == "read"])


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_state_is_a_register(etcd_cluster: EtcdCluster, namespace: str) -> None:
    """B6: writers and readers of a state, readers of `last`, and one beside at each member: their history is linearizable."""
    states: list[Op] = []
    heads: list[Op] = []
    acknowledged: list[int] = []
    unknown: list[Unavailable] = []
    unanswered: list[Unavailable] = []
    over = threading.Event()
    stray: list[BaseException] = []

    def again_and_again(work: Callable[[], None]) -> threading.Thread:
        def go_on() -> None:
            try:
                while not over.is_set():
                    work()
            except BaseException as error:  # noqa: BLE001 - the test fails by it
                stray.append(error)

        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        return thread

    beside = [Keeper(member.endpoint, namespace=namespace) for member in etcd_cluster.members]
    with Keeper(etcd_cluster.endpoints, namespace=namespace, timing=Timing(ttl=60)) as keeper:
        with keeper.run("order", id="1", signer=None) as run:
            run.checkpoint("count", Count).commit(total=0)

            def write() -> int:
                state = run.checkpoint("count", Count)
                written = state.update(lambda now: Count((now or Count()).total + 1), tries=1000).total
                acknowledged.append(written)
                return written

            def read() -> int:
                value = run.checkpoint("count", Count).value
                assert value is not None
                return value.total

            def look(at: Keeper) -> int:
                found = at._core.run(
                    last(at._core.ctx, RunKeys(at._core.ctx.keys, RunName("order", "1")), at._core.until(LOOKS_S))
                )
                assert found is not None
                seq: int = found[0].seq
                return seq

            threads = [again_and_again(lambda: timed("write", states, write, unknown)) for _ in range(WRITERS)]
            threads += [again_and_again(lambda: timed("read", states, read, unanswered)) for _ in range(2)]
            threads += [again_and_again(lambda: timed("read", heads, lambda: run.last().seq, unanswered))]
            threads += [again_and_again(partial(timed, "read", heads, partial(look, at), unanswered)) for at in beside]
            trouble(etcd_cluster, seed=len(namespace))
            # However slow the machine is: as many as make a history.
            until(lambda: stray or min(len(acknowledged), reads(states)) > 50, 120.0)
            over.set()
            for thread in threads:
                thread.join(60)
            assert not stray, stray
            end = run.checkpoint("count", Count).value
        assert end is not None
    for one in beside:
        one.close()
    assert not contradictions(states)
    assert not contradictions(heads)
    assert len(acknowledged) == len(set(acknowledged)) > 50
    assert max(acknowledged) <= end.total <= len(acknowledged) + len(unknown)
    assert reads(states) > 50
    assert {op.value for op in heads} - {1}, "nobody saw the run grow"
