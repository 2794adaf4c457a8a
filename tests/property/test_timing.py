"""Any durations: either their relations hold, also for whatever the server grants, or they are refused by name."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.errors import ConfigError
from leasekeeper.protocol.authority import passes, proof_of
from leasekeeper.timing import SERVER_MINIMUM_MAX_S, TTL_MAX_S, Timing

anything = st.none() | st.floats() | st.integers() | st.booleans() | st.text(max_size=3)
plausible = st.none() | st.floats(0.01, 100.0)
ttls = st.floats(1.0, 1000.0)


def made(**fields: Any) -> Timing | None:
    """The timing, or None if it is refused."""
    try:
        return Timing(**fields)
    except ConfigError:
        return None


def check(timing: Timing) -> None:
    """What every timing promises."""
    assert 1.0 <= timing.ttl <= TTL_MAX_S
    assert 2 * timing.beat_s <= timing.pause_s
    assert timing.pause_s < timing.ttl - timing.margin_s
    assert timing.authority_s == timing.ttl - timing.margin_s
    assert 0 < timing.beat_late_s < timing.beat_s < timing.pause_s
    assert timing.ask_s >= timing.ttl


@given(anything, anything, anything, anything, anything, anything)
def test_nothing_wrong_gets_through(ttl: Any, beat: Any, pause: Any, margin: Any, patience: Any, hold: Any) -> None:
    """Whatever is given: a timing whose relations hold, or a ConfigError."""
    timing = made(ttl=ttl, beat_every=beat, pause_after=pause, margin=margin, give_up_after=patience, max_hold=hold)
    if timing is not None:
        check(timing)


@given(ttls, plausible, plausible, plausible, st.integers(1, 2000) | st.integers(1, 2**63 - 1))
def test_whatever_is_granted_keeps_the_relations(
    ttl: float, beat: float | None, pause: float | None, margin: float | None, reply: int
) -> None:
    """C24, C39: the reply re-scales the defaults, absurd ones are clamped, and no relation is ever broken."""
    timing = made(ttl=ttl, beat_every=beat, pause_after=pause, margin=margin)
    if timing is None:
        return
    try:
        granted = timing.granted(reply)
    except ConfigError:
        assert reply < timing.ttl  # explicit durations are never bent to fit
        return
    check(granted)
    assert granted.ttl <= max(timing.ask_s, reply)
    assert granted.ttl <= max(timing.ask_s, SERVER_MINIMUM_MAX_S)
    for name in ("beat_every", "pause_after", "margin"):
        assert getattr(granted, name) == getattr(timing, name)


@given(ttls, st.integers(1, 2**63 - 1), st.floats(0.0, 1e6), st.floats(0.0, 2000.0))
def test_the_gate_is_shut_before_the_ttl_is_out(ttl: float, reply: int, sent_s: float, later_s: float) -> None:
    """G3: counted from the sending of the beat, no answer however odd keeps a gate open beyond ttl - margin."""
    timing = Timing(ttl=ttl)
    now_s = sent_s + later_s
    if passes(now_s - proof_of(sent_s, reply, timing), 0.0, timing):
        assert now_s - sent_s < min(reply, timing.ttl) - timing.margin_s or math.isclose(
            now_s - sent_s, min(reply, timing.ttl) - timing.margin_s
        )
