"""A process that is killed in the middle of a model's answer, and the one that goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasekeeper import Keeper
from leasekeeper.protocol.receipt import read_receipt
from leasekeeper.run_records import Receipt
from leasekeeper.testing import EtcdServer
from leasekeeper.testing.outside import OutsideWorld, Trouble
from tests.commands import call
from tests.program import Program
from tests.raw import RawEtcd
from tests.streams import ABOUT, PROMPT, asking

CHAT = "chat.complete"


@pytest.fixture
def world() -> Iterator[OutsideWorld]:
    """An outside world of this test's own."""
    with OutsideWorld() as made:
        yield made


def records(raw: RawEtcd, namespace: str) -> list[Receipt]:
    """All records of the run."""
    kvs = raw.keys(f"leasekeeper/{namespace}/run/story/1/r/")
    return [read_receipt(kv.value, kv.key) for kv in kvs]


def test_killed_in_the_middle_of_an_answer(etcd: EtcdServer, namespace: str, raw: RawEtcd, world: OutsideWorld) -> None:
    """B21, B22: the identical question is asked exactly once more; the part that had come is shown, and is no result."""
    world.trouble(Trouble("trickle", CHAT, ms=400))
    with Program("streamer", endpoint=etcd.endpoint, namespace=namespace, url=world.url, ttl=2) as program:
        heard = program.wait_for_more("heard", 4)[-1]["so_far"]
        program.kill()
        assert not program.all("done")
    assert heard
    assert heard in f"Done with 0 tool calls: {PROMPT}"
    world.heal()
    told = call("runs", "explain", "story/1", endpoint=etcd.endpoint, namespace=namespace)
    assert told.code == 0, told.err
    assert "never a result" in told.out
    assert heard.split()[-1] in told.out.partition("never a result")[2], "how far the attempt came"

    with Keeper(etcd.endpoint, namespace=namespace) as keeper, keeper.run("story", id="1", ttl=2, timeout=30) as run:
        answer = run.memo("tell", asking(world.url, every_s=3600), PROMPT, about=ABOUT)
        assert run.memo("tell", asking(world.url), PROMPT, about=ABOUT) == answer
    assert answer == f"Done with 0 tool calls: {PROMPT}"

    asked = world.applied(CHAT)
    assert len(asked) == 2, "one call that died, and exactly one more"
    assert asked[0].data["digest"] == asked[1].data["digest"], "the identical request"
    found = records(raw, namespace)
    before = [each for each in found if each.kind == "before"]
    assert [each.data["attempt"] for each in before] == [1, 2]
    assert len({each.data["args"] for each in before}) == 1
    assert all(each.data["about"] == ABOUT for each in before)
    (after,) = [each for each in found if each.kind == "outcome"]
    assert after.data["result"] == answer
    assert after.data["about"].keys() == {"ref", "usage", "finish"}
    assert after.data["about"]["finish"] == "stop"
    assert after.data["about"]["usage"]["completion_tokens"] > 0

    notes = [each for each in found if each.kind == "note"]
    assert [each.data["n"] for each in notes] == list(range(1, len(notes) + 1))
    assert len(notes) >= 4, "each piece that was heard had been spooled before"
    assert all(each.step == "tell" and each.data["intent"] == before[0].seq for each in notes)
    assert heard in [each.data["partial"] for each in notes]
    assert answer not in [each.data["partial"] for each in notes]

    verified = call("runs", "verify", "story/1", endpoint=etcd.endpoint, namespace=namespace)
    assert verified.code == 0, verified.err
