"""Steps and the anchors of their run: what waits for an anchor, and what one that refuses or fails stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest

from leasekeeper import AnchorSkewed, AsyncKeeper, Keeper, LeasekeeperError, RunRewound, Unavailable
from leasekeeper.runs.anchor import Anchored, FileAnchor, SyslogAnchor
from leasekeeper.testing import EtcdServer
from leasekeeper.testing.outside import records_of

RUN = "order/1"


class Unfinished(Exception):
    """Ends a life without ending the run."""


class Failing:
    """An anchor that remembers, until it is told to fail."""

    def __init__(self, path: Path) -> None:
        self.kept = FileAnchor(path)
        self.error: Callable[[], BaseException] | None = None
        self.asked = 0

    def remember(self, run: str, gen: int, seq: int, hash: str, at_ms: int) -> None:  # noqa: A002 - the record's own word
        """Remember, or fail."""
        self.asked += 1
        if self.error is not None:
            raise self.error()
        self.kept.remember(run, gen, seq, hash, at_ms)

    def accept(self, run: str, gen: int, seq: int, hash: str, at_ms: int, why: str = "") -> None:  # noqa: A002
        """Not asked for here."""
        raise AssertionError(run)

    def last(self, run: str, gen: int) -> Anchored | None:
        """What is remembered."""
        return self.kept.last(run, gen)

    def generations(self, run: str) -> tuple[int, ...]:
        """Those of which something is remembered."""
        return self.kept.generations(run)


@pytest.fixture
def keeper(etcd: EtcdServer, namespace: str) -> Iterator[Keeper]:
    """A keeper of this test."""
    with Keeper(etcd.endpoint, namespace=namespace) as made:
        yield made


@pytest.fixture
def anchor(tmp_path: Path) -> Failing:
    """An anchor of this test."""
    return Failing(tmp_path / "anchor")


def kinds(keeper: Keeper) -> list[str]:
    """What is recorded, in order."""
    return [record.kind for record in records_of(keeper, "order", "1")]


def test_the_anchor_knows_before_the_call(keeper: Keeper, anchor: Failing) -> None:
    """Drained: when the effect is called the anchor has its intent; in the end it has the last record."""
    seen: list[tuple[int, str]] = []

    def act() -> int:
        found = anchor.last(RUN, 1)
        assert found is not None
        (record,) = [record for record in records_of(keeper, "order", "1") if record.seq == found.seq]
        seen.append((found.seq, record.kind))
        assert record.hash == found.hash
        return len(seen)

    with keeper.run("order", id="1", signer=None, anchors=[anchor], durability="drained") as run:
        assert [run.do(f"s{number}", act) for number in range(3)] == [1, 2, 3]
    assert [kind for _, kind in seen] == ["intent"] * 3
    found = anchor.last(RUN, 1)
    assert found is not None
    assert found.seq == len(kinds(keeper))


@pytest.mark.parametrize("error", [lambda: OSError("no space"), lambda: Unavailable("away", operation="anchor")])
def test_an_anchor_that_fails_stops_the_call(
    keeper: Keeper, anchor: Failing, error: Callable[[], BaseException]
) -> None:
    """Drained: what cannot be remembered is not called, and no doubt is left: the next life, whose anchor works, calls once."""
    calls: list[int] = []
    with (
        suppress(Unfinished),
        keeper.run("order", id="1", signer=None, anchors=[anchor], durability="drained") as run,
    ):
        run.do("before", lambda: 1)
        anchor.error = error
        with pytest.raises((OSError, Unavailable)):
            run.do("s", calls.append, 1)
        assert calls == []
        raise Unfinished
    anchor.error = None
    with keeper.run("order", id="1", signer=None, anchors=[anchor], durability="drained") as run:
        run.do("s", calls.append, 1)
    assert calls == [1]
    assert "in_doubt" not in kinds(keeper)


def test_an_anchor_that_is_only_told_stops_nothing(keeper: Keeper, anchor: Failing) -> None:
    """By default a failing anchor costs a line in the log; told again, it catches up."""
    calls: list[int] = []
    with keeper.run("order", id="1", signer=None, anchors=[anchor]) as run:
        anchor.error = lambda: OSError("no space")
        run.do("s", calls.append, 1)
        assert calls == [1]
        anchor.error = None
        run.do("t", calls.append, 2)
    found = anchor.last(RUN, 1)
    assert found is not None
    assert found.seq == len(kinds(keeper))


@pytest.mark.parametrize("durability", ["drained", "etcd"])
def test_a_clock_skewed_anchor(keeper: Keeper, tmp_path: Path, durability: Literal["drained", "etcd"]) -> None:
    """A clock an hour behind at the anchor: AnchorSkewed, which says to set clocks right, and nothing called; or only told."""
    path, calls = tmp_path / "anchor", list[int]()
    behind = FileAnchor(path, now_s=lambda: time.time() - 3600)

    def life(anchor: FileAnchor) -> None:
        with keeper.run("order", id="1", signer=None, anchors=[anchor], durability=durability) as run:
            run.do("s", calls.append, 1)

    if durability == "drained":
        with pytest.raises(AnchorSkewed, match="set the clocks right") as told:
            life(behind)
        assert (told.value.run, told.value.anchor) == (RUN, str(path))
        assert calls == []
        assert behind.last(RUN, 1) is None
        life(FileAnchor(path))
    else:
        life(behind)
    assert calls == [1]
    assert kinds(keeper).count("outcome") == 1


def test_under_asyncio(etcd: EtcdServer, namespace: str, keeper: Keeper, anchor: Failing) -> None:
    """Drained, under asyncio: the same, and a run that is set back says RunRewound before anything is called."""
    calls: list[Any] = []

    async def act(what: str) -> None:
        found = anchor.last(RUN, 1)
        assert found is not None
        calls.append((what, kinds(keeper)[found.seq - 1]))

    async def life(*steps: str) -> None:
        async with (
            AsyncKeeper(etcd.endpoint, namespace=namespace) as mine,
            mine.run("order", id="1", signer=None, anchors=[anchor], durability="drained") as run,
        ):
            for step in steps:
                await run.do(step, act, step)
            raise Unfinished

    with suppress(Unfinished):
        asyncio.run(life("a"))
    anchor.error = lambda: OSError("no space")
    with pytest.raises(OSError, match="no space"):
        asyncio.run(life("a", "b"))
    anchor.error = None
    with suppress(Unfinished):
        asyncio.run(life("a", "b"))
    assert calls == [("a", "intent"), ("b", "intent")]
    anchor.kept.remember(RUN, 1, 900, "f" * 64, round(time.time() * 1000))
    with pytest.raises(RunRewound):
        asyncio.run(life("c"))
    assert len(calls) == 2
    assert issubclass(RunRewound, LeasekeeperError)


@pytest.mark.parametrize("durability", ["etcd", "drained"])
def test_an_anchor_that_knows_nothing_of_an_old_run_is_told_of(
    keeper: Keeper, anchor: Failing, caplog: pytest.LogCaptureFixture, durability: Literal["etcd", "drained"]
) -> None:
    """A file that is gone, or a new one: nobody can tell which, so it is a warning, once a life, and it begins to remember.

    Not for a run that is new or has done nothing, nor for what nobody can ask.
    """
    path = Path(anchor.kept.file)

    def life(*steps: str) -> list[str]:
        caplog.clear()
        anchors: list[Any] = [FileAnchor(path), SyslogAnchor("udp://127.0.0.1:9")]
        with (
            suppress(Unfinished),
            keeper.run("order", id="1", signer=None, anchors=anchors, durability=durability) as run,
        ):
            for step in steps:
                run.do(step, lambda: None)
            raise Unfinished
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    assert life() == []
    assert life("a") == []
    assert life("a") == []
    path.unlink()
    (told,) = life("b")
    assert told.startswith(f"run order/1: FileAnchor('{path}') remembers nothing of it, and it has ")
    assert anchor.last(RUN, 1) is not None
    assert life("c") == []
