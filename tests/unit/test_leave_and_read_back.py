"""A claim that leaves while the heart reads keys back: each key is removed by one of them, and never a newer claim's."""

from __future__ import annotations

from typing import Any

import pytest

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.actions import ReadBack, Remove
from leasekeeper.protocol.context import Context
from leasekeeper.protocol.heartbeat import Heartbeat
from leasekeeper.protocol.keys import Epoch
from leasekeeper.protocol.leave import release
from leasekeeper.protocol.plan import Call, Detach, Fault, Kind
from leasekeeper.protocol.session import Session, Slot
from tests.model.claims import KEYS, make_session, of_kind, own, stored

READ_AT_S = 4.6  # a read-back is due by then
ANSWERED_AT_S = 4.7


class Vacating:
    """The one thing that a release wants of the sessions."""

    def vacate(self, slot: Slot) -> None:
        """The slot's key is surely gone."""
        slot.session.free(slot)


def context() -> Context:
    """The parts of a context that a release reads."""
    found: Any = Context.__new__(Context)
    found.keys, found.epoch, found.sessions = KEYS, Epoch(), Vacating()
    return found  # type: ignore[no-any-return]


def reading(session: Session) -> tuple[Heartbeat, tuple[bytes, ...]]:
    """A heartbeat whose read-back of the session's keys is on its way."""
    beats = Heartbeat()
    beats.add(session, 0.0)
    (read,) = of_kind(ReadBack, beats.due(READ_AT_S))
    return beats, read.keys


def test_a_release_in_the_air_is_not_overtaken_by_the_heart() -> None:
    """A key read back just before its release is left to that release, which must learn that it was the one to delete it."""
    session = make_session()
    authority = own(session)
    slot = authority.slot
    beats, keys = reading(session)
    authority.release()
    plan = release(context(), slot)
    assert isinstance(next(plan), Call)
    assert keys == (slot.key,)
    actions = beats.read_back(session, {slot.key: stored(authority)}, ANSWERED_AT_S)
    assert not of_kind(Remove, actions)
    assert session.slots[slot.key] is slot
    with pytest.raises(StopIteration) as done:
        plan.send(pb.TxnResponse(succeeded=True))
    assert done.value.value is True
    assert slot.key not in session.slots


def test_a_release_without_an_answer_is_helped_by_the_heart() -> None:
    """Once the release has given up waiting, a key that is still read at the slot is removed."""
    session = make_session()
    other = own(session, "other")
    authority = own(session)
    authority.release()
    plan = release(context(), authority.slot)
    next(plan)
    assert isinstance(plan.throw(Fault(Kind.UNKNOWN)), Detach)
    plan.close()
    beats, _ = reading(session)
    found = {authority.slot.key: stored(authority), other.slot.key: stored(other)}
    actions = beats.read_back(session, found, ANSWERED_AT_S)
    assert of_kind(Remove, actions) == [Remove(authority.slot, authority.create_revision)]


def test_a_newer_claim_on_the_same_key_is_not_removed_for_an_older_one() -> None:
    """What is read at a key whose claim left and was followed by another one is that other one's, and stays."""
    session = make_session()
    old = own(session, revision=100)
    beats, _ = reading(session)
    old.release()
    session.free(old.slot)
    new = own(session, revision=101)
    assert new.slot.key == old.slot.key
    actions = beats.read_back(session, {old.slot.key: stored(new)}, ANSWERED_AT_S)
    assert not of_kind(Remove, actions)
    assert session.slots[new.slot.key] is new.slot
