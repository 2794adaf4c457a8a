"""Adding to a run while it is struck, or etcd is away or full: what waits, what is given up, and that nothing is added twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasekeeper.protocol.append import Entry, Unexpected, append
from leasekeeper.protocol.plan import Cause, Fault, Kind
from tests.model.appends import STRIKES, calls, result, texts, writes
from tests.model.runs import Crew, Owner, entry
from tests.model.world import Strike


@pytest.mark.parametrize("strike", STRIKES)
@pytest.mark.parametrize("at", range(4))
def test_whoever_leads_is_interrupted(strike: Strike, at: int) -> None:
    """B23: at whichever operation the leader is struck, the others end without waiting for the clock; nothing is added twice.

    What came late, too, is added once or not at all.
    """
    owner = Owner()
    crew = Crew(owner.client)
    plans = [append(owner.log, entry(owner, f"n{index}")) for index in range(4)]
    runs = crew.run(plans, strikes={(0, at): strike, (1, at): strike})
    owner.world.arrive()
    landed = texts(owner)
    assert landed == sorted(set(landed))
    for index, run in enumerate(runs):
        if run.error is None:
            assert f"n{index}" in landed
        else:
            assert index < 2, "one that was not struck"
            assert isinstance(run.error, (KeyboardInterrupt, asyncio.CancelledError))
    assert crew.waited_s == 0


@pytest.mark.parametrize("strike", STRIKES)
def test_after_an_interruption_the_next_one_goes_on(strike: Strike) -> None:
    """What an interrupted owner sent is settled before anything else is added, whether or not it was done."""
    owner = Owner()
    crew = Crew(owner.client)
    crew.run([append(owner.log, entry(owner, "n0"))], strikes={(0, 0): strike})
    (run,) = crew.run([append(owner.log, entry(owner, "n1"))])
    owner.world.arrive()
    assert run.error is None
    assert result(run).seq == len(owner.records())
    assert texts(owner)[-1] == "n1"


def test_an_intent_that_surely_was_not_sent_is_given_up() -> None:
    """While etcd is away nothing is begun: an intent comes back with what etcd's silence is, and nothing of it lands later."""
    owner = Owner()
    owner.world.down = True
    (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "begin", intent=True))])
    assert isinstance(run.error, Fault)
    owner.world.down = False
    (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "next"))])
    assert texts(owner) == ["next"]


def test_evidence_waits_for_etcd_and_intents_beside_it_do_not() -> None:
    """While etcd is away an outcome is kept and sent until it lands; an intent that came with it is refused meanwhile."""
    owner = Owner()
    world = owner.world
    world.down = True
    back_s = world.now_s + 60
    original = world.pass_time

    def pass_time(seconds: float) -> None:
        original(seconds)
        if world.now_s >= back_s:
            world.down = False

    world.pass_time = pass_time  # type: ignore[method-assign]
    plans = [append(owner.log, entry(owner, "outcome")), append(owner.log, entry(owner, "begin", intent=True))]
    outcome, intent = Crew(owner.client).run(plans)
    assert outcome.error is None
    assert isinstance(intent.error, Fault)
    assert texts(owner) == ["outcome"]


def test_without_authority_that_can_come_back_nothing_is_sent_for_ever() -> None:
    """Once the lease is over, evidence that does not reach etcd is given up as well."""
    owner = Owner()
    owner.world.down = True
    owner.alive = False
    (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "outcome"))])
    assert isinstance(run.error, Fault)


def test_what_nobody_wants_any_more_is_given_up() -> None:
    """An entry with an end is sent until then, and not as long as authority can come back."""
    owner = Owner()
    owner.world.down = True
    began_s = owner.world.now_s
    (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "failed", until=began_s + 5))])
    assert isinstance(run.error, Fault)
    assert owner.world.now_s - began_s < 20


