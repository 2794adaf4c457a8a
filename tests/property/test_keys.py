"""Keys of any names: each name has a place of its own, and nothing that is stored breaks a reader."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from leasekeeper.errors import ConfigError
from leasekeeper.fencing import EPOCH_MAX, REVISION_MAX
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.keys import (
    Keys,
    check_name,
    check_note,
    escape,
    prefix_end,
    read_claim,
    read_epoch,
    record_bytes,
    record_tail,
    unescape,
)

KEYS = Keys("default")


def is_name(text: str) -> bool:
    """Whether it can be a name at all."""
    try:
        check_name(text)
    except ConfigError:
        return False
    return True


# Mostly the characters that escaping is about, so that names collide if they can.
tricky = st.text(alphabet="%/25Ff.a", min_size=1, max_size=8)
names = tricky | st.text(min_size=1, max_size=255).filter(is_name)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
fields = st.sampled_from(["v", "nonce", "holder", "host", "pid", "note", "claimed_at", "ttl", "epoch"])
records = st.dictionaries(fields, json_values, max_size=9).map(lambda record: json.dumps(record).encode())


@given(names)
@example("%2F")
@example("%252F")
@example("%")
@example("/")
@example("%25%2f")
def test_escaping_is_undone(name: str) -> None:
    """Every name comes back as it was, also one that looks escaped already."""
    assert unescape(escape(name)) == name
    assert "/" not in escape(name)
    assert KEYS.name_of(KEYS.claim(name, 1, 3)) == name


@given(names, names)
@example("a", "a/b")
@example("a/b", "a%2Fb")
@example("a", "a/")
@example("a", "ab")
@example("é", "e\u0301")
def test_no_queue_lies_in_another(one: str, other: str) -> None:
    """G1: the range over one name's queue never sees a claim on another name."""
    if one == other:
        return
    start = KEYS.queue(one)
    for slot in (0, 1):
        assert not start <= KEYS.claim(other, 0x7F, slot) < prefix_end(start)


@given(names, st.integers(1, 2**63 - 1), st.integers(1, 2**63 - 1), st.integers(0, 20), st.integers(0, 20))
def test_every_slot_has_a_key_of_its_own(name: str, lease: int, other: int, slot: int, another: int) -> None:
    """Two sessions, or two slots of one, never share a key."""
    assert (KEYS.claim(name, lease, slot) == KEYS.claim(name, other, another)) == ((lease, slot) == (other, another))


@given(names, st.binary(max_size=20))
def test_whoever_queues_under_the_lock_key_is_seen(name: str, suffix: bytes) -> None:
    """`etcdctl lock KEY` puts any suffix behind the key and a slash; it stands in the queue."""
    start = KEYS.queue(name)
    assert start == f"{KEYS.lock_key(name)}/".encode()
    assert start <= start + suffix < prefix_end(start)


@given(st.binary(max_size=200) | records | st.text(max_size=50).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_reading_a_claim_never_fails(value: bytes) -> None:
    """Whatever somebody stored at a claim's key reads as a claim with a flag."""
    kv = pb.KeyValue(key=KEYS.claim("n", 1), create_revision=5, mod_revision=6, lease=1, value=value)
    claim = read_claim(KEYS, kv, 2)
    assert claim.flag in ("ok", "foreign", "newer", "corrupt")
    assert claim.token >= 1
    for text in (claim.nonce, claim.holder, claim.host, claim.note):
        text.encode()


@given(st.binary(max_size=60), st.integers(1, REVISION_MAX))
def test_any_key_has_a_name_that_can_be_shown(suffix: bytes, revision: int) -> None:
    """Keys that are no text are shown all the same."""
    claim = read_claim(KEYS, pb.KeyValue(key=KEYS.leases + suffix, create_revision=revision), 0)
    claim.name.encode()
    claim.key.encode()


@given(st.binary(max_size=100) | records)
def test_an_epoch_is_read_or_refused(value: bytes) -> None:
    """An epoch record is either an epoch in range or a ConfigError."""
    try:
        epoch = read_epoch([pb.KeyValue(key=KEYS.epoch, value=value)])
    except ConfigError:
        return
    assert 0 <= epoch.number <= EPOCH_MAX
    assert epoch.stored == value


@given(
    names,
    st.text(max_size=100),
    st.floats(0, 4e9),
    st.integers(0, EPOCH_MAX),
    st.integers(0, 2**22),
    st.floats(1, 86_400),
)
def test_a_record_survives_storage(holder: str, note: str, at: float, epoch: int, pid: int, ttl: float) -> None:
    """Every record that can be written reads back as good, with the same fields."""
    try:
        check_note(note)
    except ConfigError:
        return
    tail = record_tail(holder=holder, host="h", pid=pid, note=note, ttl=ttl, epoch=epoch)
    kv = pb.KeyValue(key=KEYS.claim("n", 1), create_revision=5, lease=1, value=record_bytes("00ff", at, tail))
    claim = read_claim(KEYS, kv, 0)
    assert claim.flag == "ok"
    assert (claim.holder, claim.note, claim.pid, claim.ttl, claim.epoch) == (holder, note, pid, ttl, epoch)
    assert claim.claimed_at is not None
    assert abs(claim.claimed_at - at) <= 0.001
