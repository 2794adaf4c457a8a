"""What is told of records that cannot be written for now: each try in a row, and the end once; nothing where nobody waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leasekeeper.protocol import messages as m
from leasekeeper.protocol.append import append, patiently
from leasekeeper.protocol.delay import Delay
from leasekeeper.protocol.etcd_pb2 import TxnRequest
from leasekeeper.protocol.plan import Cause, Fault
from leasekeeper.runtime.appending import Queue
from tests.model.appends import texts
from tests.model.runs import Crew, Owner, entry
from tests.model.world import Strike, World


def listening() -> tuple[Owner, list[Delay]]:
    """An owner, and what it tells."""
    owner = Owner()
    told: list[Delay] = []
    owner.log.line = Queue(told.append)
    return owner, told


def mended(world: World, after_s: float, mend: Callable[[], None]) -> None:
    """Have something become well again once so much time has passed."""
    original, at_s = world.pass_time, world.now_s + after_s

    def pass_time(seconds: float) -> None:
        original(seconds)
        if world.now_s >= at_s:
            mend()

    world.pass_time = pass_time  # type: ignore[method-assign]


def is_full(world: World) -> None:
    """From now on etcd has no room, for half a minute."""
    world.store.full = True
    mended(world, 30, lambda: setattr(world.store, "full", False))


def is_away(world: World) -> None:
    """From now on etcd cannot be reached, for three minutes."""
    world.down = True
    mended(world, 180, lambda: setattr(world, "down", False))


@pytest.mark.parametrize("trouble", [is_full, is_away])
def test_evidence_never_waits_in_silence(trouble: Callable[[World], None]) -> None:
    """B5, B24: full or away, each spell of trying is told with its number and why, and then that the record is written."""
    owner, told = listening()
    trouble(owner.world)
    (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "charge"))])
    assert run.error is None
    *waiting, last = told
    assert [each.in_a_row for each in waiting] == list(range(1, len(waiting) + 1))
    assert len(waiting) >= 5
    assert {(each.how, each.kind, each.step) for each in waiting} == {("waits", "note", "charge")}
    assert all((each.fault.cause is Cause.NO_SPACE) == (trouble is is_full) for each in waiting)
    assert [each.waited_s for each in told] == sorted(each.waited_s for each in told)
    assert (last.how, last.in_a_row) == ("recorded", len(waiting))
    assert last.waited_s >= 30


@pytest.mark.parametrize("trouble", [is_full, is_away])
def test_a_piece_of_a_large_result_never_waits_in_silence(trouble: Callable[[World], None]) -> None:
    """What goes before an outcome is told of like the outcome, by its step."""
    owner, told = listening()
    trouble(owner.world)
    request = TxnRequest(success=(m.put(b"piece", b"x"),))
    (run,) = Crew(owner.client).run([patiently(owner.log, request, "outcome", "charge")])
    assert run.error is None
    assert {(each.kind, each.step) for each in told} == {("outcome", "charge")}
    assert [each.how for each in told] == ["waits"] * (len(told) - 1) + ["recorded"]
    assert [each.in_a_row for each in told[:-1]] == list(range(1, len(told)))


def test_nothing_is_told_where_all_is_well() -> None:
    """Records that are written at once make no news."""
    owner, told = listening()
    Crew(owner.client).run([append(owner.log, entry(owner, f"n{index}")) for index in range(4)])
    assert told == []


def test_nothing_is_told_of_what_is_refused_at_once_or_waits_only_for_a_while() -> None:
    """An intent on a full etcd comes back to its caller, and a note after its time: neither is a record that waits."""
    owner, told = listening()
    is_full(owner.world)
    until = owner.world.now_s + 5
    plans = [append(owner.log, entry(owner, "begin", intent=True)), append(owner.log, entry(owner, "n", until=until))]
    runs = Crew(owner.client).run(plans)
    assert all(isinstance(run.error, Fault) for run in runs)
    assert told == []


def test_of_several_that_wait_the_first_is_told() -> None:
    """One line a try, not one for each that waits; its end is told when that one is written."""
    owner, told = listening()
    is_full(owner.world)
    runs = Crew(owner.client).run([append(owner.log, entry(owner, f"n{index}")) for index in range(9)])
    assert [run.error for run in runs] == [None] * 9
    assert texts(owner) == [f"n{index}" for index in range(9)]
    assert {each.step for each in told} == {"n0"}
    assert [each.how for each in told].count("recorded") == 1


@pytest.mark.parametrize("end", ["its lease is lost", "Ctrl-C"])
def test_the_end_is_told_where_nothing_is_written(end: str) -> None:
    """Who was told that a record waits is told that nobody waits for it any more; its caller has the reason."""
    owner, told = listening()
    is_full(owner.world)
    strikes = {}
    if end == "Ctrl-C":
        strikes[0, 3] = Strike(KeyboardInterrupt, "none")
    else:
        mended(owner.world, 10, lambda: setattr(owner, "alive", False))
    (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "charge"))], strikes=strikes)
    assert isinstance(run.error, KeyboardInterrupt if end == "Ctrl-C" else Fault)
    assert len(told) >= 2
    assert [each.how for each in told] == ["waits"] * (len(told) - 1) + ["given_up"]
