"""The only place that spells a key or a stored record.

Keys, all under ``leasekeeper/<namespace>/``:

===================================================  =========================================================
``lease/<escaped name>/<lease id, hex>``             a claim; further claims of one session on that name end in
                                                     ``.1``, ``.2``, …: the lowest free slot
``epoch``                                            the epoch record; absent means epoch 0
===================================================  =========================================================

A range over ``a/`` also sees ``a/b/…``, so "/" in a name is escaped. Keys are used again by a session rather than made new
each time: a range also walks over keys deleted since the last compaction, and a queue of ever new keys grows slower.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from leasekeeper.errors import ConfigError
from leasekeeper.fencing import EPOCH_MAX, make_token
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.records import Claim, Flag

__all__ = [
    "ROOT",
    "UNREAD_EPOCH",
    "Claim",
    "Epoch",
    "Keys",
    "check_name",
    "escape",
    "prefix_end",
    "read_claim",
    "read_epoch",
    "record_bytes",
    "record_tail",
    "unescape",
    "write_epoch",
]

ROOT = "leasekeeper/"
"""Every key of every namespace begins with it."""
NAME_MAX = 255
NOTE_MAX = 1024
RECORD_MAX_BYTES = 64 * 1024
NUMBER_MAX = 2**53
FORMAT = 1


def check_name(name: object, field: str = "name") -> str:
    """``name`` if it can be one (1 to 255 characters, no control characters, no lone surrogates), else ConfigError."""
    expected = (
        f"{'' if isinstance(name, str) else 'text of '}1 to {NAME_MAX} characters, none of them a control character"
    )
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_MAX:
        raise ConfigError(field=field, value=_shown(name), expected=expected)
    if not name.isprintable() and any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in name):
        raise ConfigError(field=field, value=_shown(name), expected=expected)
    return name


def check_note(note: object) -> str:
    """``note`` if it is text of at most 1,024 characters that etcd can store, else ConfigError."""
    if not isinstance(note, str) or len(note) > NOTE_MAX or _has_surrogate(note):
        raise ConfigError(field="note", value=_shown(note), expected=f"at most {NOTE_MAX} characters")
    return note


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


def _shown(value: object) -> object:
    return value[:60] + "…" if isinstance(value, str) and len(value) > 60 else value


@lru_cache(maxsize=1024)
def escape(name: str) -> str:
    """A name as one path segment: "/" and "%" are percent-encoded, everything else stays readable."""
    return name.replace("%", "%25").replace("/", "%2F")


def unescape(segment: str) -> str:
    """The name of a path segment."""
    return segment.replace("%2F", "/").replace("%25", "%")


def prefix_end(prefix: bytes) -> bytes:
    """The first key after every key that begins with ``prefix`` (which never ends in 0xff here: it is UTF-8)."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one namespace."""

    namespace: str
    root: str = field(init=False)
    epoch: bytes = field(init=False)

    def __post_init__(self) -> None:
        check_name(self.namespace, "namespace")
        object.__setattr__(self, "root", f"{ROOT}{escape(self.namespace)}/")
        object.__setattr__(self, "epoch", f"{self.root}epoch".encode())

    @property
    def leases(self) -> bytes:
        """The prefix of all claims."""
        return f"{self.root}lease/".encode()

    def starting(self, prefix: str) -> bytes:
        """The prefix of all claims on names that begin with ``prefix``; ConfigError if no name can."""
        if prefix != "":
            check_name(prefix, "prefix")
        return self.leases + escape(prefix).encode()

    def queue(self, name: str) -> bytes:
        """The prefix of all claims on one name."""
        return self.leases + escape(name).encode() + b"/"

    def lock_key(self, name: str) -> str:
        """What to give to ``etcdctl lock`` to stand in the same queue."""
        return self.queue(name)[:-1].decode()

    def claim(self, name: str, lease_id: int, slot: int = 0) -> bytes:
        """The key of a session's claim on a name."""
        suffix = f"{lease_id:x}.{slot}" if slot else f"{lease_id:x}"
        return self.queue(name) + suffix.encode()

    def name_of(self, key: bytes) -> str:
        """The name that a claim's key belongs to."""
        segment = key[len(self.leases) :].partition(b"/")[0]
        return unescape(segment.decode("utf-8", "replace"))


