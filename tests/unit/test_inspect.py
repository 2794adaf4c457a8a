"""Looking at queues, for people: whole, in order, page by page, and with what etcd tells of a lease's time."""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import inspect as module
from leasekeeper.protocol import queue
from leasekeeper.protocol.inspect import TIME_MAX_S, TimeLeft, claims, page, still_there, time_left
from leasekeeper.protocol.keys import write_epoch
from leasekeeper.protocol.plan import Cause, Fault, Kind
from tests.model.world import KEYS, Client, Strike, World


def look(client: Client, name: str = "name") -> Any:
    """The queue on a name."""
    return client.do(claims(client.ctx, name, client.world.now_s + 5.0))


def walk(client: Client, prefix: str = "") -> list[list[str]]:
    """All pages of names, each as the names of its queues."""
    pages, start = [], None
    while True:
        queues, start = client.do(page(client.ctx, prefix, start, client.world.now_s + 5.0))
        pages.append([found[0].name for found in queues])
        if start is None:
            return pages


def test_a_queue_is_shown_owner_first() -> None:
    """The order of claims is that of their create revisions; strangers stand where they stand."""
    world = World()
    client = Client(world)
    world.stranger("name")
    client.run(queue.acquire(client.ctx, client.want(timeout_s=0.1)))
    owner = client.do(queue.acquire(client.ctx, client.want("mine")))
    behind = world.stranger("mine")
    assert [claim.flag for claim in look(client)] == ["foreign"]
    found = look(client, "mine")
    assert [claim.key for claim in found] == [owner.slot.key.decode(), behind.decode()]
    assert (found[0].token, found[0].lease_id, found[0].holder) == (
        owner.token,
        owner.session.lease_id,
        client.ctx.holder,
    )
    assert (found[1].lease_id, found[1].holder) == (0, "")
    assert look(client, "nobody") == []


def test_names_are_told_apart_from_longer_ones() -> None:
    """A look at "a" does not see "a/b" or "ab"."""
    world = World()
    client = Client(world)
    for name in ("a", "a/b", "ab"):
        world.stranger(name)
    assert [len(look(client, name)) for name in ("a", "a/b", "ab")] == [1, 1, 1]


def test_names_come_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: every name, in the order of keys, nothing twice but queues that span pages."""
    monkeypatch.setattr(module, "PAGE", 3)
    world = World()
    client = Client(world)
    names = [f"n{number:02}" for number in range(7)]
    for name in names:
        world.stranger(name)
    for _ in range(4):
        world.stranger("n03")
    pages = walk(client)
    assert max(len(found) for found in pages) <= 3
    flat = [name for found in pages for name in found]
    assert list(dict.fromkeys(flat)) == names
    assert walk(client, "n05") == [["n05"]]
    assert walk(client, "m") == [[]]


def test_prefixes_may_end_anywhere() -> None:
    """Names that begin with the text, whatever of it is escaped in keys."""
    world = World()
    client = Client(world)
    for name in ("certs", "certs/prod", "certs/test", "certs%", "other"):
        world.stranger(name)
    assert walk(client, "certs/") == [["certs/prod", "certs/test"]]
    assert sorted(walk(client, "certs")[0]) == ["certs", "certs%", "certs/prod", "certs/test"]
    assert walk(client, "certs%") == [["certs%"]]


def test_looking_teaches_the_epoch() -> None:
    """Who has only looked so far tells a raised epoch from an old one after a restore."""
    world = World()
    world.store.put(KEYS.epoch, write_epoch(4, at=0.0, by="x"))
    client = Client(world)
    look(client)
    assert client.ctx.epoch.number == 4


def test_what_still_stands() -> None:
    """A key counts only with the create revision that was seen."""
    world = World()
    client = Client(world)
    keys = [world.stranger("name") for _ in range(3)]
    found = look(client)
    world.store.delete(keys[0])
    world.store.delete(keys[1])
    world.store.put(keys[1])
    assert client.do(still_there(client.ctx, found, world.now_s + 5.0)) == {keys[2].decode()}


@pytest.mark.parametrize(
    ("ttl", "granted", "shown"),
    [
        (7, 10, TimeLeft("alive", 7, 10)),
        (0, 10, TimeLeft("alive", 0, 10)),
        (-1928, 10, TimeLeft("alive", -1928, 10)),  # a server that forgot to expire it: overdue
        (-1, 0, TimeLeft("gone")),
        (9_223_372_036, 10, TimeLeft("unknown")),
        (11, 10, TimeLeft("unknown")),
        (9_223_372_036, 9_223_372_036, TimeLeft("unknown")),
        (-(2**62), 10, TimeLeft("unknown")),
        (5, 0, TimeLeft("unknown")),
        (TIME_MAX_S, TIME_MAX_S, TimeLeft("alive", TIME_MAX_S, TIME_MAX_S)),
    ],
)
def test_what_etcd_tells_of_a_lease_is_shown_or_said_to_be_unknown(ttl: int, granted: int, shown: TimeLeft) -> None:
    """C24, C34: overdue is shown as such, absurd numbers as unknown; nothing is ever decided on either."""
    plan = time_left(5)
    next(plan)
    with pytest.raises(StopIteration) as done:
        plan.send(pb.LeaseTimeToLiveResponse(ID=5, TTL=ttl, grantedTTL=granted))
    assert done.value.value == shown


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (Cause.LEASE_NOT_FOUND, "gone"),
        (Cause.DENIED, "unknown"),
        (Cause.OTHER, "unknown"),
        (Cause.NOT_LEADER, "unknown"),
    ],
)
def test_a_lease_that_cannot_be_asked_about_breaks_nothing(cause: Cause, kind: str) -> None:
    """C54: without the right to ask, or without an answer, it is unknown; the listing goes on."""
    client = Client(World())
    run = client.run(time_left(5), {0: Strike(lambda: Fault(Kind.FIX, cause))})
    assert run.result is not None
    assert run.result.kind == kind
