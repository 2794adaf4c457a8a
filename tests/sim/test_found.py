"""Faults that the simulator has found once are found again where they are put back.

The one about a sweep takes a thousand worlds; `tests/unit/test_queue.py` has it.
"""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper.protocol import authority
from leasekeeper.protocol.authority import Authority
from leasekeeper.testing.sim import Setting, interpreter, search
from leasekeeper.timing import Timing

WORLDS = 300


def test_a_gate_that_promises_more_than_a_patience_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """G3: With a gate that knows nothing of max_hold and give_up_after, somebody works while another owns."""

    def passes(age_s: float, need_s: float, timing: Timing) -> bool:
        return age_s < timing.pause_s and age_s + need_s <= timing.authority_s

    def gate(of: Authority, need_s: float, now_s: float) -> bool:
        return of.open and passes(now_s - of.session.proof_s, need_s, of.timing)

    monkeypatch.setattr(authority, "passes", passes)
    monkeypatch.setattr(Authority, "passes", gate)
    _, found = search(Setting(0), WORLDS)
    assert found is not None
    assert found.violation is not None
    assert found.violation.promise == "G3"


def test_a_put_that_makes_the_last_revision_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """G2: Where only a lower revision is a sign of a restore, a keeper is given the same token twice."""

    def lower(reply: Any, seen: int) -> bool:
        return bool(reply.header.revision < seen)

    monkeypatch.setattr(interpreter, "rewound", lower)
    _, found = search(Setting(0, mix="careless"), WORLDS)
    assert found is not None
    assert found.violation is not None
    assert found.violation.promise == "G2"
