"""A run as a file: written from etcd, and from then on verified and read without it.

The format is that of `leasekeeper.protocol.bundle`: a header, the records byte by byte, the large values that they name, and a
signed footer. Everything here works on a stream, a line at a time, so memory does not grow with the run.

Who verifies needs the file and public keys, and nothing else: no etcd, no private key (an HMAC key excepted, which is both).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from leasekeeper.errors import ConfigError, Misuse
from leasekeeper.protocol.bundle import LINE_MAX, Blob, Footer, Header, Record, parse_line, read_header
from leasekeeper.protocol.chain import ChainCheck
from leasekeeper.protocol.head import read_head
from leasekeeper.protocol.receipt import FIRST_PREV, digest
from leasekeeper.protocol.replay import Replay
from leasekeeper.protocol.verdict import Fault, is_said, sentence
from leasekeeper.run_errors import ILLEGIBLE, CorruptState, ExportKept
from leasekeeper.runs.durable import flush, flush_directory
from leasekeeper.runs.superseding import objection
from leasekeeper.schema_errors import SchemaTooNew

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from leasekeeper.protocol.chain import Point, Ring
    from leasekeeper.protocol.verdict import BadKind, Verdict
    from leasekeeper.run_records import Receipt
    from leasekeeper.signing import SigningKey

__all__ = [
    "Blob",
    "Export",
    "Footer",
    "Header",
    "Record",
    "read_export",
    "state_at",
    "verify_export",
    "write_export",
]


# ---------------------------------------------------------------- writing


def write_export(
    target: BinaryIO | str | os.PathLike[str],
    header: Header,
    lines: Iterable[Record | Blob],
    key: SigningKey | None = None,
) -> Footer:
    """Write a run's export, and return its footer.

    A file is there as a whole or not at all: it is written under another name, flushed and then renamed. An older export of that
    name is replaced by a good one of the same run that has all that it has, and by nothing else. Only its owner can read it:
    results may be secrets.

    Args:
        target: a path, or a binary stream that stays open.
        header: which run this is; its ``meta`` and ``head`` read no later than the records.
        lines: the records in the order of their numbers, each followed by the large values that it names.
        key: signs the footer. Without one the export cannot show that nothing was cut off, and a verdict with keys says so.

    Raises:
        OSError: it cannot be written; a file that was there before is untouched.
        ExportKept: what is there under that name has what the new one does not have, or is no export; it is untouched.
    """
    if isinstance(target, (str, os.PathLike)):
        with _replacing(Path(target)) as stream:
            return _written(stream, header, lines, key)
    return _written(target, header, lines, key)


def _written(stream: BinaryIO, header: Header, lines: Iterable[Record | Blob], key: SigningKey | None) -> Footer:
    sha256 = hashlib.sha256()
    seq, last, count = 0, FIRST_PREV, 0

    def put(line: bytes) -> None:
        stream.write(line)
        sha256.update(line)

    put(header.line())
    for line in lines:
        if isinstance(line, Record):
            count += 1
            seq = line.seq if line.seq is not None else seq + 1
            last = digest(line.stored)
        put(line.line())
    footer = Footer(seq=seq, hash=last, count=count, sha256=sha256.hexdigest())
    stream.write(footer.line(key))
    return footer


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes this name once the block has ended well, unless what has it now is worth more."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ExportKept(field="target", value=str(path), expected="a regular file, or a new one")
    draft = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            flush(stream.fileno())
        _check_place(path, draft)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    flush_directory(path.parent)


def _check_place(path: Path, draft: Path) -> None:
    try:
        old = path.open("rb")
    except FileNotFoundError:
        return
    with old, draft.open("rb") as new:
        why = objection(new, old, read_export, lambda stream, anchors: verify_export(stream, anchors=anchors))
    if why:
        raise ExportKept(field="target", value=str(path), expected=f"another name: {why}")


# ---------------------------------------------------------------- reading


class Export:
    """An export that is read: ``header``, then its lines by iterating, once, then ``footer``.

    Nothing of what it yields is verified but that each line is one; see `verify_export`.

    Raises:
        CorruptState: the first line is no header, or while iterating: a line is longer than any can be, or is damaged.
    """

    __slots__ = ("_footer", "_read_on", "_sha256", "_stream", "count", "ended", "header", "number")

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._sha256 = hashlib.sha256()
        self._footer: Footer | None = None
        self.number = 0
        self.count = 0
        self.ended = False
        first = self._next_line()
        self.header: Header = read_header(first.removesuffix(b"\n"))
        self._sha256.update(first)

    @property
    def footer(self) -> Footer:
        """The footer, once all lines were read.

        Raises:
            Misuse: they were not yet.
            CorruptState: there is none: the file was cut off.
        """
        if self._footer is not None:
            return self._footer
        if not self.ended:
            raise Misuse("the footer is the last line: iterate over the export first")
        raise _corrupt("the export", "it ends without its footer: it was cut off")

    @property
    def sha256(self) -> str:
        """SHA-256 of what was read so far, the footer's line apart."""
        return self._sha256.hexdigest()

    def __iter__(self) -> Iterator[Record | Blob]:
        while line := self._next_line():
            if self._footer is not None:
                raise _corrupt(self._where, "it stands behind the footer")
            if not line.endswith(b"\n"):
                break
            found = parse_line(line[:-1], self._where)
            if isinstance(found, Footer):
                self._footer = found
                continue
            self._sha256.update(line)
            self.count += isinstance(found, Record)
            yield found
        self.ended = True

    @property
    def _where(self) -> str:
        return f"line {self.number}"

    def _next_line(self) -> bytes:
        self.number += 1
        line = self._stream.readline(LINE_MAX + 1)
        if len(line) > LINE_MAX:
            raise _corrupt(self._where, f"it is longer than {LINE_MAX} bytes")
        return line


