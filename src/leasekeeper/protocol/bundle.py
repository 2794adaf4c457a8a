"""The lines of an exported run: everything that was recorded of it, in one file that can be verified without etcd.

======================================================  ==============================================================
line                                                    what it holds
======================================================  ==============================================================
``{"exported_at":…,"format":1,"gen":…,"head":…,``       the first: which run this is, and the stored text of its
``"leasekeeper":"export","meta":…,"ns":…,"run":…}``     ``meta`` and ``head``; ``exported_at`` in ms since 1970
``{"body":…,"hash":…,"key":…,"sig":…}``                 a record, byte by byte as it is stored
``{"blob":"<sha256>","data":"<base64>"}``               a large value, after the record that names it
``{"damaged":"<base64>","seq":…}``                      what stood where a record should be and cannot be a line
``{"footer":{"body":…,"hash":…,"key":…,"sig":…}}``      the last: a signed checkpoint ``{count, hash, seq, sha256, v}``
======================================================  ==============================================================

``seq`` and ``hash`` are those of the last record, ``count`` is how many records there are, and ``sha256`` is of every byte before
the footer's line. The footer is sealed as a record is, under a prefix of its own. So it shows what the chain alone cannot: that
nothing was cut off since it was exported, and that the header and the values are those that were written.

Each line is canonical JSON and ends in a line feed.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasekeeper.canonical import canonical
from leasekeeper.errors import ConfigError
from leasekeeper.protocol.limits import VALUE_MAX
from leasekeeper.protocol.receipt import digest, seal, signed_part, unsealed
from leasekeeper.run_errors import CorruptState
from leasekeeper.schema_errors import SchemaTooNew

if TYPE_CHECKING:
    from leasekeeper.signing import SigningKey

__all__ = ["LINE_MAX", "Blob", "Footer", "Header", "Record", "parse_line", "read_header"]

FORMAT = 1
NAME = "export"
DOMAIN = b"leasekeeper export v1\n"
# The longest line is that of the largest value, in base64 and with what is around it.
LINE_MAX = (VALUE_MAX + 2) // 3 * 4 + 1024

_RECORD = b'{"body":'
_BLOB = b'{"blob":"'
_DAMAGED = b'{"damaged":"'
_FOOTER = b'{"footer":'


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Which run was exported, and when. ``meta`` and ``head`` are stored bytes, empty where there were none."""

    workflow: str
    id: str
    namespace_id: str
    gen: int
    exported_at_ms: int
    meta: bytes = b""
    head: bytes = b""

    def line(self) -> bytes:
        """Its line."""
        fields = {
            "exported_at": self.exported_at_ms,
            "format": FORMAT,
            "gen": self.gen,
            "head": _kept(self.head),
            "leasekeeper": NAME,
            "meta": _kept(self.meta),
            "ns": self.namespace_id,
            "run": {"id": self.id, "wf": self.workflow},
        }
        return canonical(fields, "header", most=LINE_MAX) + b"\n"


@dataclass(frozen=True, slots=True)
class Record:
    """A record's stored bytes. ``seq`` is the number of its place; None where the file does not tell it."""

    seq: int | None
    stored: bytes

    def line(self) -> bytes:
        """Its line: the stored bytes as they are, if they can stand in one."""
        if self.stored.startswith(_RECORD) and b"\n" not in self.stored:
            return self.stored + b"\n"
        fields = {"damaged": base64.b64encode(self.stored).decode(), "seq": self.seq}
        return canonical(fields, "damaged", most=LINE_MAX) + b"\n"


@dataclass(frozen=True, slots=True)
class Blob:
    """A large value, by its SHA-256 in hex. ``data`` is what was read, whether or not it has that digest: see `whole`."""

    digest: str
    data: bytes

    @property
    def whole(self) -> bool:
        """Whether it is what its digest says."""
        return digest(self.data) == self.digest

    def line(self) -> bytes:
        """Its line."""
        fields = {"blob": self.digest, "data": base64.b64encode(self.data).decode()}
        return canonical(fields, "blob", most=LINE_MAX) + b"\n"


@dataclass(frozen=True, slots=True)
class Footer:
    """The signed checkpoint at the end of an export."""

    seq: int
    hash: str
    count: int
    sha256: str
    key_id: str = ""
    signature: str = ""
    message: bytes = b""

    def line(self, key: SigningKey | None) -> bytes:
        """Its line, signed with ``key``; None: not signed."""
        fields = {"count": self.count, "hash": self.hash, "seq": self.seq, "sha256": self.sha256, "v": FORMAT}
        return b'{"footer":%b}\n' % seal(canonical(fields, "footer"), key, DOMAIN)


