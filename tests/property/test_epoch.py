"""The epoch over any row of bumps, clocks and restores."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.errors import ConfigError
from leasekeeper.fencing import EPOCH_MAX, REVISION_MAX, make_token, split_token
from leasekeeper.protocol.epoch import ORIGIN_S, UNIT_S, next_epoch

epochs = st.integers(0, EPOCH_MAX)
walls = st.floats(0.0, ORIGIN_S + EPOCH_MAX * UNIT_S)
tokens = st.just(0) | st.builds(make_token, epochs, st.integers(1, REVISION_MAX))


@given(epochs, walls, tokens)
def test_a_bump_always_rises(current: int, wall_s: float, above: int) -> None:
    """G2: above the epoch that is there and above the token given, within the bits; or a ConfigError."""
    try:
        number = next_epoch(current, wall_s, above)
    except ConfigError:
        assert EPOCH_MAX in (current, split_token(above)[0])
        return
    assert current < number <= EPOCH_MAX
    if above:
        assert make_token(number, 1) > above


@given(st.lists(walls, min_size=1, max_size=20), tokens)
def test_any_row_of_bumps_rises(clocks: list[float], above: int) -> None:
    """Whatever the operators' clocks show, each bump is above the one before."""
    current = 0
    for wall_s in clocks:
        try:
            number = next_epoch(current, wall_s, above)
        except ConfigError:
            return
        assert number > current
        current = number


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5 * UNIT_S)), min_size=2, max_size=10),
    st.floats(ORIGIN_S + UNIT_S, ORIGIN_S + (EPOCH_MAX - 1000) * UNIT_S),
)
def test_restores_of_one_backup_never_share_an_epoch(incidents: list[tuple[int, int]], start_s: float) -> None:
    """G2: no epoch is handed out twice if incidents, of a few bumps each, are 15 minutes apart for each bump."""
    wall_s, seen = start_s, set[int]()
    for bumps, spare_s in incidents:
        current = 0  # the backup knows of no bump
        for _ in range(bumps):
            current = next_epoch(current, wall_s)
            assert current not in seen
        seen |= set(range(current - bumps + 1, current + 1))
        wall_s += bumps * UNIT_S + spare_s
