"""What an anchor remembers of a run, and the line of text that keeps it: in a file, or in what a syslog server has collected.

A line is one JSON object whose last member is the SHA-256 of what stands before it, so that a changed line shows by itself. In
a file it also carries the sum of the line before it. Both need no key, and so neither keeps out somebody who may write the
file and knows the format; they show accidents and unskilled edits, and for the rest the file has to be where the writer of etcd
cannot change it.

A line may say that an operator has given up what was remembered: the run goes on from an earlier record, or, with **record 0**,
which no run has, it was gone from etcd as a whole. Nothing remembered of it before such a line holds.

A piece that was left by a writer which died in the middle is told from a changed line by its end: no part of a line but the
whole of it ends in a sum. Pieces are skipped wherever they stand. That hides nothing: the lines after one say by their sums
which line went before.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from leasekeeper.errors import ConfigError
from leasekeeper.protocol.receipt import FIRST_PREV
from leasekeeper.run_errors import CorruptState
from leasekeeper.schema_errors import SchemaTooNew

__all__ = [
    "BEGIN",
    "FIRST",
    "LINE_MAX",
    "WHY_MAX",
    "Anchored",
    "Line",
    "anchored_in",
    "changed",
    "check_anchored",
    "parse_line",
    "read_line",
    "standing",
    "write_line",
]

VERSION = 1
# What the first line of a file has in place of the sum of the one before it.
FIRST = "0" * 64
# Of one line in bytes: what every receiver of syslog should take (RFC 5424, 6.1), less room for the header.
LINE_MAX = 1536
# Characters of why something was given up for lost: enough to find the rest of the evidence.
WHY_MAX = 300
# The end of the year 9999, which is as far as timestamps go.
AT_MAX_MS = 253_402_300_799_999

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_TAIL = re.compile(rb',"sum":"([0-9a-f]{64})"\}\Z')
_PREV = re.compile(rb'"prev":"([0-9a-f]{64}|)"')
# Inside of a JSON text a quotation mark has a backslash before it, so nothing in a run's name can look like one of these.
BEGIN = b'{"at":'
_END = re.compile(rb',"sum":"[0-9a-f]{64}"\}')


@dataclass(frozen=True, slots=True)
class Anchored:
    """The head of a run: record ``seq`` of generation ``gen`` of ``run`` (``workflow/id``) had this hash.

    ``at_ms`` is the time of the record, in milliseconds since 1970. ``back``: an operator has accepted that the run goes on from
    here, whatever was remembered of it before: etcd had been set back. Then ``seq`` may be 0, and ``hash`` what the first record
    names as the one before it: nothing at all was left of the run. ``why`` is what the operator rests that on, as far as there is
    room for it.
    """

    run: str
    gen: int
    seq: int
    hash: str
    at_ms: int
    back: bool = False
    why: str = ""

    @property
    def is_nothing(self) -> bool:
        """Whether it says that nothing remembered before it holds, so that nothing is remembered."""
        return self.seq == 0


@dataclass(frozen=True, slots=True)
class Line:
    """One whole line: the sum of the one before it ("" outside of a file), its own sum, and what they are made of."""

    prev: str
    sum: str
    body: bytes

    def is_of(self, run: str, gen: int | None = None) -> bool:
        """Whether it is about this generation of a run, or any, without reading all of it."""
        return _run_member(run) in self.body and (gen is None or b'"gen":%d,' % gen in self.body)

    @property
    def anchored(self) -> Anchored:
        """What it says. CorruptState when that is nothing that this program writes, SchemaTooNew when a newer one wrote it."""
        try:
            read = json.loads(self.body + b"}")
            if type(read["v"]) is int and read["v"] > VERSION:
                raise SchemaTooNew(schema="anchor line", version=read["v"], reads=VERSION, where="anchor line")
            if type(read["v"]) is not int or read["v"] != VERSION:
                raise changed("anchor line", f"is of format {read['v']!r}; this program reads {VERSION}")
            found = Anchored(read["run"], read["gen"], read["seq"], read["hash"], read["at"], read.get("back", False))
            found = replace(found, why=read.get("why", ""))
            check_anchored(found)
        except (ValueError, KeyError, TypeError, ConfigError) as error:
            raise changed("anchor line", f"cannot be read: {type(error).__name__}") from error
        return found


def changed(where: str, why: str) -> CorruptState:
    """That an anchor's file, or a log of its messages, cannot be trusted: what to do about it is not what it is in etcd."""
    return CorruptState(f"{where}: {why}: find out by whom, and put back a copy that is whole", where=where, why=why)


def check_anchored(anchored: Anchored) -> None:
    """ConfigError when this is nothing that can be remembered."""
    is_nothing = anchored.back is True and type(anchored.seq) is int and anchored.is_nothing
    for field in ("gen", "seq") if not is_nothing else ("gen",):
        _check(field, getattr(anchored, field), lambda value: type(value) is int and value > 0, "an integer from 1 on")
    at_ms = anchored.at_ms
    _check("at_ms", at_ms, lambda value: type(value) is int and 0 <= value <= AT_MAX_MS, "milliseconds since 1970")
    _check("hash", anchored.hash, lambda value: _DIGEST.match(value) is not None, "64 hex digits in lower case")
    if is_nothing:
        _check("hash", anchored.hash, lambda value: value == FIRST_PREV, "64 zeros with record 0")
    _check("back", anchored.back, lambda value: type(value) is bool, "True or False")
    _check("why", anchored.why, lambda value: type(value) is str, "text")
    _check("run", anchored.run, lambda value: type(value) is str and value != "", "workflow/id")