def record_tail(*, holder: str, host: str, pid: int, note: str, ttl: float, epoch: int) -> str:
    """The part of a claim's record that stays the same from one claim to the next; for `record_bytes`."""
    fields = {"holder": holder, "host": host, "pid": pid, "note": note, "ttl": ttl, "epoch": epoch}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))[1:]


def record_bytes(nonce: str, claimed_at: float, tail: str) -> bytes:
    """The stored bytes of a claim: JSON of format version, nonce, claimed_at (Unix seconds) and the tail's fields.

    Only ``nonce`` and ``epoch`` are ever decided on; the rest is for people.
    """
    return f'{{"v":{FORMAT},"nonce":"{nonce}","claimed_at":{claimed_at:.3f},{tail}'.encode()


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not _has_surrogate(value)


def _is_number(value: object) -> bool:
    # JSON as Python reads it knows NaN, infinities and integers of any length.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= NUMBER_MAX


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and _is_number(value)


RECORD_FIELDS: dict[str, Callable[[object], bool]] = {
    "nonce": _is_text,
    "holder": _is_text,
    "host": _is_text,
    "pid": _is_whole,
    "note": _is_text,
    "claimed_at": _is_number,
    "ttl": _is_number,
    "epoch": lambda value: isinstance(value, int) and _is_whole(value) and 0 <= value <= EPOCH_MAX,
}


def _record_fields(value: bytes) -> tuple[Flag, dict[str, Any]]:
    """How far a stored record could be read, and its good fields: of the right type, printable, and within bounds."""
    if not value:
        return "foreign", {}
    try:
        raw = json.loads(value[:RECORD_MAX_BYTES])
    except (ValueError, RecursionError):
        return "corrupt" if value[:1] == b"{" else "foreign", {}
    if not isinstance(raw, dict) or "v" not in raw:
        return "foreign", {}
    good = {name: raw[name] for name, is_good in RECORD_FIELDS.items() if name in raw and is_good(raw[name])}
    version = raw["v"] if _is_whole(raw["v"]) else 0
    if version > FORMAT:
        return "newer", good
    return ("ok" if version == FORMAT and len(good) == len(RECORD_FIELDS) else "corrupt"), good


def read_claim(keys: Keys, kv: pb.KeyValue, epoch: int) -> Claim:
    """A claim from etcd; never fails on what is stored there. ``epoch`` serves claims that do not tell their own."""
    flag, fields = _record_fields(kv.value)
    own_epoch = fields.pop("epoch", epoch)
    return Claim(
        name=keys.name_of(kv.key),
        key=kv.key.decode("utf-8", "replace"),
        token=make_token(own_epoch, kv.create_revision),
        create_revision=kv.create_revision,
        mod_revision=kv.mod_revision,
        lease_id=kv.lease,
        epoch=own_epoch,
        flag=flag,
        **fields,
    )


@dataclass(frozen=True, slots=True)
class Epoch:
    """The epoch as read: its number and the stored bytes that a transaction compares (None: no record, epoch 0)."""

    number: int = 0
    stored: bytes | None = None


# What is assumed before it was read: most namespaces never need an epoch. It is this object, not its value, that says so.
UNREAD_EPOCH = Epoch()


def write_epoch(number: int, *, at: float, by: str) -> bytes:
    """The stored bytes of an epoch record."""
    fields = {"v": FORMAT, "epoch": number, "at": round(at, 3), "by": by}
    return json.dumps(fields, separators=(",", ":")).encode()


def read_epoch(kvs: list[pb.KeyValue]) -> Epoch:
    """The epoch from the reply to a range over its key; ConfigError for a record that cannot be trusted."""
    if not kvs:
        return Epoch()
    stored = kvs[0].value
    try:
        raw = json.loads(stored[:RECORD_MAX_BYTES])
        number = raw["epoch"] if raw["v"] == FORMAT else None
    except (ValueError, TypeError, KeyError, RecursionError):
        number = None
    if type(number) is not int or not 0 <= number <= EPOCH_MAX:
        raise ConfigError(
            field=kvs[0].key.decode("utf-8", "replace"),
            value=stored[:60].decode("utf-8", "replace"),
            expected=f"an epoch record of format {FORMAT}; no token is safe without it, so repair it before going on",
        )
    return Epoch(number, stored)
