"""A halt stops steps, and says nothing about the runs that it stops."""

from __future__ import annotations

from leasekeeper import Keeper, Quarantined, RunHalted
from leasekeeper.testing import EtcdServer


def one() -> int:
    """An effect."""
    return 1


def test_lives_that_a_halt_has_ended_do_not_count_for_quarantine(etcd: EtcdServer, namespace: str) -> None:
    """A run that was begun again and again under a halt goes on when it is lifted; one that fails by itself is put aside."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        keeper.halt("order/*", "wait")
        for _ in range(4):
            try:
                with keeper.run("order", id="42", ttl=5, restarts=2) as run:
                    run.do("charge", one)
            except RunHalted:
                continue
            raise AssertionError("a step began under a halt")
        keeper.unhalt("order/*")
        with keeper.run("order", id="42", ttl=5, restarts=2) as run:
            assert run.do("charge", one) == 1

        ended: list[str] = []
        for _ in range(4):
            try:
                with keeper.run("order", id="43", ttl=5, restarts=2):
                    raise ValueError
            except (ValueError, Quarantined) as error:
                ended.append(type(error).__name__)
        assert ended == ["ValueError", "ValueError", "ValueError", "Quarantined"]
