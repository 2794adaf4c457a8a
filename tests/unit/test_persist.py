"""Repeating a call: the time that there is is used up, and no more than that."""

from __future__ import annotations

import pytest

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.plan import LAST_TRY_S, PAUSE_MIN_S, RANGE, Call, Fault, Kind, Sleep, persist

REFUSED_S = 0.001


def attempts(until_s: float, share: float, back_at_s: float = float("inf")) -> tuple[list[float], bool]:
    """When a call was tried that is refused until ``back_at_s``, and whether it was answered; pauses last their ``share``."""
    now_s = 0.0
    tried: list[float] = []
    plan = persist(RANGE, pb.RangeRequest(key=b"key"), now=lambda: now_s, until=until_s)
    operation = next(plan)
    while True:
        if isinstance(operation, Sleep):
            now_s += share * operation.seconds
            operation = plan.send(None)
            continue
        assert isinstance(operation, Call)
        tried.append(now_s)
        try:
            if now_s >= back_at_s:
                plan.send(pb.RangeResponse())
            now_s += REFUSED_S
            operation = plan.throw(Fault(Kind.NOT_SENT))
        except StopIteration:
            return tried, True
        except Fault:
            return tried, False


@pytest.mark.parametrize("share", [0.5, 0.75, 1.0])
@pytest.mark.parametrize("until_s", [0.2, 2.0, 10.0])
def test_refusals_are_ridden_out_until_the_deadline(until_s: float, share: float) -> None:
    """The last attempt begins just before the deadline, however long the pauses had grown; the attempts are few."""
    tried, answered = attempts(until_s, share)
    assert not answered
    assert until_s - LAST_TRY_S - PAUSE_MIN_S - 2 * REFUSED_S <= tried[-1] <= until_s
    assert len(tried) < 15 + 2 * until_s


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_an_etcd_that_is_back_in_time_is_found(share: float) -> None:
    """With 2 s to wait, an etcd that is back after 1.9 s is not missed."""
    assert attempts(2.0, share, back_at_s=1.9)[1]


def test_without_time_there_is_one_attempt() -> None:
    """A deadline that is over already is worth one attempt."""
    assert attempts(0.0, 1.0) == ([0.0], False)
