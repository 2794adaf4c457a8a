"""leasekeeper in one process with another client of etcd, imported in either order, each doing its own work.

Options: peer (a module), first ("peer" or "leasekeeper"), endpoint, namespace, ttl, lend (lend the peer's channel).
"""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from typing import Any

from tests.programs.voice import options, say

HOLD_TTLS = 1.5


def sync_work(peer: Any, host: str, port: int, key: str) -> bool:
    """What users of a client with blocking calls do: write, read, and a transaction of its own."""
    client = peer.client(host=host, port=port)
    client.put(key, "value")
    done, _ = client.transaction(
        compare=[client.transactions.value(key) == "value"],
        success=[client.transactions.put(key, "other")],
        failure=[],
    )
    value = client.get(key)[0]
    client.close()
    return bool(done) and value == b"other"


async def aetcd_work(peer: Any, host: str, port: int, key: str) -> bool:
    """The same with aetcd."""
    async with peer.Client(host=host, port=port) as client:
        await client.put(key.encode(), b"value")
        found = await client.get(key.encode())
        return bool(found.value == b"value")


async def etcd3aio_work(peer: Any, host: str, port: int, key: str) -> bool:
    """The same with etcd3aio."""
    async with peer.Etcd3Client([f"{host}:{port}"]) as client:
        await client.kv.put(key, "value")
        found = await client.kv.get(key)
        return bool(found.kvs[0].value == b"value")


def work(name: str, peer: Any, host: str, port: int, key: str) -> bool:
    """Whether the peer works."""
    if name == "aetcd":
        return asyncio.run(aetcd_work(peer, host, port, key))
    if name == "etcd3aio":
        return asyncio.run(etcd3aio_work(peer, host, port, key))
    return sync_work(peer, host, port, key)


def hold(lease: Any, ttl: float) -> bool:
    """Whether a lease is held for longer than its TTL, looked at all the time."""
    until = time.monotonic() + HOLD_TTLS * ttl
    while time.monotonic() < until:
        if lease.check() != lease.token:
            return False
        time.sleep(0.05)
    return True


def side_by_side(given: dict[str, Any], peer: Any, leasekeeper: Any) -> None:
    """Both work, the peer before, while and after a lease is held."""
    host, _, port = given["endpoint"].partition(":")
    key = f"data/{given['namespace']}"

    def peer_works() -> bool:
        return work(given["peer"], peer, host, int(port), key)

    works = [peer_works()]
    timing = leasekeeper.Timing(ttl=given["ttl"])
    with leasekeeper.Keeper(given["endpoint"], namespace=given["namespace"], timing=timing) as keeper:
        with keeper.lease("n", timeout=20) as lease:
            works.append(peer_works())
            held = hold(lease, given["ttl"])
        say("both", works=[*works, peer_works()], held=held, state=lease.state.value)


def lend(given: dict[str, Any], peer: Any, leasekeeper: Any) -> None:
    """The peer's connection is lent: leases are held by it, the compare goes into the peer's own transaction."""
    from leasekeeper.guards.etcd import compares, create_revision

    host, _, port = given["endpoint"].partition(":")
    client = peer.client(host=host, port=int(port))
    key = f"data/{given['namespace']}"
    timing = leasekeeper.Timing(ttl=given["ttl"])
    keeper = leasekeeper.Keeper(channel=client.channel, namespace=given["namespace"], timing=timing)
    lease = keeper.acquire("n", timeout=20)

    def guarded_put() -> bool:
        done, _ = client.transaction(
            compare=[client.transactions.create(lease.key) == create_revision(lease)],
            success=[client.transactions.put(key, "guarded")],
            failure=[],
        )
        return bool(done)

    (theirs,) = compares(lease, peer.etcdrpc.Compare)
    facts = {
        "held": hold(lease, given["ttl"]),
        "written": guarded_put(),
        "same_compare": (theirs.key.decode(), theirs.create_revision) == (lease.key, create_revision(lease)),
    }
    waiting = threading.Thread(target=lambda: keeper.acquire("n", timeout=20).release())
    waiting.start()
    while len(keeper.claims("n")) < 2:
        time.sleep(0.01)
    lease.release()
    waiting.join(20)
    facts["handed_over"] = not waiting.is_alive()
    facts["refused"] = not guarded_put()
    keeper.close()
    client.put(key, "after")
    facts["usable"] = client.get(key)[0] == b"after"
    client.close()
    say("lent", **facts)


def main() -> None:
    """Import in the given order and do as told."""
    given = options()
    names = [given["peer"], "leasekeeper"] if given["first"] == "peer" else ["leasekeeper", given["peer"]]
    modules = {}
    for name in names:
        modules[name] = importlib.import_module(name)
        if name == "leasekeeper":
            _ = modules[name].Keeper, modules[name].AsyncKeeper  # loaded when they are first named
    (lend if given["lend"] else side_by_side)(given, modules[given["peer"]], modules["leasekeeper"])


if __name__ == "__main__":
    main()
