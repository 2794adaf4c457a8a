"""Everything that matters without a single release: giving a name back is a courtesy, and nothing depends on it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from leasekeeper import Keeper, Lease, State, Timing
from leasekeeper.protocol.plan import Plan
from leasekeeper.protocol.session import Slot
from leasekeeper.runtime import held
from leasekeeper.testing import EtcdServer
from tests.integration import test_lease_crowd, test_lease_loss, test_lease_store, test_promises
from tests.integration.test_lease_loss import keeper  # noqa: F401 - a fixture of what is shown again
from tests.integration.test_lease_store import own_etcd, rewound  # noqa: F401
from tests.raw import RawEtcd
from tests.support import until


@pytest.fixture(autouse=True)
def unsent(monkeypatch: pytest.MonkeyPatch) -> list[Slot]:
    """From here on a release shuts the gate and sends nothing; the claims of which that is true."""
    kept: list[Slot] = []

    def release(_: object, slot: Slot, __: object = None) -> Plan[bool | None]:
        kept.append(slot)
        slot.leaving = True
        yield from ()
        return None

    monkeypatch.setattr(held, "release", release)
    return kept


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_name_goes_from_owner_to_owner(etcd: EtcdServer, namespace: str, unsent: list[Slot]) -> None:
    """A32 G1: Owners of one name follow each other in order and alone, each block ends well, and no key is left in the end."""
    acting = threading.Semaphore(1)
    tokens: list[int] = []

    def own(mine: Keeper) -> None:
        with mine.lease("n", timeout=100) as lease:
            assert acting.acquire(blocking=False), "two owners at once"
            tokens.append(lease.wait(timeout=20))
            acting.release()

    keepers = [Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=3)) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(own, each) for each in keepers * 2]:
            done.result(120)
    assert len(unsent) == 8
    assert tokens == sorted(set(tokens))
    until(lambda: RawEtcd(etcd.endpoint).claims(namespace) == [])
    for each in keepers:
        each.close()


def test_a_name_is_free_beside_one_that_is_held(etcd: EtcdServer, namespace: str, unsent: list[Slot]) -> None:
    """A32: A claim whose lease goes on for another claim's sake does not block its name: it is found by reading and removed."""
    timing = Timing(ttl=2)
    with (
        Keeper(etcd.endpoint, namespace=namespace, timing=timing) as one,
        Keeper(etcd.endpoint, namespace=namespace, timing=timing) as other,
    ):
        kept, lease = one.acquire("kept", timeout=10), one.acquire("n", timeout=10)
        lease.release()
        assert lease.state is State.RELEASED
        assert other.acquire("n", timeout=30).token > lease.token
        assert kept.wait(timeout=10) == kept.token
        assert len(unsent) == 1


def test_the_same_keeper_takes_the_name_again(etcd: EtcdServer, namespace: str, unsent: list[Slot]) -> None:
    """A32: Whoever gave a name back and wants it again stands in line behind what is left of its own claim, and gets it."""
    with Keeper(etcd.endpoint, namespace=namespace, timing=Timing(ttl=1)) as one:
        leases: list[Lease] = []
        for _ in range(3):
            leases.append(one.acquire("n", timeout=30))
            leases[-1].release()
        assert [lease.token for lease in leases] == sorted({lease.token for lease in leases})
        assert len(unsent) == 3


# ---------------------------------------------------------------- what the suite shows of leases, once more under that

test_g2_again = test_promises.test_g2_tokens_grow_with_every_owner_also_after_a_restore
test_g3_again = test_promises.test_g3_the_gate_passes_only_while_authority_is_provable
test_g5_again = test_promises.test_g5_work_is_held_until_proof_is_back_or_the_lease_is_lost
test_losses_again = test_lease_loss.test_each_loss_has_its_reason_and_a_new_acquire_works
test_a_new_owner_again = test_lease_loss.test_a_new_owner_in_between_changes_nothing_for_the_loser
test_a_second_acquisition_again = test_lease_loss.test_the_second_acquisition_is_renewed_like_the_first
test_restores_again = test_lease_store.test_a_bump_after_a_restore_lets_everybody_go_on_with_larger_tokens
test_replicas_again = test_lease_crowd.test_sixteen_replicas_do_two_hundred_runs_once_each