def read_export(stream: BinaryIO) -> Export:
    """An export from a binary stream: its header is read, the rest by iterating over it.

    Raises:
        CorruptState: it does not begin with the header of an export. SchemaTooNew: of one that a newer program wrote.
    """
    return Export(stream)


# ---------------------------------------------------------------- verifying


def verify_export(
    stream: BinaryIO,
    ring: Ring | None = None,
    *,
    anchors: Iterable[Point] = (),
    namespace_id: str | None = None,
    run: tuple[str, str] | None = None,
    gen: int | None = None,
) -> Verdict:
    """How far an export can be believed, by itself and the keys that are given.

    Never raises for what the file holds: that is what the verdict is about. ``bad`` is None where what is wrong is the header or
    the footer rather than a record.

    Args:
        stream: binary, read once.
        ring: the keys to believe, as `leasekeeper.runs.signer.verifying_ring` makes it. None: signatures are not looked at.
        anchors: numbers and hashes of records that somebody remembers.
        namespace_id: the namespace that the records must come from; None: that of the first record.
        run: ``(workflow, id)``; None: those of the first record.
        gen: the run's generation; None: that of the first record.
    """
    check = ChainCheck(anchors=anchors, ring=ring, namespace_id=namespace_id, run=run, gen=gen)
    return _verified(stream, check, lambda receipt: None)


def state_at(stream: BinaryIO, seq: int, ring: Ring | None = None) -> dict[str, Any]:
    """What a run was when record ``seq`` was its last: ``status``, ``checkpoints``, ``phases`` and ``steps``.

    Args:
        stream: an export, binary, read once.
        seq: the number of a record; 0: before the first.
        ring: the keys to believe. None: signatures are not looked at.

    Raises:
        ConfigError: there is no such record.
        CorruptState: the export cannot be believed up to that record.
    """
    if type(seq) is not int or seq < 0:
        raise ConfigError(field="seq", value=seq, expected="the number of a record, or 0")
    replay = Replay()

    def fold(receipt: Receipt) -> None:
        if receipt.seq <= seq:
            replay.add(receipt)

    verdict = _verified(stream, ChainCheck(ring=ring), fold)
    if verdict.verified < seq:
        if verdict.kind is None:
            raise ConfigError(field="seq", value=seq, expected=f"at most {verdict.verified}, the last record's number")
        raise _corrupt("the export", verdict.why)
    return replay.state()


