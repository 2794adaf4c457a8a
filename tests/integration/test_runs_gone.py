"""A run of which an anchor knows and etcd has nothing: an operator gives it up for lost, and it is begun again with its keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import (
    AsyncKeeper,
    ConfigError,
    CorruptState,
    Keeper,
    Misuse,
    RunPruned,
    RunRewound,
    Unavailable,
    effect,
)
from leasekeeper.runs.anchor import Anchored, FileAnchor, SyslogAnchor, anchored_in
from leasekeeper.runs.exporting import export_run
from leasekeeper.runs.operator import run_keys
from leasekeeper.testing import EtcdServer
from tests.raw import RawEtcd

RUN = "order/1"
WHY = "the backup of Monday was restored; the bank's list has both charges"
NOTHING = "0" * 64


class Bank:
    """A callee that dedupes: it knows the key of each request."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    @property
    def charge(self) -> Any:
        """The effect."""

        @effect(dedupes=True, key_ttl="24h")
        def charge(step: Any, cents: int) -> int:
            self.keys.append(step.idempotency_key)
            return cents

        return charge


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the anchor is."""
    return tmp_path / "anchor"


@pytest.fixture
def anchor(path: Path) -> FileAnchor:
    """A file that remembers."""
    return FileAnchor(path)


@pytest.fixture
def bank() -> Bank:
    """A bank without a history."""
    return Bank()


@pytest.fixture
def erase(raw: RawEtcd, namespace: str) -> Callable[..., None]:
    """Somebody who deletes a run from etcd, with all that lies below it but some kinds of keys."""

    def erase(*kept: str, run: str = RUN) -> None:
        root = f"leasekeeper/{namespace}/run/{run}/"
        for key in raw.keys(root):
            if not key.key.removeprefix(root).startswith(kept or ("-",)):
                raw.delete(key.key)
        raw.delete(f"leasekeeper/{namespace}/unfinished/{run}")

    return erase


def live(keeper: Keeper, anchors: list[Any], bank: Bank, **asked: Any) -> int:
    """One life of the run, to its end: how often the bank was called in it."""
    before = len(bank.keys)
    with keeper.run("order", id="1", signer=None, anchors=anchors, **asked) as run:
        for number in range(2):
            assert run.do(f"charge-{number}", bank.charge, 100 + number) == 100 + number
        run.checkpoint("state", dict).put({"paid": True})
    return len(bank.keys) - before


def give_up(keeper: Keeper, *anchors: Any, run: str = RUN) -> Any:
    """The operator's word."""
    return keeper.resolve(run, evidence=WHY, signer=None, accept_rewind=anchors)


def told(path: Path) -> list[Anchored]:
    """All that a file remembers."""
    with path.open("rb") as lines:
        return list(anchored_in(lines))


def test_a_run_that_is_gone_is_begun_again(
    keeper: Keeper, raw: RawEtcd, namespace: str, path: Path, anchor: FileAnchor, bank: Bank, erase: Any
) -> None:
    """A21: RunRewound that names the command; nothing is written to etcd, and the steps run again with the keys they had."""
    assert live(keeper, [anchor], bank) == 2
    known = anchor.last(RUN, 1)
    assert known is not None
    erase()
    with pytest.raises(RunRewound, match=rf"nothing of run {RUN}.*resolve {RUN} --accept-rewind {path} ") as rewound:
        live(keeper, [anchor], bank)
    assert (rewound.value.have, rewound.value.known) == (0, known.seq)
    before = path.read_bytes()
    keys = {key.key: key.value for key in raw.keys(f"leasekeeper/{namespace}/")}
    assert give_up(keeper, anchor) is None
    assert {key.key: key.value for key in raw.keys(f"leasekeeper/{namespace}/")} == keys
    assert path.read_bytes().startswith(before)
    assert anchor.last(RUN, 1) is None
    last = told(path)[-1]
    assert (last.gen, last.seq, last.hash, last.back, last.why) == (1, 0, NOTHING, True, WHY)
    assert live(keeper, [anchor], bank) == 2
    assert bank.keys[:2] == bank.keys[2:]
    assert len(set(bank.keys)) == 2
    # It goes on remembering: gone once more, that shows once more.
    assert anchor.last(RUN, 1) is not None
    erase()
    with pytest.raises(RunRewound):
        live(keeper, [anchor], bank)


