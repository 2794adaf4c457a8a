"""Durable steps: what one costs beside its two transactions sent by hand, many at once, and a run that is resumed."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING

import grpc

from bench.measure import Row, interleaved, micros
from bench.raw import Raw
from leasekeeper import Keeper
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.keys import Epoch, Keys, prefix_end
from leasekeeper.protocol.run_keys import RunKeys, RunName, halts

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasekeeper import Run

__all__ = ["concurrent_steps", "resumed", "steps"]

CONCURRENT = 32
PAGE = 500


def _nothing() -> None:
    """An effect that costs nothing."""


class ByHand:
    """The two transactions of a step as a careful programmer would send them: the same compares, reads, keys and sizes."""

    def __init__(self, raw: Raw, run: Run) -> None:
        self._raw = raw
        self._keys = RunKeys(Keys("bench-raw"), RunName("bench", "by-hand"))
        self._own = Keys("bench-raw").claim("run/bench/by-hand", raw.lease_id)
        own = raw.txn(pb.TxnRequest(success=(m.put(self._own, b"x" * 200, raw.lease_id),)))
        self._claimed = own.header.revision
        self._numbers = count(1)
        self._head = b""
        self._sizes = _sizes(run)

    def step(self) -> None:
        """Intent and outcome of one step."""
        number = next(self._numbers)
        step = self._keys.step(f"s{number}")
        changed = self._send(2 * number - 1, step, 0, self._sizes["intent"], intent=True)
        self._send(2 * number, step, changed, self._sizes["outcome"], intent=False)

    def _send(self, seq: int, step: bytes, changed: int, size: int, *, intent: bool) -> int:
        keys, epoch = self._keys, Keys("bench-raw").epoch
        compare = [
            m.created_at(self._own, self._claimed),
            m.value_is(keys.head, self._head) if self._head else m.absent(keys.head),
            m.epoch_is(epoch, Epoch()),
        ]
        failure = [m.get(self._own, keys_only=True), m.get(epoch), m.get(keys.head), m.get(keys.record(seq))]
        if intent:
            compare.append(m.queue_empty(halts(keys.keys)))
            failure.append(m.get(halts(keys.keys)))
        compare += [m.absent(keys.record(seq)), m.unchanged(step, changed)]
        failure.append(m.get(step))
        head = b"%d" % seq + b"h" * (self._sizes["head"] - len(str(seq)))
        success = (
            m.put(keys.record(seq), b"r" * size),
            m.put(step, b"s" * self._sizes["step"]),
            m.put(keys.head, head),
        )
        reply = self._raw.txn(pb.TxnRequest(compare=compare, success=success, failure=failure), timeout=5.0)
        if not reply.succeeded:
            raise RuntimeError("the raw transactions do not work as they should")
        self._head = head
        return int(reply.header.revision)


def _sizes(run: Run) -> dict[str, int]:
    """How large the records of an empty step are, as they stand in etcd."""
    run.do("size", _nothing)
    core, keys = run.lease._core, run._life.log.keys
    found = {kv.key: len(kv.value) for kv in core.run(_range(keys.root.encode())).kvs}
    seq = run._life.log.head.seq
    return {
        "intent": found[keys.record(seq - 1)],
        "outcome": found[keys.record(seq)],
        "step": found[keys.step("size")],
        "head": found[keys.head],
    }


def _range(prefix: bytes):  # type: ignore[no-untyped-def]
    from leasekeeper.protocol.plan import RANGE, ask

    return ask(RANGE, pb.RangeRequest(key=prefix, range_end=prefix_end(prefix)))


def steps(endpoint: str, rounds: int) -> list[Row]:
    """`run.do` and `run.memo` around an empty call beside the same two transactions by hand, on the same channel."""
    numbers = count()
    with (
        grpc.insecure_channel(endpoint) as channel,
        Keeper(channel=channel, namespace="bench") as keeper,
        keeper.run("bench", id="steps", signer=None, quota=2**40) as run,
    ):
        by_hand = ByHand(Raw(channel), run)
        contestants: dict[str, Callable[[], object]] = {
            "raw": by_hand.step,
            "do": lambda: run.do(f"d{next(numbers)}", _nothing),
            "memo": lambda: run.memo(f"m{next(numbers)}", _nothing),
        }
        times = interleaved(contestants, rounds)
    return [
        Row(
            f"run.{name} around an empty call",
            times[name] / times["raw"],
            1.25,
            f"{micros(times[name])} beside {micros(times['raw'])} for its two transactions by hand",
            figures=times,
        )
        for name in ("do", "memo")
    ]


def concurrent_steps(endpoint: str, rounds: int) -> Row:
    """32 empty steps at once beside one: they share commits."""
    numbers = count()
    with (
        Keeper(endpoint, namespace="bench-many") as keeper,
        ThreadPoolExecutor(CONCURRENT) as pool,
        keeper.run("bench", id="many", signer=None) as run,
    ):
        gate = threading.Barrier(CONCURRENT)

        def one() -> None:
            run.do(f"o{next(numbers)}", _nothing)

        def each(name: str) -> None:
            gate.wait()
            run.do(name, _nothing)

        def many() -> None:
            list(pool.map(each, [f"c{next(numbers)}" for _ in range(CONCURRENT)]))

        times = interleaved({"one": one, "many": many}, rounds, warm_up=3)
    return Row(
        f"{CONCURRENT} empty steps of one run at once",
        times["many"] / times["one"],
        8.0,
        f"{micros(times['many'])} beside {micros(times['one'])} for one",
        figures=times,
    )


def resumed(endpoint: str, recorded: int, rounds: int) -> list[Row]:
    """Opening a run of many recorded steps, and asking for all of them, beside reading its records by hand in pages."""
    with grpc.insecure_channel(endpoint) as channel, Keeper(channel=channel, namespace="bench-resume") as keeper:
        try:
            with keeper.run("bench", id="long", signer=None) as run:
                for number in range(recorded):
                    run.do(f"s{number}", _nothing)
                raise KeyError  # it is to be resumed
        except KeyError:
            pass
        raw = Raw(channel)
        keys = RunKeys(Keys("bench-resume"), RunName("bench", "long"))

        def by_hand() -> None:
            _read(raw, keys.records)
            _read(raw, keys.steps)

        def opened() -> None:
            _leave(keeper, lambda run: None)

        def replayed() -> None:
            def ask_for_all(run: Run) -> None:
                for number in range(recorded):
                    run.do(f"s{number}", _nothing)

            _leave(keeper, ask_for_all)

        times = interleaved({"raw": by_hand, "open": opened, "all": replayed}, rounds, warm_up=1)
        peaks = _peaks(replayed)
    about = f"beside {micros(times['raw'])} for its records, and where its steps stand, by hand, in pages of {PAGE}"
    return [
        Row(
            f"resuming a run of {recorded:,} recorded steps",
            times["open"] / times["raw"],
            3.0,
            f"{micros(times['open'])} {about}",
            figures=times,
        ),
        Row(
            "  and asking for each of them",
            times["all"] / times["raw"],
            None,
            f"{micros(times['all'])}, {micros(times['all'] / recorded)} each",
        ),
        Row(
            "  memory that takes, at most",
            peaks / 2**20,
            None,
            "what Python allocates while all are asked for",
            unit="MiB",
        ),
    ]


def _read(raw: Raw, prefix: bytes) -> None:
    """All below a prefix, in pages."""
    start = prefix
    while True:
        reply = raw.range(pb.RangeRequest(key=start, range_end=prefix_end(prefix), limit=PAGE), timeout=5.0)
        if not reply.more:
            return
        start = reply.kvs[-1].key + b"\0"


def _leave(keeper: Keeper, work: Callable[[Run], None]) -> None:
    try:
        with keeper.run("bench", id="long", signer=None, restarts=10_000) as run:
            work(run)
            raise KeyError
    except KeyError:
        pass


def _peaks(work: Callable[[], None]) -> int:
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak - before
