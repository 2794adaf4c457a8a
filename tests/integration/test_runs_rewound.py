"""A run that an anchor remembers further than etcd does: nothing goes on until an operator has looked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from leasekeeper import InDoubt, Keeper, Misuse, Quarantined, Receipt, RunRewound
from leasekeeper.protocol.head import Head
from leasekeeper.protocol.history import checked, page
from leasekeeper.protocol.replay import Replay
from leasekeeper.protocol.story import Story
from leasekeeper.protocol.whereabouts import whereabouts
from leasekeeper.runs.anchor import FileAnchor
from leasekeeper.runs.operator import run_keys
from leasekeeper.testing import EtcdServer
from tests.raw import RawEtcd
from tests.told_runs import Boom, breaks


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
    keeper: Keeper, raw: RawEtcd, namespace: str, anchor: FileAnchor, tmp_path: Path
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
    path = tmp_path / "anchor"
    assert str(told.value) == (
        f"etcd has run order/1 up to record {told.value.have}, and an anchor ({path}) remembers record {known.seq}: an older"
        " backup was restored, or the end was cut off: put it back if you can; or look what was lost had done, and give it up:"
        f" `leasekeeper runs resolve order/1 --accept-rewind {path} --evidence TEXT`, then start the program again"
    )
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


def lives(keeper: Keeper, anchor: FileAnchor, dies: Callable[[], object]) -> None:
    """One life of the run, to its end."""
    with (
        suppress(KeyError, InDoubt, Quarantined),
        keeper.run("order", id="1", signer=None, anchors=[anchor], restarts=1) as run,
    ):
        run.do("s0", nothing)
        if dies is breaks:
            run.do("s1", breaks)
        dies()


def finished(keeper: Keeper, anchor: FileAnchor) -> None:
    """A run that got to its end."""
    lives(keeper, anchor, nothing)


def dead(keeper: Keeper, anchor: FileAnchor) -> None:
    """A run whose first life failed."""
    lives(keeper, anchor, {}.popitem)


def put_aside(keeper: Keeper, anchor: FileAnchor) -> None:
    """A run that did not get on in too many lives."""
    for _ in range(3):
        lives(keeper, anchor, {}.popitem)


def in_doubt(keeper: Keeper, anchor: FileAnchor) -> None:
    """A run with a step of which nobody knows how it ended."""
    for _ in range(2):
        with suppress(Boom):
            lives(keeper, anchor, breaks)


def head_of(keeper: Keeper) -> Head:
    """Where the run stands."""
    core = keeper._core
    head: Head | None = core.run(whereabouts(core.ctx, run_keys(core.ctx.keys, "order/1"), core.until())).head
    assert head is not None
    return head


def records(keeper: Keeper) -> list[Receipt]:
    """All of the run's records."""
    core, keys = keeper._core, run_keys(keeper._core.ctx.keys, "order/1")
    return [checked(keys, seq, stored) for seq, stored in core.run(page(core.ctx, keys, 1, core.until()))]


STATES = pytest.mark.parametrize(
    ("made", "status"), [(finished, "finished"), (dead, "running"), (put_aside, "quarantined"), (in_doubt, "in_doubt")]
)


@STATES
def test_a_run_that_was_not_set_back_takes_no_word(
    keeper: Keeper,
    raw: RawEtcd,
    namespace: str,
    anchor: FileAnchor,
    tmp_path: Path,
    made: Callable[..., None],
    status: str,
) -> None:
    """As in a loop over all runs after a restore: etcd has all that is remembered, so nothing is written, here or there."""
    made(keeper, anchor)
    before, lines = saved(raw, f"leasekeeper/{namespace}/"), (tmp_path / "anchor").read_bytes()
    assert head_of(keeper).status == status
    with pytest.raises(Misuse, match="nothing to accept: etcd has all that is remembered of run order/1, up to record"):
        keeper.resolve("order/1", evidence="looked", signer=None, accept_rewind=[anchor])
    assert saved(raw, f"leasekeeper/{namespace}/") == before
    assert (tmp_path / "anchor").read_bytes() == lines


@STATES
@pytest.mark.parametrize("ahead", [3, 0])
def test_a_word_about_what_is_lost_leaves_the_run_as_it_stands(
    keeper: Keeper, anchor: FileAnchor, tmp_path: Path, made: Callable[..., None], status: str, ahead: int
) -> None:
    """Status, doubts and lives in vain stay by the records there are; so it reads, and so does whoever opens it next.

    Also where one of the anchors knows nothing that is lost, and where the other one knows another record of a number.
    """
    made(keeper, anchor)
    before, other = head_of(keeper), FileAnchor(tmp_path / "other")
    other.remember("order/1", 1, before.seq + ahead, "ab" * 32, int(time.time() * 1000))
    said = keeper.resolve("order/1", evidence="looked", signer=None, accept_rewind=[anchor, other])
    assert said is not None
    assert said.data["rewound"] == [{"hash": "ab" * 32, "seq": before.seq + ahead}]
    after = head_of(keeper)
    assert (after.status, after.doubts, after.restarts, after.due) == (
        before.status,
        before.doubts,
        before.restarts,
        before.due,
    )
    story, replay = Story(), Replay()
    for receipt in records(keeper):
        story.add(receipt)
        replay.add(receipt)
    assert replay.state()["status"] == status
    assert (story.quarantined, story.finished) == (status == "quarantined", status == "finished")
    with pytest.raises(Misuse, match="nothing to accept"):
        keeper.resolve("order/1", evidence="looked", signer=None, accept_rewind=[anchor, other])
    if status == "quarantined":
        with pytest.raises(Quarantined):
            keeper.run("order", id="1", signer=None, anchors=[other]).__enter__()
        keeper.resolve("order/1", evidence="mended", signer=None)
    with suppress(InDoubt), keeper.run("order", id="1", signer=None, anchors=[other]) as run:
        run.do("s0", nothing)
        if status == "in_doubt":
            run.do("s1", nothing)


def test_another_record_of_a_number(keeper: Keeper, anchor: FileAnchor, tmp_path: Path) -> None:
    """Two anchors that remember different records of one number: one is not what etcd has; the command names both files."""
    dead(keeper, anchor)
    known, other = anchor.last("order/1", 1), FileAnchor(tmp_path / "the other")
    assert known is not None
    other.remember("order/1", 1, known.seq, "ab" * 32, known.at_ms)
    for anchors in ([anchor, other], [other, anchor]):
        with pytest.raises(RunRewound, match=f"record {known.seq} of order/1 in etcd is another than") as told:
            keeper.run("order", id="1", signer=None, anchors=anchors).__enter__()
        for file in (anchor.file, f"'{other.file}'"):
            assert f"--accept-rewind {file} " in str(told.value)
