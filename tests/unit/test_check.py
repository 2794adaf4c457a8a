"""`Lease.check`, the gate on the hot path: it spells the rule out once more, so it is held against the rule itself."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekeeper import Lease, LeaseLost, LeaseSuspended, Misuse, State
from leasekeeper.protocol.authority import Authority
from leasekeeper.protocol.session import Tending
from leasekeeper.runtime import held
from leasekeeper.runtime.core import Core
from leasekeeper.timing import Timing

PROOF_S = 100.0
TIMINGS = [Timing(ttl=10), Timing(ttl=1), Timing(ttl=30, beat_every=1, pause_after=28, margin=1)]


class Owner:
    """A lease without an etcd, on a clock that is set by hand; no thread is started."""

    def __init__(self, timing: Timing = TIMINGS[0]) -> None:
        self.now_s = PROOF_S
        clock: Any = SimpleNamespace(now=lambda: self.now_s)
        self.core = Core("127.0.0.1:1", namespace="unit", clock=clock)
        self.core.used = True
        self.core.heart.add = lambda session: None  # type: ignore[method-assign]
        assert self.core.sessions.lend(timing, Tending()) is None
        self.session = self.core.sessions.make(5, timing, PROOF_S)
        self.core.sessions.opened(timing, self.session)
        slot = self.session.occupy("name", 0, b"key")
        slot.nonce, slot.create_revision = "nonce", 7
        self.authority = Authority(slot, token=7, create_revision=7, timing=timing, now_s=PROOF_S)
        slot.authority = self.authority
        self.lease = Lease(self.core, self.authority)

    def passes(self, need_s: float) -> bool:
        """Whether the gate lets work through."""
        try:
            return self.lease.check(need_s) == 7
        except (LeaseSuspended, LeaseLost, Misuse):
            return False


def allowed(age_s: float, need_s: float, timing: Timing) -> bool:
    """The rule, as the guarantees tell it: proof younger than the pause, and what is left of it covers the need."""
    return need_s >= 0 and age_s < timing.pause_s and need_s <= timing.ttl - timing.margin_s - age_s


@given(
    timing=st.sampled_from(TIMINGS),
    age_s=st.floats(0, 40) | st.sampled_from([0.5, 4.999, 5.0, 9.7, 10.0, 28.0]),
    need_s=st.floats(0, 35) | st.sampled_from([0.0, -1.0, 4.7, 4.701, float("nan"), float("inf")]),
)
def test_the_gate_is_the_rule(timing: Timing, age_s: float, need_s: float) -> None:
    """G3: check passes exactly while the rule allows it, whatever the age of the proof and the need."""
    owner = Owner(timing)
    owner.now_s = PROOF_S + age_s
    age_s = owner.now_s - PROOF_S  # as floats have it
    edge = min(abs(age_s - timing.pause_s), abs(age_s + need_s - timing.authority_s)) < 1e-9
    assert edge or owner.passes(need_s) == allowed(age_s, need_s, timing)
    assert owner.passes(need_s) == owner.authority.passes(need_s, owner.now_s)


@pytest.mark.parametrize("fact", ["name", "token", "key", "lease_id", "holder", "claim"])
def test_facts_cannot_be_written(fact: str) -> None:
    """What a resource is shown cannot be changed on the handle by accident."""
    lease = Owner().lease
    before = getattr(lease, fact)
    with pytest.raises(AttributeError):
        setattr(lease, fact, before)
    assert getattr(lease, fact) == before


def test_nothing_has_to_run_for_the_gate_to_shut() -> None:
    """G3: after an hour in which no thread ran and nobody was told, the first look at the clock refuses."""
    owner = Owner()
    assert owner.passes(0.0)
    owner.now_s += 3600
    assert owner.authority.shown is State.HELD, "nobody has told it"
    assert not owner.passes(0.0)
    assert (owner.lease.state, owner.lease.remaining()) == (State.SUSPENDED, 0.0)
    with pytest.raises(LeaseSuspended):
        owner.lease.check()


def test_a_gate_that_was_shut_does_not_pass_on_a_fresh_proof() -> None:
    """C07: what etcd said counts more than the clock: with the key in question or the lease over a young proof opens nothing."""
    for shut in (Authority.question, Authority.release, lambda authority: authority.lose("revoked", PROOF_S)):
        owner = Owner()
        shut(owner.authority)
        assert owner.session.age(owner.now_s) == 0.0
        assert not owner.passes(0.0)


LOOKS: list[Callable[[Lease], object]] = [
    lambda lease: lease.state is State.LOST,
    lambda lease: lease.remaining() == 0.0,
    lambda lease: lease.loss is not None and lease.loss.reason == "forked",
    lambda lease: lease.deadlines()[1] < 0,
]


@pytest.mark.parametrize("look", [None, *LOOKS])
def test_a_child_that_nobody_told_finds_out_at_its_first_look(
    look: Callable[[Lease], object] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in which the byte of memory is wiped, as in a child forked by C code, is told so by whatever it asks first."""
    owner = Owner()
    monkeypatch.setattr(held, "HERE", bytearray(1))
    monkeypatch.setattr(held, "check_process", owner.core.after_fork)
    if look is None:
        with pytest.raises(LeaseLost, match="child process") as caught:
            owner.lease.check()
        assert caught.value.reason == "forked"
    else:
        assert look(owner.lease)


def test_a_child_gives_nothing_back_and_acquires_nothing() -> None:
    """After a fork the inherited lease is LOST, its release is none, and the keeper says that the child needs its own."""
    owner = Owner()
    owner.core.after_fork()
    assert not owner.passes(0.0)
    assert owner.core.release(owner.authority) is None
    assert owner.lease.state is State.LOST
    with pytest.raises(Misuse, match="child process"):
        owner.core.check_usable()
    assert owner.session.gone
