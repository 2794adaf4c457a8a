"""The sessions of a keeper: lent while they are usable, opened by one plan at a time, and never left with a claim forgotten."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from leasekeeper.protocol.authority import Authority, State
from leasekeeper.protocol.heartbeat import Heartbeat
from leasekeeper.protocol.plan import Fault
from leasekeeper.protocol.session import Session, Slot, Tending
from leasekeeper.runtime.sessions import SessionTable
from leasekeeper.runtime.signals import Flag
from leasekeeper.timing import Timing
from tests.model.claims import KEYS

TIMING = Timing(ttl=10.0)


class Heart:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.added: list[Session] = []
        self.adopted: list[Slot] = []

    def add(self, session: Session) -> None:
        """Keep it alive."""
        self.added.append(session)

    def adopt(self, slot: Slot) -> None:
        """Watch its key."""
        self.adopted.append(slot)


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def now(self) -> float:
        """The time."""
        return self.now_s


class Table:
    """A table with a heart and a clock, and a session at hand."""

    def __init__(self) -> None:
        self.heart = Heart()
        self.clock = Clock()
        heart: Any = self.heart
        self.table = SessionTable(KEYS, self.clock.now, heart, lambda _: None)
        self.tending = Tending()

    def open(self, lease_id: int = 5, timing: Timing = TIMING) -> Session:
        """Open a session, as a plan does that was told to."""
        assert self.table.lend(timing, self.tending) is None
        session = self.table.make(lease_id, timing, self.clock.now_s)
        self.table.opened(timing, session)
        return session

    def occupy(self, session: Session, name: str = "name") -> Slot:
        """A slot on a name."""
        slot = self.table.occupy(session, name, self.tending)
        assert slot is not None
        return slot

    def owned(self, session: Session, name: str = "name") -> Authority:
        """The authority over a slot, not adopted yet."""
        slot = self.occupy(session, name)
        return Authority(slot, token=7, create_revision=7, timing=session.timing, now_s=0.0)


def test_one_plan_opens_and_all_others_wait_for_it() -> None:
    """A session is granted once, however many claims come at the same time."""
    table = Table()
    assert table.table.lend(TIMING, table.tending) is None
    waiting = table.table.lend(TIMING, Tending())
    assert isinstance(waiting, Flag)
    assert not waiting.is_set()
    session = table.table.make(5, TIMING, 0.0)
    table.table.opened(TIMING, session)
    assert waiting.is_set()
    assert table.table.lend(TIMING, Tending()) is session
    assert table.heart.added == [session]


def test_a_failed_opening_lets_the_next_one_try() -> None:
    """Nobody waits for a session that will not come."""
    table = Table()
    assert table.table.lend(TIMING, table.tending) is None
    waiting: Any = table.table.lend(TIMING, Tending())
    table.table.opened(TIMING, None)
    assert waiting.is_set()
    assert table.table.lend(TIMING, Tending()) is None


def test_a_plan_that_vanished_does_not_block_the_others() -> None:
    """When the plan that was opening is gone without a word, the next who asks opens."""
    table = Table()
    tending = Tending()
    assert table.table.lend(TIMING, tending) is None
    del tending
    assert table.table.lend(TIMING, Tending()) is None


def test_a_session_is_lent_while_it_is_usable() -> None:
    """Not when it is gone, retired, or when its authority has lapsed; another TTL is another session."""
    table = Table()
    session = table.open()
    assert table.table.at_hand(TIMING)
    assert not table.table.at_hand(Timing(ttl=20.0))
    table.clock.now_s = 9.8
    assert not table.table.at_hand(TIMING)
    assert table.open(6) is not session


def test_slots_are_the_lowest_free_ones() -> None:
    """Keys are used again, and never by two claims at once."""
    table = Table()
    session = table.open()
    first, second = table.occupy(session), table.occupy(session)
    assert (first.number, second.number) == (0, 1)
    table.table.vacate(first)
    assert table.occupy(session).number == 0
    assert table.occupy(session).number == 2
    assert table.occupy(session, "other").number == 0


def test_nothing_is_occupied_in_a_session_that_ends() -> None:
    """Gone, retired or closed: the plan looks for another session."""
    for end in ("gone", "retired", "closed"):
        table = Table()
        session = table.open()
        if end == "gone":
            session.shut()
        elif end == "retired":
            assert table.table.retire(session)
        else:
            table.table.close()
        assert table.table.occupy(session, "name", table.tending) is None


def test_an_owned_claim_is_counted_in_and_watched() -> None:
    """From then on the heart looks after its key."""
    table = Table()
    authority = table.owned(table.open())
    assert table.table.adopt(authority)
    assert authority.slot.authority is authority
    assert table.heart.adopted == [authority.slot]


@pytest.mark.parametrize("end", ["gone", "closed"])
def test_a_claim_is_not_adopted_into_a_session_that_has_ended(end: str) -> None:
    """It would be SUSPENDED for ever: nobody would ever tell it that its lease is gone."""
    table = Table()
    session = table.open()
    authority = table.owned(session)
    if end == "gone":
        session.shut()
    else:
        table.table.close()
    assert not table.table.adopt(authority)
    assert authority.state(0.0) is State.RELEASED
    assert table.heart.adopted == []


def test_a_session_that_ends_while_a_claim_is_adopted_takes_it_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends a session says so before it lists the claims, and whoever adopts one lists it before it asks."""
    table = Table()
    session = table.open()
    beats = Heartbeat()
    beats.add(session, 0.0)
    seen: list[bool] = []
    honest = Session.authorities

    def authorities(self: Session) -> list[Authority]:
        seen.append(self.gone)
        return honest(self)

    monkeypatch.setattr(Session, "authorities", authorities)
    beats.lease_gone(session, 1.0)
    assert seen == [True]

    listed: list[bool] = []
    authority = table.owned(table.open(6))

    class Asked(Session):
        """Says when it is asked whether it has ended."""

        __slots__ = ()

        @property
        def gone(self) -> bool:
            """Not yet."""
            listed.append(authority.slot.authority is authority)
            return False

        @gone.setter
        def gone(self, value: bool) -> None:
            pass

    authority.session = Asked(9, TIMING, 0.0, ended=Flag(), changed=Flag())
    assert table.table.adopt(authority)
    assert listed == [True]


