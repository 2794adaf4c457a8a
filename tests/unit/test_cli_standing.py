"""How long an owner may stay: only what etcd really tells, and never that a name is free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasekeeper.cli.phrases import time_left as phrase
from leasekeeper.cli.standing import Standing, standing_of
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.inspect import TimeLeft, time_left
from leasekeeper.protocol.keys import Claim
from leasekeeper.protocol.plan import Call, Cause, Fault, Kind

CLAIM = Claim("n", "key", 17, 17, 17, 0xAB)


def told(ttl: int, granted: int) -> TimeLeft:
    """What the plan makes of a reply."""
    plan = time_left(0xAB)
    assert isinstance(next(plan), Call)
    with pytest.raises(StopIteration) as done:
        plan.send(pb.LeaseTimeToLiveResponse(ID=0xAB, TTL=ttl, grantedTTL=granted))
    found: TimeLeft = done.value.value
    return found


def refused(cause: Cause) -> TimeLeft:
    """What the plan makes of a failure."""
    plan = time_left(0xAB)
    next(plan)
    with pytest.raises(StopIteration) as done:
        plan.throw(Fault(Kind.FIX, cause))
    found: TimeLeft = done.value.value
    return found


@pytest.mark.parametrize(
    ("ttl", "granted", "standing", "words"),
    [
        (8, 10, Standing.ALIVE, "at least 8 s"),
        (10, 10, Standing.ALIVE, "at least 10 s"),
        (1, 10, Standing.ALIVE, "at least 1 s"),
        (0, 10, Standing.EXPIRING, "expiring"),
        (-1, 10, Standing.OVERDUE, "OVERDUE by 1 s"),
        (-1928, 10, Standing.OVERDUE, "OVERDUE by 1928 s"),
        (-1, 0, Standing.OVERDUE, "OVERDUE"),
        (9_223_372_036, 10, Standing.UNKNOWN, "unknown"),
        (11, 10, Standing.UNKNOWN, "unknown"),
        (2**62, 2**62, Standing.UNKNOWN, "unknown"),
        (-(2**62), 10, Standing.UNKNOWN, "unknown"),
        (5, 0, Standing.UNKNOWN, "unknown"),
        (0, 0, Standing.UNKNOWN, "unknown"),
        (5, -3, Standing.UNKNOWN, "unknown"),
    ],
)
def test_what_a_reply_means(ttl: int, granted: int, standing: Standing, words: str) -> None:
    """C24 C34 C35: A plausible TTL is a lower bound, zero is expiring, below it is OVERDUE, what cannot be is unknown."""
    seen = standing_of(CLAIM, told(ttl, granted))
    assert seen.standing is standing
    assert phrase(seen).plain == words
    assert "free" not in phrase(seen).plain


def test_a_key_without_a_lease_says_so() -> None:
    """C33: A key without a lease has no time left to speak of."""
    seen = standing_of(replace(CLAIM, lease_id=0), TimeLeft("unknown"))
    assert seen.standing is Standing.LEASELESS
    assert phrase(seen).plain == "no lease"


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (Cause.LEASE_NOT_FOUND, "gone"),
        (Cause.DENIED, "unknown"),
        (Cause.OTHER, "unknown"),
        (Cause.NOT_LEADER, "unknown"),
    ],
)
def test_a_refusal_is_no_failure(cause: Cause, kind: str) -> None:
    """C54: A TTL that may not be asked for is unknown; only etcd's own word says that a lease is gone."""
    assert refused(cause).kind == kind
