"""What somebody puts into etcd to stop others or wear them out: bounded, told, and never taken for leave to begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leasekeeper import CorruptState, Keeper, LeasekeeperError, RunHalted
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.halt import HALTS_MAX
from leasekeeper.protocol.head import read_head
from leasekeeper.protocol.identity import read_identity
from leasekeeper.protocol.keys import Keys
from leasekeeper.protocol.meta import read_meta
from leasekeeper.protocol.pointer import read_pointer
from leasekeeper.protocol.receipt import read_receipt, seal
from leasekeeper.protocol.run_keys import RunKeys, RunName
from leasekeeper.protocol.schema import read_envelope
from leasekeeper.runs.run import Run
from leasekeeper.testing import EtcdServer
from tests.commands import call
from tests.raw import RawEtcd
from tests.support import until

BOMBS: dict[str, bytes] = {
    "nested": b"[" * 200_000,
    "nested whole": b"[" * 50_000 + b"]" * 50_000,
    "a long number": b'{"v":' + b"9" * 200_000 + b"}",
    "a megabyte": b'{"v":1,"x":"' + b"y" * 1_000_000 + b'"}',
    "twice": b'{"v":1,"v":1}',
    "no number": b'{"v":NaN}',
    "nothing": b"",
}
READS: dict[str, Callable[[bytes], Any]] = {
    "record": lambda stored: read_receipt(stored, "it"),
    "head": lambda stored: read_head(stored, "it"),
    "meta": lambda stored: read_meta(stored, "it"),
    "step": lambda stored: read_pointer(pb.KeyValue(key=b"it", value=stored)),
    "identity": lambda stored: read_identity(stored, "it"),
    "checkpoint": lambda stored: read_envelope(stored, "it"),
}


@pytest.mark.parametrize("sealed", [False, True], ids=["bare", "sealed"])
@pytest.mark.parametrize("what", sorted(READS))
@pytest.mark.parametrize("bomb", sorted(BOMBS))
def test_values_that_are_made_to_hurt(what: str, bomb: str, sealed: bool) -> None:
    """A3: nesting, long numbers, size and repetition, with a right digest around them or without: CorruptState, nothing else."""
    stored = seal(BOMBS[bomb], None) if sealed else BOMBS[bomb]
    with pytest.raises(CorruptState):
        READS[what](stored)


def test_more_halts_than_are_looked_at(keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """B15: halts of other runs beyond the bound: nothing begins, as one of those that are not looked at may cover it."""
    with keeper.run("order", id="1", signer=None) as run:
        for number in range(HALTS_MAX):
            raw.put(f"leasekeeper/{namespace}/halt/other%2F{number:05}", "junk")
        assert run.do("one", lambda: 1) == 1  # each of them is read, and none covers it
        raw.put(f"leasekeeper/{namespace}/halt/other%2F{HALTS_MAX:05}", "junk")
        called: list[int] = []
        with pytest.raises(RunHalted, match="halt"):
            run.do("two", called.append, 2)
        assert called == []
        raw.delete(f"leasekeeper/{namespace}/halt/other%2F{HALTS_MAX:05}")
        run.do("two", called.append, 2)
        assert called == [2]


def test_keys_that_nobody_wrote(keeper: Keeper, raw: RawEtcd, etcd: EtcdServer, namespace: str) -> None:
    """Stray keys all over a run, in numbers: its owner goes on, workers and commands pass over them, and they decide nothing."""
    keys = RunKeys(Keys(namespace), RunName("order", "1"))
    with pytest.raises(KeyError), keeper.run("order", id="1", signer=None) as run:
        one_and_die(run)
    for number in range(300):
        for place in ("late/000000000002", "ck/x/old", "stray", "blob/" + "0" * 64):
            raw.put(f"{keys.root}{place}/{number}", BOMBS["twice"])
        raw.put(f"leasekeeper/{namespace}/unfinished/order/never-begun-{number}", "")
    called: list[str] = []

    def main(run: Run) -> None:
        run.do("one", list, "one")
        run.do("two", called.append, "two")

    with keeper.worker({"order": main}, every=0.05, concurrency=4, signer=None) as worker:
        until(lambda: worker.finished >= 1)
    assert called == ["two"]
    for command in (
        ("runs", "ls"),
        ("runs", "show", "order/1"),
        ("runs", "explain", "order/1"),
        ("runs", "verify", "order/1"),
    ):
        ended = call(*command, endpoint=etcd.endpoint, namespace=namespace)
        assert ended.code == 0, (command, ended)
        assert len(ended.out) < 200_000


def one_and_die(run: Run) -> None:
    """A step, and the end of a life."""
    run.do("one", list, "one")
    raise KeyError


def begin_behind(run: Run, raw: RawEtcd, keys: RunKeys, called: list[int]) -> None:
    """A step whose first record would stand where somebody has put something."""
    raw.put(keys.record(2).decode(), "junk")
    run.do("one", called.append, 1)


def test_a_record_that_stands_in_the_way(keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """A5: something where the next records would stand is not written over, and what could not be recorded is not called."""
    keys = RunKeys(Keys(namespace), RunName("order", "1"))
    called: list[int] = []
    with pytest.raises(LeasekeeperError), keeper.run("order", id="1", signer=None) as run:
        begin_behind(run, raw, keys, called)
    assert called == []
    assert raw.keys(keys.record(2).decode())[0].value == b"junk"
