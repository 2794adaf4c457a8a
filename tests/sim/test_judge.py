"""The judge finds what is wrong: each promise is broken on purpose, by replicas that do what none of ours does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.authority import Authority
from leasekeeper.testing.sim import Setting, Violation, World
from leasekeeper.testing.sim import world as world_module
from leasekeeper.testing.sim.invariants import Hold
from leasekeeper.testing.sim.keeper import KEYS
from leasekeeper.testing.sim.resource import Resource
from leasekeeper.timing import Timing

NAME = "jobs"


class Scene:
    """A world in which nothing happens by itself, with one replica; its claims are put by hand."""

    def __init__(self) -> None:
        self.world = World(Setting(1, only=()))
        self.judge = self.world.judge
        self.replica = self.world.replicas[0]

    def claim(self, *, owned: bool = True, record: bytes = b"", lease_id: int = 0) -> Hold:
        """A claim of the replica's; a Hold of it, which the judge has not heard of yet."""
        keeper, store = self.replica.keeper, self.world.cluster.store
        lease_id = lease_id or self.world.number()
        store.perform(pb.LeaseGrantRequest(ID=lease_id, TTL=10))
        now_s = self.replica.process.now()
        session = keeper.table.make(lease_id, Timing(ttl=10.0), now_s)
        keeper.confirmed(lease_id, now_s, 10)
        slot = session.occupy(NAME, 0, KEYS.claim(NAME, lease_id))
        slot.record = record or f"of {lease_id:x}".encode()
        if owned:
            slot.create_revision = store.put(slot.key, slot.record, lease_id)
        else:
            slot.create_revision = store.revision + 1
        token = slot.create_revision
        authority = Authority(slot, token=token, create_revision=token, timing=session.timing, now_s=now_s)
        return Hold(self.world.number(), self.replica.process, keeper, authority)

    def violation(self, does: Callable[[], object]) -> str:
        """The promise that is broken by what is done."""
        with pytest.raises(Violation) as caught:
            does()
        return caught.value.promise


def test_who_never_was_first_owns_nothing() -> None:
    """G1: being told to own a name that another owns is a violation."""
    scene = Scene()
    scene.claim()
    second = scene.claim()
    assert scene.violation(lambda: scene.judge.own(second)) == "G1"


def test_a_claim_that_does_not_exist_is_not_owned() -> None:
    """G1: neither can a claim be owned that was never put."""
    scene = Scene()
    phantom = scene.claim(owned=False)
    assert scene.violation(lambda: scene.judge.own(phantom)) == "G1"


def test_another_claim_is_not_ones_own() -> None:
    """G6: a key with another's record is another's."""
    scene = Scene()
    hold = scene.claim()
    hold.authority.slot.record = b"what was meant to be put"
    assert scene.violation(lambda: scene.judge.own(hold)) == "G6"


def test_tokens_must_grow() -> None:
    """G2: an owner whose token is not larger than an earlier owner's is found."""
    scene = Scene()
    first = scene.claim()
    first.authority.token += 1000
    scene.judge.own(first)
    scene.judge.over(first)
    scene.world.cluster.store.delete(first.key)
    second = scene.claim()
    assert scene.violation(lambda: scene.judge.own(second)) == "G2"


def test_a_keeper_is_never_given_a_smaller_token_than_before() -> None:
    """G2: also while nobody has raised the epoch after a restore, a keeper itself does not go back."""
    scene = Scene()
    scene.judge.unraised = True
    first = scene.claim()
    first.authority.token += 1000
    scene.judge.own(first)
    scene.judge.over(first)
    scene.world.cluster.store.delete(first.key)
    second = scene.claim()
    assert scene.violation(lambda: scene.judge.own(second)) == "G2"


def test_who_has_heard_of_it_passes_no_more() -> None:
    """G3: the time that news may take is over when it has arrived."""
    scene = Scene()
    hold = scene.claim()
    scene.judge.own(hold)
    scene.judge.removed_by_hand({(hold.key, hold.create_revision)})
    scene.world.cluster.store.delete(hold.key)
    scene.judge.check()
    hold.keeper.informed.add((hold.key, hold.create_revision))
    assert scene.violation(scene.judge.check) == "G3"


def test_a_wrong_answer_about_a_token_is_found() -> None:
    """G1: what ``verify`` says was so at some moment between the question and the answer."""
    scene = Scene()
    scene.world.timeline.now_s = 1.0
    first, second = scene.claim(), scene.claim()
    asked_s = scene.world.timeline.now_s = 2.0
    scene.judge.verified(first, asked_s, answer=True)
    assert scene.violation(lambda: scene.judge.verified(first, asked_s, answer=False)) == "G1"
    assert scene.violation(lambda: scene.judge.verified(second, asked_s, answer=True)) == "G1"
    scene.world.timeline.now_s = 3.0
    scene.world.cluster.store.delete(first.key)
    for hold in (first, second):
        for answer in (True, False):
            scene.judge.verified(hold, asked_s, answer=answer)
    assert scene.violation(lambda: scene.judge.verified(first, 3.5, answer=True)) == "G1"