def _verified(stream: BinaryIO, check: ChainCheck, each: Callable[[Receipt], None]) -> Verdict:
    try:
        export = Export(stream)
    except ILLEGIBLE as error:
        return _of_the_file(check.close(), _kind(error), f"the header cannot be read: {error.why}")
    head, at_head = _head_of(export.header), FIRST_PREV
    broken: CorruptState | SchemaTooNew | None = None
    receipts = _fed(export, check)
    while True:
        try:
            receipt = next(receipts, None)
        except ILLEGIBLE as error:
            broken = error
            break
        if receipt is None:
            break
        each(receipt)
        if isinstance(head, tuple) and head[0] == receipt.seq:
            at_head = receipt.hash
    return _by_the_file(export, check, broken) or _by_the_header(export.header, check, head, at_head)


def _fed(export: Export, check: ChainCheck) -> Iterator[Receipt]:
    """Feeds the check, and yields each record that could follow those before it."""
    for line in export:
        if isinstance(line, Blob):
            if not line.whole:
                check.accuse_last("a large value behind it is not what its digest says")
            continue
        before = check.last
        check.feed(line.seq, line.stored)
        if check.last is not None and check.last is not before:
            yield check.last


def _by_the_file(export: Export, check: ChainCheck, broken: CorruptState | SchemaTooNew | None) -> Verdict | None:
    """What is wrong with the records by themselves, or with the file by what its footer says; None: nothing."""
    verdict = check.close()
    if verdict.kind is not None:
        return verdict
    if broken is not None:
        return _of_the_file(verdict, _kind(broken), f"{broken.where} of the export cannot be read: {broken.why}")
    try:
        footer = export.footer
    except ILLEGIBLE as error:
        return _cut_off(verdict, error.why)
    wrong = check.signature_fault(footer.message, footer.key_id, footer.signature)
    if wrong is not None:
        return _of_the_file(verdict, wrong[0], f"the footer {is_said(wrong[0])}: {wrong[1]}")
    verdict = check.close(footer=(footer.seq, footer.hash))
    if verdict.kind is not None:
        return verdict
    if (footer.seq, footer.count, footer.sha256) != (verdict.verified, export.count, export.sha256):
        return _of_the_file(verdict, "changed", "the footer tells of another header, or of other values or records")
    return None


def _by_the_header(header: Header, check: ChainCheck, head: Point | Fault, at_head: str) -> Verdict:
    """The verdict on a file that is as it was written: whether the run was whole when it was exported."""
    verdict, last = check.close(), check.last
    if isinstance(head, Fault):
        return _of_the_file(verdict, head.kind, head.why) if last is not None or header.head else verdict
    if last is not None and last.namespace_id != header.namespace_id:
        return _of_the_file(verdict, "other environment", "the header names another namespace than the records")
    if last is not None and (last.workflow, last.id, last.gen) != (header.workflow, header.id, header.gen):
        return _of_the_file(verdict, "other run", "the header names another run or generation than the records")
    if head[0] < verdict.verified:
        before = replace(verdict, verified=head[0], hash=at_head)
        return _cut_off(before, f"the head was set back: it ends at record {head[0]}")
    return check.close(head=head)


def _head_of(header: Header) -> Point | Fault:
    """The number and hash that the head remembers, or what is wrong with the head."""
    if not header.head:
        return Fault(0, "corrupt", "the run had no head when it was exported")
    try:
        head = read_head(header.head, "the head")
    except SchemaTooNew as error:
        return Fault(0, "newer", f"the head when the run was exported: {error.why}")
    except CorruptState as error:
        return Fault(0, "corrupt", f"the head was damaged when the run was exported: {error.why}")
    return head.seq, head.hash


def _kind(error: CorruptState | SchemaTooNew) -> BadKind:
    return "newer" if isinstance(error, SchemaTooNew) else "corrupt"


def _cut_off(verdict: Verdict, why: str) -> Verdict:
    fault = Fault(verdict.verified + 1, "truncated", f"record {verdict.verified + 1} {is_said('truncated')}: {why}")
    said = sentence(verdict.verified, fault, signed=verdict.signed, complete=False)
    return replace(verdict, bad=fault.bad, kind=fault.kind, complete=False, why=said)


def _of_the_file(verdict: Verdict, kind: BadKind, why: str) -> Verdict:
    said = sentence(verdict.verified, Fault(0, kind, why), signed=verdict.signed, complete=False)
    return replace(verdict, bad=None, kind=kind, complete=False, why=said)


def _corrupt(where: str, why: str) -> CorruptState:
    return CorruptState(f"{where} cannot be trusted: {why}", where=where, why=why)