def read_header(line: bytes) -> Header:
    """The header from the first line, without its line feed; CorruptState for anything else, SchemaTooNew for a newer format."""
    fields = _fields(line, "the header")
    try:
        if fields["leasekeeper"] == NAME and type(fields["format"]) is int and fields["format"] > FORMAT:
            raise SchemaTooNew(schema=NAME, version=fields["format"], reads=FORMAT, where="the header")
        if fields["leasekeeper"] != NAME or fields["format"] != FORMAT:
            raise _corrupt("the header", f"it is no export of format {FORMAT}")
        header = Header(
            workflow=_text(fields["run"]["wf"]),
            id=_text(fields["run"]["id"]),
            namespace_id=_text(fields["ns"]),
            gen=_whole(fields["gen"]),
            exported_at_ms=_whole(fields["exported_at"]),
            meta=_taken(fields["meta"]),
            head=_taken(fields["head"]),
        )
        if header.line() != line + b"\n":
            raise _corrupt("the header", "it is not spelled as it was written")
    except (KeyError, TypeError, ValueError, ConfigError):
        raise _corrupt("the header", "it does not say which run this is") from None
    return header


def parse_line(line: bytes, where: str) -> Record | Blob | Footer:
    """What a later line holds. Whatever is nothing else is taken for a record, so that the chain tells what is wrong with it.

    Raises:
        CorruptState: it begins as a footer, and is none. SchemaTooNew: it is one of a newer format.
    """
    if line.startswith(_BLOB):
        return _blob(line, where)
    if line.startswith(_DAMAGED):
        return _damaged(line, where)
    if line.startswith(_FOOTER):
        return _footer(line[len(_FOOTER) : -1], where) if line.endswith(b"}") else _no_footer(where)
    return Record(None, line)


def _blob(line: bytes, where: str) -> Blob:
    """A large value; one that is not whole stands for a line that is none."""
    try:
        fields = _fields(line, where, {"blob", "data"})
        blob = Blob(_text(fields["blob"]), _bytes_of(fields, "data", where))
        # Base64 has several spellings of the same bytes.
        return blob if blob.line() == line + b"\n" else Blob(blob.digest, b"")
    except (CorruptState, ConfigError, TypeError):
        return Blob("", b"")


def _damaged(line: bytes, where: str) -> Record:
    try:
        fields = _fields(line, where, {"damaged", "seq"})
        seq = fields["seq"]
        if seq is None or (type(seq) is int and seq >= 1):
            return Record(seq, _bytes_of(fields, "damaged", where))
    except CorruptState:
        pass
    return Record(None, line)


def _footer(sealed: bytes, where: str) -> Footer:
    body, key_id, signature = unsealed(sealed, where, "footer of an export", FORMAT)
    if body.keys() != {"count", "hash", "seq", "sha256", "v"} or body["v"] != FORMAT:
        _no_footer(where)
    if type(body["count"]) is not int or type(body["seq"]) is not int:
        _no_footer(where)
    if not isinstance(body["hash"], str) or not isinstance(body["sha256"], str):
        _no_footer(where)
    return Footer(
        seq=body["seq"],
        hash=body["hash"],
        count=body["count"],
        sha256=body["sha256"],
        key_id=key_id,
        signature=signature,
        message=DOMAIN + signed_part(sealed),
    )


def _no_footer(where: str) -> Footer:
    raise _corrupt(where, f"it is no footer of format {FORMAT}")


def _fields(line: bytes, where: str, names: set[str] | None = None) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise _corrupt(where, "it is no JSON") from None
    if not isinstance(fields, dict) or (names is not None and fields.keys() != names):
        raise _corrupt(where, "it is not what it begins as")
    return fields


def _bytes_of(fields: dict[str, Any], name: str, where: str) -> bytes:
    try:
        return base64.b64decode(_text(fields[name]), validate=True)
    except (TypeError, ValueError):
        raise _corrupt(where, f"{name} is no base64") from None


def _kept(stored: bytes) -> str | dict[str, str]:
    """Stored bytes as text; in base64 where they are none, which is damage to be kept as it is."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(stored).decode()}


def _taken(kept: object) -> bytes:
    if isinstance(kept, dict):
        return base64.b64decode(kept["base64"], validate=True)
    return _text(kept).encode()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("no whole number")
    return value


def _corrupt(where: str, why: str) -> CorruptState:
    return CorruptState(f"{where} cannot be trusted: {why}", where=where, why=why)
