"""All promises at once: several keepers on one name, in bad networks, on an etcd with a hard life, by seeds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from leasekeeper.timing import Timing
from tests.model.crowd import QUEUE, Crowd

TIMINGS = [Timing(ttl=10.0), Timing(ttl=3.0), Timing(ttl=10.0, beat_every=1.0, pause_after=9.0)]


def check(crowd: Crowd) -> None:
    """G1, G3: of all members at most one can pass its gate, at any moment, also those that stand still."""
    held = [member.held for member in crowd.members if member.held is not None]
    passing = [
        lease.token for lease in held if lease.passes(0.0, crowd.now_s) and lease.create_revision not in crowd.removed
    ]
    assert len(passing) <= 1, f"G3: {passing}"


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), members=st.integers(2, 4), timing=st.sampled_from(TIMINGS))
def test_no_promise_is_broken(seed: int, members: int, timing: Timing) -> None:
    """G1 to G6: one actor at a time, larger and larger tokens, no old write after a newer one, nothing left at the end."""
    crowd = Crowd(seed, members, timing)
    crowd.later(3.0, crowd.misfortune)
    try:
        crowd.run(120.0, check)
        crowd.quiet = True
        for member in crowd.members:
            member.cut_until_s = member.frozen_until_s = 0.0
        crowd.run(60.0 + 6 * timing.ttl, check)
        check_nothing_left(crowd)
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *crowd.told[-60:]])) from error
    accepted = crowd.sink.accepted
    assert accepted == sorted(accepted), "G4"


def check_nothing_left(crowd: Crowd) -> None:
    """When nobody wants anything any more, no claim and no lease is left in etcd."""
    holders = [f'"holder":"{member.ctx.holder}"'.encode() for member in crowd.members]
    left = [kv.key for kv in crowd.store.below(QUEUE) if any(holder in kv.value for holder in holders)]
    assert left == []
    assert crowd.store.leases == {}
    assert [member.detached for member in crowd.members] == [[] for _ in crowd.members]