def test_a_session_with_claims_is_not_retired() -> None:
    """Somebody just came: the idle session is not idle any more."""
    table = Table()
    session = table.open()
    slot = table.occupy(session)
    for table.clock.now_s in (0.0, 100.0):
        assert not table.table.retire(session)
    table.table.vacate(slot)
    assert table.table.retire(session)
    assert table.table.lend(TIMING, table.tending) is None


def test_doubted_sessions_take_no_more_claims() -> None:
    """After a restore new claims go through new sessions; what is held goes on."""
    table = Table()
    session = table.open()
    authority = table.owned(session)
    assert table.table.adopt(authority)
    table.table.doubt()
    assert session.doubtful
    assert table.table.occupy(session, "name", table.tending) is None
    assert table.open(6) is not session
    assert authority.state(0.0) is State.HELD


def test_who_owns_a_name_is_found_in_whichever_slot_and_session() -> None:
    """C05: a thread that would wait for itself can be told so."""
    table = Table()
    first, second = table.open(), table.open(6, Timing(ttl=20.0))
    me, you = object(), object()
    kept: list[Authority] = []
    for session, owner in ((first, you), (second, object()), (second, me)):
        authority = table.owned(session)
        authority.owner = lambda owner=owner: owner
        assert table.table.adopt(authority)
        kept.append(authority)
    assert table.table.owned_by("name", me)
    assert table.table.owned_by("name", you)
    assert not table.table.owned_by("other", me)
    assert not table.table.owned_by("name", object())


def test_after_the_end_nothing_is_lent() -> None:
    """A closed keeper opens no session, and whoever waits for one is woken."""
    table = Table()
    assert table.table.lend(TIMING, table.tending) is None
    waiting: Any = table.table.lend(TIMING, Tending())
    table.table.close()
    assert waiting.is_set()
    with pytest.raises(Fault):
        table.table.lend(TIMING, Tending())


def test_many_threads_get_many_slots() -> None:
    """Slots taken and given back by threads at once are never shared."""
    table = Table()
    session = table.open()
    in_use: set[bytes] = set()
    lock = threading.Lock()
    shared: list[bytes] = []

    def take_and_give() -> None:
        for _ in range(200):
            slot = table.occupy(session)
            with lock:
                if slot.key in in_use:
                    shared.append(slot.key)
                in_use.add(slot.key)
            with lock:
                in_use.discard(slot.key)
            table.table.vacate(slot)

    threads = [threading.Thread(target=take_and_give) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shared == []
    assert session.slots == {}