def test_owners_follow_in_order() -> None:
    """FIFO: who owns although somebody came earlier is found, even with a larger token."""
    scene = Scene()
    first, second = scene.claim(), scene.claim()
    scene.world.cluster.store.delete(first.key)
    scene.judge.own(second)
    scene.judge.over(second)
    first.authority.token = second.authority.token + 1
    assert scene.violation(lambda: scene.judge.own(first)) == "FIFO"


def test_a_gate_that_passes_without_the_key_is_found() -> None:
    """G3: whoever passes, or acts on having passed, must be etcd's owner."""
    scene = Scene()
    hold = scene.claim()
    scene.judge.own(hold)
    scene.judge.check()
    scene.world.cluster.store.delete(hold.key)
    assert scene.violation(scene.judge.check) == "G3"
    hold.authority.open = False
    scene.judge.check()
    hold.acting_until_s = scene.replica.process.now() + 1.0
    assert scene.violation(scene.judge.check) == "G3"


def test_after_an_operators_hand_the_gate_may_pass_for_two_ttls() -> None:
    """G3: news of a removal may take its time, but not any time."""
    scene = Scene()
    hold = scene.claim()
    scene.judge.own(hold)
    scene.judge.removed_by_hand({(hold.key, hold.create_revision)})
    scene.world.cluster.store.delete(hold.key)
    scene.judge.check()
    scene.world.timeline.now_s += 23.0
    hold.authority.session.proof_s = scene.replica.process.now()
    assert scene.violation(scene.judge.check) == "G3"


def test_a_gate_that_lapsed_on_a_removed_claim_stays_shut() -> None:
    """G3: once authority has lapsed, a claim that is gone is never passed on again."""
    scene = Scene()
    hold = scene.claim()
    scene.judge.own(hold)
    scene.judge.removed_by_hand({(hold.key, hold.create_revision)})
    scene.world.cluster.store.delete(hold.key)
    scene.replica.process.stop(10.5)
    scene.world.timeline.now_s += 10.5
    scene.judge.check()
    hold.authority.session.proof_s = scene.replica.process.now()
    assert scene.violation(scene.judge.check) == "G3"


def test_a_gate_needs_evidence() -> None:
    """G5: a proof that no confirmed beat accounts for is found."""
    scene = Scene()
    hold = scene.claim()
    scene.judge.own(hold)
    scene.world.timeline.now_s += 6.0
    hold.authority.session.proof_s = scene.replica.process.now()
    assert scene.violation(scene.judge.check) == "G5"


def test_a_gate_that_shuts_for_no_reason_is_found() -> None:
    """G5: where a way to etcd was good all the time, nobody is SUSPENDED."""
    scene = Scene()
    hold = scene.claim()
    scene.judge.own(hold)
    scene.world.timeline.now_s += 6.0
    assert scene.violation(scene.judge.check) == "G5"


def test_a_release_that_removed_nothing_is_found() -> None:
    """G6: a claim that is said to be removed must have been."""
    scene = Scene()
    hold = scene.claim()
    scene.judge.released(hold, None)
    assert scene.violation(lambda: scene.judge.released(hold, True)) == "G6"
    scene.world.cluster.store.delete(hold.key)
    scene.judge.released(hold, True)


def test_a_resource_that_goes_back_is_found() -> None:
    """G4: an older owner after a newer one, and another owner with the same token, are told; a repeated write is not."""
    resource = Resource()
    assert resource.write(5, "a", 1, "one") is None
    assert resource.write(5, "a", 1, "one") is None
    assert resource.write(9, "b", 2, "two") is None
    assert resource.write(5, "a", 1, "one") is None
    assert (resource.accepted, resource.refused, resource.overlaps) == (3, 1, 1)
    assert resource.write(9, "b", 3, "an impostor with the same claim") is None
    assert resource.write(9, "b", 2, "two") is not None


def test_whatever_is_left_is_found() -> None:
    """Nothing left: a claim that stands there when everybody is gone is named."""
    world = World(Setting(1, only=()))
    world.timeline.after(50.0, lambda: world.cluster.store.put(KEYS.claim("another", 7), b"", 0))
    outcome = world.run()
    assert outcome.violation is not None
    assert outcome.violation.promise == "nothing left"
    assert "another/7" in outcome.violation.what


def test_who_gets_no_turn_is_named() -> None:
    """Liveness: a claim without a lease at the head of the queue blocks it for ever, and that is seen."""
    world = World(Setting(1, only=()))
    world.timeline.after(1.0, lambda: world.cluster.store.put(KEYS.claim(NAME, 7), b"", 0))
    outcome = world.run()
    assert outcome.violation is not None
    assert outcome.violation.promise == "liveness"
    assert set(outcome.violation.who) >= {replica.name for replica in world.replicas}


def test_replicas_that_run_in_circles_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds: a world has a bound on its events, so that none runs for ever."""
    monkeypatch.setattr(world_module, "EVENTS_MAX", 500)
    outcome = World(Setting(1)).run()
    assert outcome.violation is not None
    assert outcome.violation.promise == "bounds"
