"""The spool of a step: how often it writes, how much, and that nothing that goes wrong with it reaches the call."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from leasekeeper import AsyncKeeper, Keeper, NotApplied, Observed, effect
from leasekeeper.protocol.note import PARTIAL_MAX_BYTES
from leasekeeper.protocol.receipt import read_receipt
from leasekeeper.run_records import Receipt
from leasekeeper.runs.effect import Step
from leasekeeper.runs.spool import NOTES_MAX
from leasekeeper.testing import EtcdServer, FaultProxy
from tests.raw import RawEtcd


def notes(raw: RawEtcd, namespace: str) -> list[Receipt]:
    """The notes of all runs."""
    kvs = raw.keys(f"leasekeeper/{namespace}/run/")
    found = [read_receipt(kv.value, kv.key) for kv in kvs if "/r/" in kv.key]
    return [each for each in found if each.kind == "note"]


def test_at_most_so_often_and_so_much(etcd: EtcdServer, namespace: str, raw: RawEtcd) -> None:
    """B22: an attempt that spools without end leaves 20 notes of the last 4 KiB each, and ends as it would have without."""

    @effect(spool_every=0)
    def chatter(step: Step) -> str:
        for number in range(NOTES_MAX + 10):
            step.spool("é" * 10_000 + f" {number}")
        return "whole"

    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.run("talk", id="1", ttl=5) as run:
        assert run.do("say", chatter) == "whole"
    found = notes(raw, namespace)
    assert [each.data["n"] for each in found] == list(range(1, NOTES_MAX + 1))
    for number, each in enumerate(found):
        assert each.data["partial"].endswith(f"é {number}")
        assert PARTIAL_MAX_BYTES - 4 < len(each.data["partial"].encode()) <= PARTIAL_MAX_BYTES
        assert each.data["size"] > 10_000


def test_what_is_not_due_is_remembered_until_the_call_raises(etcd: EtcdServer, namespace: str, raw: RawEtcd) -> None:
    """A call that ends within `spool_every` leaves no note; one that raises leaves the latest it had, and JSON is one text."""

    @effect(spool_every="1h", dedupes=True, key_ttl="1h")
    def chatter(step: Step, fails: bool) -> str:
        step.spool("one")
        step.spool({"so far": ["one", "two"]})
        if fails:
            raise NotApplied
        return "whole"

    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.run("talk", id="1", ttl=5) as run:
        assert run.do("well", chatter, False) == "whole"
        assert notes(raw, namespace) == []
        with pytest.raises(NotApplied):
            run.do("ill", chatter, True)
        (left,) = notes(raw, namespace)
        assert (left.step, left.data["partial"]) == ("ill", '{"so far":["one","two"]}')


def test_under_asyncio(etcd: EtcdServer, namespace: str, raw: RawEtcd) -> None:
    """`await step.spool(...)` does the same, for several steps at once."""

    @effect(spool_every=0)
    async def chatter(step: Step, word: str) -> str:
        for number in range(3):
            await step.spool(f"{word} {number}")
        return word

    async def main() -> None:
        async with AsyncKeeper(etcd.endpoint, namespace=namespace) as keeper, keeper.run("talk", id="1", ttl=5) as run:
            assert await asyncio.gather(*(run.do(word, chatter, word) for word in "ab")) == ["a", "b"]

    asyncio.run(main())
    found = [(each.step, each.data["n"], each.data["partial"]) for each in notes(raw, namespace)]
    assert sorted(found) == [(word, number + 1, f"{word} {number}") for word in "ab" for number in range(3)]


def test_from_several_threads_at_once(etcd: EtcdServer, namespace: str, raw: RawEtcd) -> None:
    """A call may spool from threads of its own: every note has its number once."""

    @effect(spool_every=0)
    def chatter(step: Step) -> None:
        threads = [threading.Thread(target=lambda: [step.spool("x") for _ in range(20)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.run("talk", id="1", ttl=5) as run:
        run.do("say", chatter)
    assert sorted(each.data["n"] for each in notes(raw, namespace)) == list(range(1, NOTES_MAX + 1))


def test_what_goes_wrong_is_logged_once(etcd: EtcdServer, namespace: str, caplog: pytest.LogCaptureFixture) -> None:
    """What is no JSON does not fail the call, and is complained of once, however often it comes."""

    @effect(spool_every=0)
    def chatter(step: Step) -> str:
        for _ in range(5):
            step.spool(object())
        return "whole"

    caplog.set_level(logging.WARNING, "leasekeeper")
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.run("talk", id="1", ttl=5) as run:
        assert run.do("say", chatter) == "whole"
    assert len([each for each in caplog.records if "could not be noted" in each.getMessage()]) == 1


def test_a_preflight_has_nothing_to_spool(etcd: EtcdServer, namespace: str, raw: RawEtcd) -> None:
    """Before the intent there is nothing of which it could be a part."""

    @effect(spool_every=0, probe=True)
    def chatter(step: Step) -> str:
        return "whole"

    @chatter.preflight
    def asked(step: Step) -> Observed:
        step.spool("part")
        return Observed(None, applied=False)

    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.run("talk", id="1", ttl=5) as run:
        assert run.do("say", chatter) == "whole"
    assert notes(raw, namespace) == []


@pytest.mark.slow
def test_an_etcd_that_is_away_does_not_fail_the_call(
    namespace: str, proxy: FaultProxy, raw: RawEtcd, caplog: pytest.LogCaptureFixture
) -> None:
    """A note that cannot be written is left out; the call ends, and its result is recorded when etcd is back."""

    @effect(spool_every=0)
    def chatter(step: Step) -> str:
        step.spool("before")
        proxy.blackhole()
        step.spool("meanwhile")
        proxy.heal()
        return "whole"

    caplog.set_level(logging.WARNING, "leasekeeper")
    with Keeper(proxy.endpoint, namespace=namespace) as keeper, keeper.run("talk", id="1", ttl=40) as run:
        assert run.do("say", chatter) == "whole"
    assert any("could not be noted" in each.getMessage() for each in caplog.records)
    assert notes(raw, namespace)[0].data["partial"] == "before"