def test_a_namespace_that_is_gone_gets_no_new_identity_by_a_refusal(
    keeper: Keeper, raw: RawEtcd, namespace: str, anchor: FileAnchor, bank: Bank
) -> None:
    """A22: all of it lost: neither the start that is refused nor the operator's word makes another identity.

    So it can be put back as it was, and the keys are those of then.
    """
    live(keeper, [anchor], bank)
    (identity,) = raw.keys(f"leasekeeper/{namespace}/identity")
    for key in raw.keys(f"leasekeeper/{namespace}/"):
        raw.delete(key.key)
    for _ in range(2):
        with pytest.raises(RunRewound, match="the namespace's identity"):
            live(keeper, [anchor], bank)
    give_up(keeper, anchor)
    assert raw.keys(identity.key) == []
    raw.put(identity.key, identity.value)
    live(keeper, [anchor], bank)
    assert bank.keys[:2] == bank.keys[2:]


def test_asyncio(etcd: EtcdServer, namespace: str, path: Path, anchor: FileAnchor, bank: Bank, erase: Any) -> None:
    """A21: The same under asyncio, where the anchor's files do not block the loop."""
    other = FileAnchor(path.with_name("other"))

    async def life(keeper: AsyncKeeper) -> None:
        async with keeper.run("order", id="1", signer=None, anchors=[anchor]) as run:
            await run.do("charge-0", bank.charge, 100)

    async def main() -> None:
        async with AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper:
            await life(keeper)
            erase()
            with pytest.raises(RunRewound):
                await life(keeper)
            assert await keeper.resolve(RUN, evidence=WHY, signer=None, accept_rewind=[anchor]) is None
            assert anchor.last(RUN, 1) is None
            await life(keeper)
            # Of a run that is there, the word is a record.
            with pytest.raises(Misuse, match="nothing to accept"):
                await keeper.resolve(RUN, evidence=WHY, signer=None, accept_rewind=[other])

    asyncio.run(main())
    assert bank.keys[:1] == bank.keys[1:]


@pytest.mark.parametrize("kept", ["meta", "r/000000000001", "r/000000000003", "step/", "ck/"])
def test_pieces_are_no_run_that_is_gone(
    keeper: Keeper, path: Path, anchor: FileAnchor, bank: Bank, erase: Any, kept: str
) -> None:
    """A21: Where anything of the run is left without its head, it is CorruptState for whoever opens it or gives it up.

    No anchor forgets anything.
    """
    live(keeper, [anchor], bank)
    erase(kept)
    before = path.read_bytes()
    with pytest.raises(CorruptState, match=r"/head "):
        live(keeper, [anchor], bank)
    with pytest.raises(CorruptState, match=rf"head cannot be trusted: it is not there, and .*/{kept}"):
        give_up(keeper, anchor)
    assert path.read_bytes() == before


def test_a_run_that_is_there_is_not_forgotten(keeper: Keeper, path: Path, anchor: FileAnchor, bank: Bank) -> None:
    """A21: Of a run that is there no anchor forgets anything: accepting is a record, and the anchor goes on from that."""
    with suppress(ZeroDivisionError), keeper.run("order", id="1", signer=None, anchors=[anchor]) as run:
        run.do("charge-0", bank.charge, 100)
        raise ZeroDivisionError
    with pytest.raises(Misuse, match="nothing to accept"):
        give_up(keeper, anchor)
    now = anchor.last(RUN, 1)
    assert now is not None
    anchor.remember(RUN, 1, now.seq + 2, "ab" * 32, now.at_ms)
    receipt = give_up(keeper, anchor)
    known = anchor.last(RUN, 1)
    assert known is not None
    assert (known.seq, known.hash, known.back, known.why) == (receipt.seq, receipt.hash, True, WHY)
    assert all(each.seq for each in told(path))


class Slow(FileAnchor):
    """An anchor during whose answer something happens."""

    meanwhile: Callable[[], object]

    def generations(self, run: str) -> tuple[int, ...]:
        """Those that are remembered."""
        found = super().generations(run)
        self.meanwhile()
        return found


def test_a_run_that_is_begun_meanwhile_is_not_forgotten(keeper: Keeper, path: Path, bank: Bank, erase: Any) -> None:
    """A21: etcd is asked after the anchors have answered: who began the run meanwhile is not undone."""
    anchor = Slow(path)
    live(keeper, [anchor], bank)
    erase()
    before = path.read_bytes()
    anchor.meanwhile = lambda: live(keeper, [], bank)
    with pytest.raises(Misuse, match="begun meanwhile"):
        give_up(keeper, anchor)
    assert path.read_bytes() == before


