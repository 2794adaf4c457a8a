"""Keys and stored records: what is spelled where, and what becomes of records that somebody else wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leasekeeper.errors import ConfigError
from leasekeeper.fencing import EPOCH_MAX, make_token
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.keys import (
    Epoch,
    Keys,
    check_name,
    check_note,
    escape,
    prefix_end,
    read_claim,
    read_epoch,
    record_bytes,
    record_tail,
    write_epoch,
)

KEYS = Keys("default")
GOOD = {
    "v": 1,
    "nonce": "n",
    "holder": "h",
    "host": "box",
    "pid": 7,
    "note": "",
    "claimed_at": 1.5,
    "ttl": 10.0,
    "epoch": 2,
}


def claim_of(value: bytes, *, epoch: int = 0) -> Any:
    """The claim that a stored value reads as."""
    key = KEYS.claim("name", 0x1F)
    return read_claim(KEYS, pb.KeyValue(key=key, create_revision=9, mod_revision=9, lease=0x1F, value=value), epoch)


def stored(**changes: Any) -> bytes:
    """A good record with some fields changed; None leaves a field out."""
    return json.dumps({k: v for k, v in {**GOOD, **changes}.items() if v is not None}).encode()


# ---------------------------------------------------------------- where things are


def test_keys_are_spelled_as_documented() -> None:
    """Everything lives under leasekeeper/<namespace>/, and an operator can type it."""
    assert KEYS.epoch == b"leasekeeper/default/epoch"
    assert KEYS.queue("rotate-certs") == b"leasekeeper/default/lease/rotate-certs/"
    assert KEYS.claim("rotate-certs", 0x1F) == b"leasekeeper/default/lease/rotate-certs/1f"
    assert KEYS.claim("rotate-certs", 0x1F, 2) == b"leasekeeper/default/lease/rotate-certs/1f.2"
    assert KEYS.lock_key("rotate-certs") == "leasekeeper/default/lease/rotate-certs"
    assert KEYS.queue("a/b%") == b"leasekeeper/default/lease/a%2Fb%25/"


@pytest.mark.parametrize("name", ["a", "a/b", "a%2Fb", "a/", "/", "%", "ä/ö", "a b", ".", "..", "🔑", "e\u0301"])
def test_a_key_tells_its_name(name: str) -> None:
    """An observer reads back the very name that was claimed."""
    assert KEYS.name_of(KEYS.claim(name, 5)) == KEYS.name_of(KEYS.claim(name, 5, 1)) == name


def test_a_key_that_nobody_of_us_wrote_has_a_name_too() -> None:
    """Bytes that are no text, or a key without a suffix, still show as something."""
    assert KEYS.name_of(KEYS.leases + b"\xff\xfe/1f") == "\ufffd\ufffd"
    assert KEYS.name_of(KEYS.leases + b"bare") == "bare"
    assert KEYS.name_of(KEYS.leases) == ""


def test_namespaces_do_not_see_each_other() -> None:
    """No key of one namespace lies under the prefix of another, whatever the two are called."""
    spaces = [Keys(namespace) for namespace in ("a", "a/b", "a%2Fb", "ab", "a/")]
    for one in spaces:
        for other in spaces:
            if one is not other:
                assert not other.claim("n", 1).startswith(one.root.encode())


def test_prefix_end_is_just_behind_the_prefix() -> None:
    """The range over a prefix has every key that begins with it and no other."""
    assert prefix_end(b"a/") == b"a0"
    end = prefix_end(KEYS.queue("ä"))
    assert KEYS.queue("ä") + b"\xff" * 9 < end <= KEYS.queue("ä")[:-1] + b"0"


# ---------------------------------------------------------------- names and notes


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "x" * 256,
        "a\nb",
        "\x00",
        "a\x7f",
        "a\x9b",
        "a\u2028b",
        "a\u2029b",
        "\ud800",
        "a\udfff",
        None,
        b"name",
        7,
        ["n"],
    ],
    ids=ascii,
)
def test_what_cannot_be_a_name_is_refused(bad: Any) -> None:
    """Empty, too long, control characters, line separators, half of a surrogate pair, or no text at all: ConfigError."""
    for check, field in ((check_name, "name"), (Keys, "namespace")):
        with pytest.raises(ConfigError) as caught:
            check(bad)
        assert caught.value.field == field
        assert "1 to 255 characters" in caught.value.expected
        str(caught.value).encode("utf-8", "strict")


@pytest.mark.parametrize("good", ["x", "x" * 255, "ä" * 255, "a b", "a\u200db", "🔑", "\u00a0", "\u202e"])
def test_any_other_text_is_a_name(good: str) -> None:
    """1 to 255 characters of any script, spaces and joiners included."""
    assert check_name(good) == good


def test_a_note_is_bounded_text() -> None:
    """Notes may have line breaks, but must be text that etcd can store, of at most 1,024 characters."""
    assert check_note("two\nlines") == "two\nlines"
    for bad in ("x" * 1025, "\udc80", None, 5):
        with pytest.raises(ConfigError) as caught:
            check_note(bad)
        assert caught.value.field == "note"


@pytest.mark.parametrize("prefix", ["a\n", "\ud800", "x" * 300])
def test_a_prefix_that_no_name_has_is_refused(prefix: str) -> None:
    """Looking for names by a prefix that none can have is told, not answered with nothing."""
    with pytest.raises(ConfigError) as caught:
        KEYS.starting(prefix)
    assert caught.value.field == "prefix"


def test_a_prefix_of_names_is_a_prefix_of_keys() -> None:
    """What begins with a prefix is found under it, also where the prefix ends in a character that is escaped."""
    for prefix in ("", "a", "a/", "a%", "ä"):
        assert KEYS.claim(f"{prefix}rest", 1).startswith(KEYS.starting(prefix))
    assert not KEYS.claim("ab", 1).startswith(KEYS.starting("a/"))


# ---------------------------------------------------------------- records


def test_a_record_reads_back_as_it_was_written() -> None:
    """What a claim says about itself arrives at the observer, whatever characters it has."""
    tail = record_tail(holder='h"\\', host="bäx", pid=7, note="two\nlines \U0001f511", ttl=10.0, epoch=3)
    claim = claim_of(record_bytes("n1", 1700000000.1239, tail))
    assert (claim.nonce, claim.holder, claim.host, claim.pid) == ("n1", 'h"\\', "bäx", 7)
    assert (claim.note, claim.claimed_at, claim.ttl, claim.flag) == (
        "two\nlines \U0001f511",
        1700000000.124,
        10.0,
        "ok",
    )
    assert claim.token == make_token(3, 9)
    assert (claim.lease_id, claim.create_revision, claim.name) == (0x1F, 9, "name")


@pytest.mark.parametrize(
    ("value", "flag"),
    [
        (stored(), "ok"),
        (stored(more="later"), "ok"),
        (b"", "foreign"),
        (b"etcdctl wrote this", "foreign"),
        (b"17", "foreign"),
        (b"[1, 2]", "foreign"),
        (b'"text"', "foreign"),
        (b"null", "foreign"),
        (b"{}", "foreign"),
        (b'{"who": "me"}', "foreign"),
        (stored(v=2), "newer"),
        (stored(v=2, nonce=None), "newer"),
        (stored(v=10**30), "corrupt"),
        (stored(v=0), "corrupt"),
        (stored(v="1"), "corrupt"),
        (stored(v=True), "corrupt"),
        (stored(nonce=None), "corrupt"),
        (stored(nonce=5), "corrupt"),
        (stored(pid=1.5), "corrupt"),
        (stored(pid=True), "corrupt"),
        (stored(pid=10**400), "corrupt"),
        (stored(claimed_at=float("nan")), "corrupt"),
        (stored(ttl=float("inf")), "corrupt"),
        (stored(ttl=-(10**400)), "corrupt"),
        (stored(holder="\ud800"), "corrupt"),
        (stored(epoch=-1), "corrupt"),
        (stored(epoch=EPOCH_MAX + 1), "corrupt"),
        (stored(epoch=1.0), "corrupt"),
        (b"{" + b"\xff" * 10, "corrupt"),
        (b'{"v": 1, "nonce"', "corrupt"),
        (b'{"v":' * 5000, "corrupt"),
        (b"[" * 100_000, "foreign"),
        (b'{"v": ' + b"9" * 5000 + b"}", "corrupt"),
        (stored(note="x" * 70_000), "corrupt"),
    ],
    ids=lambda part: part[:24] if isinstance(part, bytes) else part,
)
def test_every_stored_record_reads_as_something(value: bytes, flag: str) -> None:
    """C34: a record of whatever origin never breaks an observer; it is flagged, and holds its place with its token."""
    claim = claim_of(value, epoch=4)
    assert claim.flag == flag
    assert claim.create_revision == 9
    assert claim.token == make_token(claim.epoch, 9)
    for text in (claim.nonce, claim.holder, claim.host, claim.note):
        text.encode()
    assert claim.claimed_at is None or abs(claim.claimed_at) <= 2**53


def test_what_is_good_in_a_bad_record_is_shown() -> None:
    """An operator sees the holder of a claim whose other fields make no sense."""
    claim = claim_of(stored(pid="?", v=7))
    assert (claim.holder, claim.pid, claim.flag) == ("h", 0, "newer")


def test_a_claim_without_an_epoch_of_its_own_has_the_present_one() -> None:
    """`etcdctl lock` stands in the same queue; its token is made with the epoch as it is."""
    assert claim_of(b"", epoch=6).token == make_token(6, 9)
    assert claim_of(stored(), epoch=6).token == make_token(2, 9)


# ---------------------------------------------------------------- the epoch record


def test_the_epoch_record_reads_back_with_the_bytes_to_compare() -> None:
    """A transaction compares the very bytes that were read."""
    value = write_epoch(5, at=1.23456, by="somebody")
    assert read_epoch([pb.KeyValue(key=KEYS.epoch, value=value)]) == Epoch(5, value)
    assert read_epoch([]) == Epoch(0, None)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"5",
        b"{}",
        b"null",
        b"[]",
        b'"v"',
        b"\xff",
        b'{"v":1}',
        b'{"epoch":1}',
        b'{"v":2,"epoch":1}',
        b'{"v":1,"epoch":-1}',
        b'{"v":1,"epoch":1.0}',
        b'{"v":1,"epoch":true}',
        b'{"v":1,"epoch":"1"}',
        b'{"v":1,"epoch":null}',
        b'{"v":1,"epoch":524288}',
        b'{"v":1,"epoch":1',
        b"[" * 100_000,
        b'{"v":1,"epoch":' + b"9" * 5000 + b"}",
    ],
    ids=lambda value: value[:24],
)
def test_an_epoch_record_that_cannot_be_trusted_is_refused(value: bytes) -> None:
    """No token is safe without it, so whatever cannot be read is a ConfigError that names the key."""
    with pytest.raises(ConfigError) as caught:
        read_epoch([pb.KeyValue(key=KEYS.epoch, value=value)])
    assert caught.value.field == "leasekeeper/default/epoch"


def test_escaping_touches_two_characters_only() -> None:
    """Everything else stays readable in etcdctl."""
    assert escape("a b-ä.🔑%/") == "a b-ä.🔑%25%2F"
