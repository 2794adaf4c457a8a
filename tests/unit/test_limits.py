"""The bounds of a run: each passes what is just within it, and refuses what is one more with an error that counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leasekeeper.errors import ConfigError
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import limits, outcome
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.limits import Space, believe, check_length, check_space, check_transaction, space
from leasekeeper.protocol.plan import Call, Cause, Fault, Kind
from leasekeeper.run_errors import QuotaReserved, RecordTooLarge, RunTooLong, TransactionTooLarge
from tests.model.steps import Life
from tests.model.world import Client, World

MIB = 1024 * 1024
NOW_S = 1000.0


def answered(reply: pb.StatusResponse | Fault, quota: int | None = None) -> Space | None:
    """What the plan makes of one answer to its one call."""
    plan = space(Client(World()).ctx, quota, NOW_S + 5.0)
    call = next(plan)
    assert isinstance(call, Call)
    assert call.method.operation == "Status"
    try:
        plan.throw(reply) if isinstance(reply, Fault) else plan.send(reply)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("the plan goes on asking")


@pytest.mark.parametrize(
    ("check", "most"),
    [(limits.check_inline, 64 * 1024), (limits.check_value, 8 * MIB)],
    ids=["inline", "value"],
)
def test_sizes(check: Callable[[str, int], None], most: int) -> None:
    """64 KiB a record and 8 MiB a value pass; one byte more is refused, with what it is and both sizes."""
    check("the result of charge", most)
    with pytest.raises(RecordTooLarge, match="the result of charge") as refused:
        check("the result of charge", most + 1)
    assert (refused.value.size, refused.value.most) == (most + 1, most)


def test_a_run_is_at_most_ten_thousand_records_long() -> None:
    """The 10,000th record passes, the next does not; whoever needs room for two is told one record earlier."""
    check_length("order/1", 9_999)
    with pytest.raises(RunTooLong, match="order/1") as refused:
        check_length("order/1", 10_000)
    assert (refused.value.records, refused.value.most) == (10_000, 10_000)
    check_length("order/1", 9_998, more=2)
    with pytest.raises(RunTooLong):
        check_length("order/1", 9_999, more=2)


def test_a_transaction_is_measured_as_it_is_sent() -> None:
    """512 KiB at once, with compares and keys counted; etcd's own bound is never the one that is hit."""

    def of(size: int) -> pb.TxnRequest:
        return pb.TxnRequest(compare=[m.absent(b"k")], success=[m.put(b"k", b"x" * size)])

    overhead = of(500 * 1024).ByteSize() - 500 * 1024
    most = 512 * 1024 - overhead
    check_transaction(of(most))
    with pytest.raises(TransactionTooLarge) as refused:
        check_transaction(of(most + 1))
    assert (refused.value.size, refused.value.most) == (512 * 1024 + 1, 512 * 1024)


@pytest.mark.parametrize("used", [0, 799, 800, 1000, 2000])
def test_the_last_fifth_is_for_outcomes(used: int) -> None:
    """From 80 % of the quota on no step is begun, and the error names both numbers."""
    if used < 800:
        check_space(Space(used, 1000))
        return
    with pytest.raises(QuotaReserved) as refused:
        check_space(Space(used, 1000))
    assert (refused.value.used, refused.value.quota) == (used, 1000)


def test_a_reading_is_believed_for_a_while_and_for_a_part_of_the_room() -> None:
    """Room of 800 bytes is believed for 5 s, and until the run has written 80 more; where nothing is known, for 5 s."""
    reading = believe(Space(0, 1000), NOW_S, 300)
    assert reading.holds(NOW_S + 5, 380)
    assert not reading.holds(NOW_S + 5.1, 300)
    assert not reading.holds(NOW_S, 381)
    for unknown in (None, Space(900, None)):
        assert believe(unknown, NOW_S, 300).holds(NOW_S + 5, 1 << 40)
        assert not believe(unknown, NOW_S, 300).holds(NOW_S + 5.1, 300)


def test_near_the_bound_every_step_asks() -> None:
    """The less room there was, the less is written before it is read again; and where there is none, none is believed."""
    assert not believe(Space(799, 1000), NOW_S, 300).holds(NOW_S, 301)
    assert not limits.UNREAD.holds(NOW_S, 0)
    with pytest.raises(QuotaReserved):
        believe(Space(800, 1000), NOW_S, 300)


def test_after_a_large_result_the_size_is_read_again() -> None:
    """Pieces of a result are no records, so no reading counts them: none is believed after them."""
    life = Life()
    life.drive(outcome.store(life.incarnation, "charge", outcome.encode("small", "charge"), 0))
    assert life.incarnation.space.holds(NOW_S, 0)
    life.drive(outcome.store(life.incarnation, "charge", outcome.encode("x" * 300_000, "charge"), 0))
    assert not life.incarnation.space.holds(NOW_S, 0)


def test_what_a_step_would_add_counts_as_used() -> None:
    """A step that would cross the bound is not begun."""
    check_space(Space(700, 1000), more=99)
    with pytest.raises(QuotaReserved):
        check_space(Space(700, 1000), more=100)


def test_nothing_known_and_no_quota_pass() -> None:
    """Where etcd does not tell, or has no quota, its own refusal is the bound."""
    check_space(None, more=1 << 40)
    check_space(Space(1 << 40, None), more=1)


@pytest.mark.parametrize(
    ("told", "given", "effective"),
    [
        (0, None, limits.DEFAULT_QUOTA),
        (8 * MIB, None, 8 * MIB),
        (0, 5 * MIB, 5 * MIB),
        (8 * MIB, 5 * MIB, 5 * MIB),
        (8 * MIB, 9 * MIB, 8 * MIB),
        (-1, None, None),
        (-1, 5 * MIB, 5 * MIB),
    ],
)
def test_the_lowest_quota_that_is_known_holds(told: int, given: int | None, effective: int | None) -> None:
    """A release that tells its quota is believed, an operator's lower one is kept to, and else etcd's default holds."""
    assert answered(pb.StatusResponse(dbSize=7, dbSizeQuota=told), given) == Space(7, effective)


def test_free_pages_count_as_used() -> None:
    """Free pages are part of the file, and by its file etcd measures: what is in use does not decide."""
    found = answered(pb.StatusResponse(dbSize=90, dbSizeInUse=10, dbSizeQuota=100))
    assert found == Space(90, 100)
    assert found is not None
    assert found.reserved


def test_a_user_who_may_not_ask_is_not_stopped() -> None:
    """Newer releases tell their state to root alone: nothing is known then, which is no fault."""
    assert answered(Fault(Kind.FIX, Cause.DENIED, "etcdserver: permission denied")) is None


def test_other_faults_come_out() -> None:
    """An etcd that cannot be asked is not taken for one with space."""
    with pytest.raises(Fault) as fault:
        answered(Fault(Kind.FIX, Cause.TLS, "handshake failed"))
    assert fault.value.cause is Cause.TLS


@pytest.mark.parametrize("quota", [0, -1])
def test_a_quota_that_cannot_be(quota: int) -> None:
    """A wrong quota is named before anything is asked."""
    plan: Any = space(Client(World()).ctx, quota, NOW_S)
    with pytest.raises(ConfigError, match=f"quota={quota}"):
        next(plan)
