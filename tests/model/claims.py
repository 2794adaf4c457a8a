"""Sessions and owned claims made by hand, for tests of the rules that need no etcd at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.actions import Action
from leasekeeper.protocol.authority import Authority
from leasekeeper.protocol.keys import Keys
from leasekeeper.protocol.session import Session, Slot
from leasekeeper.runtime.signals import Flag
from leasekeeper.timing import Timing

KEYS = Keys("tests")
LEASE = 0x5EA5E
A = TypeVar("A", bound=Action)


def make_session(timing: Timing | None = None, *, lease_id: int = LEASE, proof_s: float = 0.0) -> Session:
    """A session whose last confirmed beat was sent at ``proof_s``."""
    return Session(lease_id, timing or Timing(ttl=10.0), proof_s, ended=Flag(), changed=Flag())


def occupy(session: Session, name: str = "name") -> Slot:
    """The lowest free slot on a name."""
    number, key = 0, KEYS.claim(name, session.lease_id)
    while key in session.slots:
        number += 1
        key = KEYS.claim(name, session.lease_id, number)
    slot = session.occupy(name, number, key)
    slot.nonce, slot.record = f"nonce-{name}-{number}", f"record of {name}, {number}".encode()
    return slot


def own(session: Session, name: str = "name", *, revision: int = 100, now_s: float = 0.0) -> Authority:
    """A claim on ``name`` that became the owner's with the key created at ``revision``."""
    slot = occupy(session, name)
    slot.create_revision = revision
    authority = Authority(slot, token=revision, create_revision=revision, timing=session.timing, now_s=now_s)
    slot.authority = authority
    return authority


def stored(authority: Authority, *, revision: int | None = None, lease_id: int | None = None) -> pb.KeyValue:
    """What etcd shows at the key of a claim, read without its value; another revision or lease makes it another claim."""
    return pb.KeyValue(
        key=authority.slot.key,
        create_revision=authority.create_revision if revision is None else revision,
        mod_revision=authority.create_revision if revision is None else revision,
        lease=authority.session.lease_id if lease_id is None else lease_id,
    )


def of_kind(kind: type[A], actions: Iterable[Action]) -> list[A]:
    """The actions of one kind."""
    return [action for action in actions if isinstance(action, kind)]
