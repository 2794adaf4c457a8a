"""Owners that end without a word: what they leave is gone within a TTL, and nothing of it outlives its lease."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from leasekeeper import Keeper, Timing
from leasekeeper.clock import boottime
from leasekeeper.testing import EtcdServer
from tests.program import Program
from tests.raw import RawEtcd
from tests.support import until

TTL_S = 2
# Etcd looks for leases that are over twice a second; measured were 0.05 to 0.5 s. The rest is for a busy machine.
MARGIN_S = 15.0


def test_no_ending_blocks_a_name_for_longer_than_its_ttl(etcd: EtcdServer, namespace: str) -> None:
    """A32: However a process ends without a release, its key goes by itself with its lease, and the next one owns."""
    ends = ["SIGKILL", "SIGTERM", "exit", "_exit", "raise"]
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, ExitStack() as stack:
        owners = [
            stack.enter_context(
                Program(
                    "leaver",
                    endpoint=etcd.endpoint,
                    namespace=namespace,
                    names=[end],
                    ttl=TTL_S,
                    end="wait" if end.startswith("SIG") else end,
                )
            )
            for end in ends
        ]
        for end, owner in zip(ends, owners, strict=True):
            owner.wait_for("acquired")
            if end.startswith("SIG"):
                owner.signal(signal.Signals[end])
            owner.end()
        for end, owner in zip(ends, owners, strict=True):
            assert keeper.acquire(end, timeout=20).token > owner.all("acquired")[0]["tokens"][0]


def test_takeover_comes_after_the_ttl_and_soon(etcd: EtcdServer, namespace: str) -> None:
    """C51 C52: Of 20 owners killed at once none is succeeded before a TTL since its last confirmed beat; all are soon after."""
    names = [f"n{number}" for number in range(20)]
    with (
        Program("leaver", endpoint=etcd.endpoint, namespace=namespace, names=names, ttl=TTL_S, end="wait") as owner,
        Keeper(etcd.endpoint, namespace=namespace) as keeper,
        ThreadPoolExecutor(len(names)) as pool,
    ):

        def take(name: str) -> float:
            keeper.acquire(name, timeout=30)
            return boottime()

        owner.wait_for("acquired")
        waiting = [pool.submit(take, name) for name in names]
        until(lambda: len(RawEtcd(etcd.endpoint).claims(namespace)) == 2 * len(names))
        owner.wait_for_more("proof", len(owner.all("proof")) + 2)
        owner.kill()
        took = [each.result(40) for each in waiting]
        # What was reported last is the earliest that the last beat can have been sent.
        sent = owner.all("proof")[-1]["sent"]
        assert all(TTL_S <= at - proof < TTL_S + MARGIN_S for at, proof in zip(took, sent, strict=True))


def test_three_who_try_again_and_again(etcd: EtcdServer, namespace: str) -> None:
    """C29: After the owner was killed one of three processes' worth of pollers gets the name, and only one."""
    taken: list[int] = []
    ended = threading.Event()

    def poll() -> None:
        with Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=TTL_S)) as keeper:
            while not ended.wait(TTL_S / 4):
                lease = keeper.try_acquire("n")
                if lease is not None:
                    taken.append(lease.check())
                    ended.wait(30)
                    lease.check()

    with (
        Program("leaver", endpoint=etcd.endpoint, namespace=namespace, names=["n"], ttl=TTL_S, end="wait") as owner,
        ThreadPoolExecutor(3) as pool,
    ):
        (token,) = owner.wait_for("acquired")["tokens"]
        done = [pool.submit(poll) for _ in range(3)]
        owner.kill()
        until(lambda: taken)
        ended.set()
        for each in done:
            each.result(20)
        assert len(taken) == 1
        assert taken[0] > token


@pytest.mark.parametrize(("contended", "steps"), [(False, 3), (True, 5)], ids=["alone", "behind an owner"])
def test_killed_at_every_step_of_an_acquire(etcd: EtcdServer, namespace: str, contended: bool, steps: int) -> None:
    """C33: Killed before or after any step, a process leaves no key without a lease, and after a TTL no key at all."""
    raw = RawEtcd(etcd.endpoint)
    points = [(step, when) for step in range(steps) for when in ("before", "after")]
    with Keeper(etcd.endpoint, namespace=namespace) as keeper, ExitStack() as stack:
        owner = keeper.acquire("n", timeout=10) if contended else None
        killed = [
            stack.enter_context(
                Program(
                    "killed_acquirer",
                    endpoint=etcd.endpoint,
                    namespace=namespace,
                    # Each alone on its name, or all behind the one owner.
                    name="n" if contended else f"{step}{when}",
                    ttl=1,
                    step=step,
                    when=when,
                )
            )
            for step, when in points
        ]
        until(lambda: all(key.lease for key in raw.claims(namespace)) and not any(each.alive for each in killed))
        assert all(key.lease for key in raw.claims(namespace))
        seen_steps = {report["number"] for each in killed if each.end() is not None for report in each.all("step")}
        assert set(range(steps)) <= seen_steps
        left = [owner.token] if owner is not None else []
        until(lambda: [key.create_revision for key in raw.claims(namespace)] == left)