def _check(field: str, value: Any, holds: Callable[[Any], bool], expected: str) -> None:
    try:
        held = holds(value)
    except TypeError:
        held = False
    if not held:
        raise ConfigError(field=field, value=value, expected=expected)


def write_line(anchored: Anchored, prev: str = "") -> bytes:
    """One line without its end: ASCII, without blanks or control characters of its own.

    ``why`` is cut where it is too long. ConfigError when the rest of it is, or it is nothing that can be remembered.
    """
    check_anchored(anchored)
    line = _written(anchored, prev, "")
    if len(line) > LINE_MAX:
        expected = f"a name and numbers that fit into a line of {LINE_MAX} bytes, not {len(line)}"
        raise ConfigError(field="run", value=anchored.run, expected=expected)
    why = _fitting(anchored.why[:WHY_MAX], LINE_MAX - len(line))
    return _written(anchored, prev, why) if why else line


def _written(anchored: Anchored, prev: str, why: str) -> bytes:
    members: dict[str, Any] = {"at": anchored.at_ms, "gen": anchored.gen, "hash": anchored.hash, "prev": prev}
    if anchored.back:
        members["back"] = True
    if why:
        members["why"] = why
    begin = json.dumps(members, separators=(",", ":"))[:-1].encode()
    body = begin + b"," + _run_member(anchored.run) + b'"seq":%d,"v":%d' % (anchored.seq, VERSION)
    return body + b',"sum":"%s"}' % _sum(body).encode()


def _fitting(why: str, room: int) -> str:
    """As much of the text, from its beginning, as takes at most so many bytes as a member of its own."""
    room -= len(',"why":""')
    for count, character in enumerate(why):
        room -= len(json.dumps(character)) - 2
        if room < 0:
            return why[:count]
    return why


def read_line(line: bytes) -> Line | None:
    """What one line has, without its end; None when it is a piece of one, or something else.

    CorruptState when it is whole and was changed.
    """
    tail = _TAIL.search(line)
    # What the power cut off may read as zeros.
    if tail is None or b"\0" in line:
        return None
    body, told = line[: tail.start()], tail[1].decode()
    prev = _PREV.search(body)
    if _sum(body) != told or prev is None:
        raise changed("anchor line", "is not as it was written")
    return Line(prev[1].decode(), told, body)


def parse_line(text: str | bytes) -> Anchored | None:
    """What one line of a collected log remembers, whatever its collector has put around the message; None: nothing.

    The message itself must have been kept as it was sent, not, for instance, with its quotation marks escaped.

    Raises:
        CorruptState: the line is one of ours and was changed.
    """
    line = _found(text)
    return None if line is None else line.anchored


def anchored_in(lines: Iterable[str | bytes]) -> Iterator[Anchored]:
    """All that a file of a `FileAnchor`, or a log that a syslog server has collected, remembers, oldest first.

    Lines from files are checked for gaps, too; where several files or logs follow one another, each begins anew. Reads as it
    goes: nothing is kept but one line. What was cut off at the end cannot show. What of it holds, `standing` tells.

    Raises:
        CorruptState: a line was changed, removed, added or moved; it is named by its number.
        SchemaTooNew: a newer program has written it.
    """
    before = FIRST
    for number, text in enumerate(lines, 1):
        try:
            line = _found(text)
            if line is None:
                continue
            if line.prev not in ("", FIRST, before):
                raise changed("anchor line", "does not follow the line before it")
            before = line.sum if line.prev else before
            found = line.anchored
        except CorruptState as error:
            raise changed(f"anchor line {number}", error.why) from None
        except SchemaTooNew as error:
            where = f"anchor line {number}"
            raise SchemaTooNew(schema=error.schema, version=error.version, reads=error.reads, where=where) from None
        yield found


def standing(remembered: Iterable[Anchored], run: str, gen: int) -> list[Anchored]:
    """What is remembered of a generation of a run and holds: without what an operator has given up for lost."""
    found: dict[int, Anchored] = {}
    for each in remembered:
        if (each.run, each.gen) == (run, gen):
            if each.back:
                found = {seq: other for seq, other in found.items() if seq < each.seq}
            if not each.is_nothing:
                found[each.seq] = each
    return list(found.values())


def _found(text: str | bytes) -> Line | None:
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    end = _END.search(raw)
    begin = -1 if end is None else raw.rfind(BEGIN, 0, end.start())
    return None if end is None or begin < 0 else read_line(raw[begin : end.end()])


def _run_member(run: str) -> bytes:
    return b'"run":%s,' % json.dumps(run).encode()


def _sum(body: bytes) -> str:
    return hashlib.sha256(b"leasekeeper anchor v1\n" + body).hexdigest()
