"""A run that an anchor remembers further than etcd does: nothing goes on until an operator has looked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leasekeeper import Keeper, Misuse, RunRewound
from leasekeeper.runs.anchor import FileAnchor
from leasekeeper.testing import EtcdServer
from tests.raw import RawEtcd


def nothing() -> None:
    """An effect without a trace."""


def begin(keeper: Keeper, anchor: FileAnchor, steps: int) -> None:
    """A run of so many steps that dies."""
    try:
        with keeper.run("order", id="1", signer=None, anchors=[anchor]) as run:
            for number in range(steps):
                run.do(f"s{number}", nothing)
            raise KeyError
    except KeyError:
        pass


def saved(raw: RawEtcd, prefix: str) -> dict[str, bytes]:
    """All keys below a prefix."""
    return {key.key: key.value for key in raw.keys(prefix)}


@pytest.fixture
def keeper(etcd: EtcdServer, namespace: str) -> Iterator[Keeper]:
    """A keeper of its own namespace."""
    with Keeper(etcd.endpoint, namespace=namespace) as made:
        yield made


@pytest.fixture
def anchor(tmp_path: Path) -> FileAnchor:
    """A file that remembers."""
    return FileAnchor(tmp_path / "anchor")


def test_a_run_that_was_set_back_waits_for_an_operator(
    keeper: Keeper, raw: RawEtcd, namespace: str, anchor: FileAnchor
) -> None:
    """Etcd as an earlier backup had it: RunRewound with both numbers; once accepted, by a record, the run goes on."""
    begin(keeper, anchor, 1)
    prefix = f"leasekeeper/{namespace}/run/"
    before = saved(raw, prefix)
    begin(keeper, anchor, 3)
    for key in saved(raw, prefix):
        raw.delete(key)
    for key, value in before.items():
        raw.put(key, value)
    known = anchor.last("order/1", 1)
    assert known is not None
    with pytest.raises(RunRewound) as told:
        keeper.run("order", id="1", signer=None, anchors=[anchor]).__enter__()
    assert told.value.known == known.seq > told.value.have
    said = keeper.resolve("order/1", evidence="looked at the bank", signer=None, accept_rewind=[anchor])
    assert said is not None
    assert said.data["rewound"] == [{"hash": known.hash, "seq": known.seq}]
    accepted = anchor.last("order/1", 1)
    assert accepted is not None
    assert (accepted.seq, accepted.back, accepted.why) == (said.seq, True, "looked at the bank")
    with keeper.run("order", id="1", signer=None, anchors=[anchor]) as run:
        run.do("s1", nothing)
    last = anchor.last("order/1", 1)
    assert last is not None
    assert not last.back


def test_nothing_is_accepted_that_nobody_remembers(keeper: Keeper, anchor: FileAnchor) -> None:
    """An anchor that knows nothing of the run is no reason for a record."""
    with keeper.run("order", id="1", signer=None):
        pass
    with pytest.raises(Misuse, match="nothing to accept"):
        keeper.resolve("order/1", evidence="looked", signer=None, accept_rewind=[anchor])