def test_who_leads_and_wants_no_more_hands_over() -> None:
    """Whoever leaves while etcd is away is not kept by what others still want sent: one of those leads from then on."""
    owner = Owner()
    world = owner.world
    world.down = True
    until_s, back_s = world.now_s + 5, world.now_s + 90
    original = world.pass_time

    def pass_time(seconds: float) -> None:
        original(seconds)
        world.down = world.now_s < back_s
        if leaver.gi_frame is None:
            left_s.append(world.now_s)

    left_s: list[float] = []
    world.pass_time = pass_time  # type: ignore[method-assign]
    leaver: Any = append(owner.log, entry(owner, "failed", until=until_s))
    left, kept = Crew(owner.client).run([leaver, append(owner.log, entry(owner, "outcome"))])
    assert isinstance(left.error, Fault)
    assert left_s[0] < until_s + 20
    assert kept.error is None
    assert texts(owner) == ["outcome"]


def test_a_keeper_that_is_closed_ends_everything() -> None:
    """After a lost reply and a closed keeper, whoever adds something is told at once, however often: nobody spins."""
    owner = Owner()
    closed = Strike(lambda: Fault(Kind.NOT_SENT, Cause.CLOSED, "the keeper is closed"))
    crew = Crew(owner.client)
    crew.run([append(owner.log, entry(owner, "n0"))], strikes={(0, 0): Strike(KeyboardInterrupt, "late")})
    for _ in range(2):
        (run,) = crew.run([append(owner.log, entry(owner, "n1"))], strikes={(0, 0): closed})
        assert isinstance(run.error, Fault)
        assert calls(run) == 1


def test_a_full_etcd_takes_no_intent_and_gets_the_outcome_once_there_is_room() -> None:
    """NOSPACE: an intent is refused at once; evidence waits, since a full etcd keeps leases, and lands when it is disarmed."""
    owner = Owner()
    world = owner.world
    world.store.full = True
    (refused,) = Crew(owner.client).run([append(owner.log, entry(owner, "begin", intent=True))])
    assert isinstance(refused.error, Fault)
    assert refused.error.cause is Cause.NO_SPACE
    original, made_s = world.pass_time, world.now_s + 30

    def pass_time(seconds: float) -> None:
        original(seconds)
        world.store.full = world.store.full and world.now_s < made_s

    world.pass_time = pass_time  # type: ignore[method-assign]
    plans = [append(owner.log, entry(owner, "outcome")), append(owner.log, entry(owner, "begin", intent=True))]
    outcome, intent = Crew(owner.client).run(plans)
    assert outcome.error is None
    assert isinstance(intent.error, Fault)
    assert texts(owner) == ["outcome"]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_order_and_any_interruptions(data: st.DataObject) -> None:
    """B5, B23, B24: whoever goes on, whoever is struck where: what was told to have landed has, once; nobody waits for ever."""
    owner = Owner()
    count = data.draw(st.integers(2, 5))
    struck = data.draw(
        st.dictionaries(
            st.tuples(st.integers(0, count - 1), st.integers(0, 5)),
            st.sampled_from([each.values[0] for each in STRIKES]),
            max_size=4,
        )
    )
    kinds = data.draw(st.lists(st.sampled_from(["evidence", "intent", "key"]), min_size=count, max_size=count))

    def made(index: int, kind: str) -> Entry:
        if kind == "key":
            return writes(owner, b"shared", f"n{index}".encode())
        return entry(owner, f"n{index}", intent=kind == "intent")

    plans = [append(owner.log, made(index, kind)) for index, kind in enumerate(kinds)]
    crew = Crew(owner.client)
    runs = crew.run(plans, lambda able: data.draw(st.sampled_from(able)), struck)  # type: ignore[arg-type]
    owner.world.arrive()
    (end,) = crew.run([append(owner.log, entry(owner, "end"))])
    assert end.error is None
    landed = texts(owner)
    assert len(set(landed)) == len(landed)
    for index, run in enumerate(runs):
        if run.error is None:
            told = result(run)
            assert told.stored == owner.world.store.keys[owner.keys.record(told.seq)].value
            assert f"n{index}" in landed
        elif isinstance(run.error, (Unexpected, Fault)):
            assert kinds[index] != "evidence", "evidence was given up"
    assert crew.waited_s == 0
