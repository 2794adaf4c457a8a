"""Runs whose etcd dies with them, dies under them, or is set back to a backup."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import Conflict, Timing
from leasekeeper.protocol.epoch import bump
from leasekeeper.run_errors import RunRewound
from leasekeeper.testing import EtcdServer
from tests.crashes import TEST_S, WAIT_S, Bench, check_attributed, normal
from tests.raw import RawEtcd

pytestmark = pytest.mark.timeout(TEST_S)


def slow(case: str) -> Any:
    """A case of the full product."""
    return pytest.param(case, marks=pytest.mark.slow)


@pytest.fixture
def here(bench: Bench) -> Iterator[Bench]:
    """A bench with an etcd of the test's own, which it may kill."""
    with EtcdServer() as server:
        yield Bench(server, RawEtcd(server.endpoint), bench.namespace, bench.world, bench.directory)


def life(here: Bench, policy: str, id_: str, **asked: Any) -> Any:
    """A life of a run in this process."""
    with here.keeper(timing=Timing(ttl=20)) as keeper:
        return here.life(keeper, policy, id_, [], **asked)


@pytest.mark.parametrize("at", [*map(slow, ("intent:reply", "outcome:reply")), "effect:return"])
def test_killed_together(at: str, here: Bench) -> None:
    """A24 A30 B5: Process and etcd are killed at once: whatever was answered is there, and the next life goes on from it."""
    with here.program("probe", runs=[here.it], at=at) as first:
        assert first.end(WAIT_S) == -signal.SIGKILL
        here.etcd.kill()
    here.etcd.start()
    here.bury()
    result = life(here, "probe", here.it)
    assert normal(result, here.it) == here.undisturbed("probe")
    assert here.numbers("probe", here.it) == (1, 1)
    check_attributed(here.story(here.it))


@pytest.mark.slow
def test_etcd_is_killed_again_and_again(here: Bench) -> None:
    """B5 B6: Etcd is killed again and again in the middle of steps: each effect once, no record without its head, no hole."""
    ending = threading.Event()
    kills: list[int] = []

    def trouble() -> None:
        while not ending.wait(0.3):
            kills.append(here.etcd.pid)
            here.etcd.kill()
            here.etcd.start()

    troubling = threading.Thread(target=trouble, name="kills-etcd", daemon=True)
    troubling.start()
    try:
        results = [life(here, "ten", f"{here.it}-{number}", timeout=60) for number in range(8)]
    finally:
        ending.set()
        troubling.join(60)
    assert len(kills) > 1
    wanted = here.undisturbed("ten")
    for number, result in enumerate(results):
        id_ = f"{here.it}-{number}"
        assert normal(result, id_) == wanted
        assert [len(here.world.applied("payments.charge", f"{id_}-{step}")) for step in range(10)] == [1] * 10
        check_attributed(here.story(id_))


@pytest.mark.parametrize("policy", ["dedupes", slow("probe"), "anchored"])
def test_etcd_is_set_back_behind_the_effect(policy: str, here: Bench, tmp_path: Path) -> None:
    """A18 A30: Etcd is restored to before the run: it sends the same key, or finds the effect, or its anchor knows better."""
    life(here, "bare", f"{here.it}-before")
    backup = here.etcd.snapshot(tmp_path / "backup.db")
    with here.program(policy, runs=[here.it], at="effect:return") as first:
        assert first.end(WAIT_S) == -signal.SIGKILL
    here.etcd.restore(backup)
    with here.keeper() as keeper:
        core = keeper._core
        core.run(bump(core.ctx, core.until()))
    found = life(here, policy, here.it)
    received, applied = here.counted(policy, here.it)
    assert len(applied) == 1
    assert len({request.key for request in received}) == 1
    if policy == "dedupes":
        assert normal(found, here.it) == here.undisturbed("dedupes")
        assert len(received) == 2
    else:
        assert isinstance(found, Conflict if policy == "probe" else RunRewound)
        assert len(received) == 1