def test_somebody_may_be_beginning_it(keeper: Keeper, path: Path, anchor: FileAnchor, bank: Bank, erase: Any) -> None:
    """A21: While the run has an owner, who may have asked the anchors already, none of them forgets anything."""
    live(keeper, [anchor], bank)
    erase()
    before = path.read_bytes()
    with keeper.acquire(f"run/{RUN}"), pytest.raises(Misuse, match="has an owner"):
        give_up(keeper, anchor)
    assert path.read_bytes() == before
    assert give_up(keeper, anchor) is None


def test_nothing_is_there_and_nobody_remembers_it(keeper: Keeper, path: Path, anchor: FileAnchor, bank: Bank) -> None:
    """A21: No anchor knows the run and it is not there: there is no such run, and nobody is told anything."""
    for _ in range(2):
        with pytest.raises(ConfigError, match="a run that was begun"):
            give_up(keeper, anchor)
        assert not path.exists() or all(each.run != RUN for each in told(path))
        anchor.remember("order/11", 1, 3, "ab" * 32, 0)
    with pytest.raises(ConfigError, match="no step beside it"):
        keeper.resolve(RUN, "charge-0", applied=True, evidence=WHY, signer=None, accept_rewind=[anchor])  # type: ignore[call-overload]


@pytest.mark.parametrize("evidence", [None, "", {}, "WHAT YOU SAW", " TEXT "])
def test_without_evidence_nothing_is_given_up(
    keeper: Keeper, path: Path, anchor: FileAnchor, bank: Bank, erase: Any, evidence: Any
) -> None:
    """A word without what it rests on is refused before any anchor is told."""
    live(keeper, [anchor], bank)
    erase()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="evidence"):
        keeper.resolve(RUN, evidence=evidence, signer=None, accept_rewind=[anchor])
    assert path.read_bytes() == before


def test_every_generation_is_given_up(keeper: Keeper, anchor: FileAnchor, bank: Bank, erase: Any) -> None:
    """A21: Whichever generations anchors remember, with gaps or not, each can be begun again, with keys of its own."""
    gens = (1, 2, 7)
    for gen in gens:
        live(keeper, [anchor], bank, generation=gen)
        erase()
    assert give_up(keeper, anchor) is None
    assert anchor.generations(RUN) == ()
    for gen in gens:
        live(keeper, [anchor], bank, generation=gen)
        erase()
    assert bank.keys[:6] == bank.keys[6:]
    assert len(set(bank.keys)) == 6


def test_what_was_pruned_stays_known(
    keeper: Keeper, path: Path, anchor: FileAnchor, bank: Bank, erase: Any, tmp_path: Path
) -> None:
    """A generation with a tombstone is not given up: it is RunPruned, and only those after it are begun again."""
    live(keeper, [anchor], bank)
    out = tmp_path / "export.jsonl"
    export_run(keeper._core, run_keys(keeper._core.ctx.keys, RUN), out)
    keeper.prune(RUN, exported=out)
    first = anchor.last(RUN, 1)
    before = path.read_bytes()
    with pytest.raises(RunPruned):
        live(keeper, [anchor], bank)
    with pytest.raises(ConfigError, match="a run that was begun"):
        give_up(keeper, anchor)
    assert path.read_bytes() == before
    live(keeper, [anchor], bank, generation=2)
    erase()
    assert give_up(keeper, anchor) is None
    assert anchor.last(RUN, 1) == first
    assert anchor.last(RUN, 2) is None
    assert live(keeper, [anchor], bank, generation=2) == 2


def test_all_anchors_are_told_and_those_that_know_come_last(keeper: Keeper, path: Path, bank: Bank, erase: Any) -> None:
    """A syslog server that cannot be told keeps the others from forgetting, so that the word can be said again."""
    anchor, other = FileAnchor(path), FileAnchor(path.with_name("other"))
    live(keeper, [anchor, other], bank)
    erase()
    before = path.read_bytes()
    with pytest.raises(Unavailable):
        give_up(keeper, anchor, SyslogAnchor(f"unix://{path}-missing"), other)
    assert path.read_bytes() == before
    knows_nothing = path.with_name("third")
    assert give_up(keeper, anchor, other, FileAnchor(knows_nothing)) is None
    assert anchor.last(RUN, 1) is other.last(RUN, 1) is None
    assert [each.why for each in told(knows_nothing)] == [WHY]
