"""An anchor that is a file: one line for each head that it was given, only ever appended to.

Theory of operation. A line is appended by one write, under the file's lock, to a file that is open for appending, and is flushed
before anybody relies on it. Nothing that was written is ever taken back, so the file may carry the system's append-only
attribute (``chattr +a``). A writer that dies in the middle leaves a piece without an end; the next one ends that line and
goes on below it (see `leasekeeper.runs.anchored`). What an anchor knows is read from the file each time, from its end
backwards to the last line about the run that is asked for: cheap for a run that was there lately, and once through the whole
file for one that is new. Nothing is kept in memory, so forks, threads and other processes see the same.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from leasekeeper.errors import ConfigError, Unavailable
from leasekeeper.protocol.audit import set_back
from leasekeeper.run_errors import AnchorSkewed, CorruptState
from leasekeeper.runs.anchored import FIRST, Anchored, Line, changed, check_anchored, read_line, write_line
from leasekeeper.runs.durable import flush, flush_directory
from leasekeeper.runs.within import Within

if sys.platform != "win32":
    import fcntl

__all__ = ["FileAnchor"]

TIMEOUT_S = 10.0
# By how much the clocks of two machines may differ before a time is taken for wrong.
SKEW_S = 60.0
BLOCK = 64 * 1024
LOCK_POLL_S = 0.005
APPENDING = os.O_RDWR | os.O_APPEND
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_FOR_GOOD = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENOENT)


class _End(NamedTuple):
    """The end of the file: the last line about the run that was looked for, the sum of the last one, and whether it is ended."""

    found: Anchored | None
    sum: str
    ended: bool


class FileAnchor:
    """Remembers heads in a file of JSON lines; see `leasekeeper.runs.anchor.Anchor` for what an anchor is.

    Guarantees that a line which was remembered stays, also over a power cut as far as the disk tells the truth, and that a line
    which was changed, removed or moved is found when the file is read back over it. Any number of threads and processes
    may share the file; of machines only as far as its file system has locks (``flock``) that reach them. What it cannot show is
    a tail that was cut off, or a file that was written anew by somebody who knows the format: keep it where whoever may
    write to etcd cannot. It grows by about 300 bytes for each record; begin another file with a new generation of runs.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout_s: float = TIMEOUT_S,
        skew_s: float = SKEW_S,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Use the file ``path``, which is made on first use, readable by its owner alone.

        ``timeout_s`` bounds each call; ``skew_s`` is by how much times may be ahead of this machine's clock, or behind the last
        one of their run; ``now_s`` is that clock, in seconds since 1970.

        Raises:
            ConfigError: the file is none, or others may write it; or a value is wrong.
            Unavailable: the file system does not answer.
        """
        if sys.platform == "win32":
            raise ConfigError(field="path", value=str(path), expected="a system that has flock, which Windows has not")
        if not skew_s >= 0:
            raise ConfigError(field="skew_s", value=skew_s, expected="seconds, 0 or more")
        self._path = Path(path).absolute()
        self._skew_ms = round(skew_s * 1000)
        self._now_s = now_s
        self._within = Within(timeout_s, f"anchor {self._path}")
        # This object has seen the file, so that a missing one is a loss; and its name has been flushed.
        self._seen = self._named = False
        self._within("open", self._look)

    @property
    def file(self) -> str:
        """The path of the file, absolute."""
        return str(self._path)

    def __repr__(self) -> str:
        return f"FileAnchor({str(self._path)!r})"

    def remember(self, run: str, gen: int, seq: int, hash: str, at_ms: int) -> None:  # noqa: A002 - the record's own word
        """See `Anchor.remember`. The same again changes nothing.

        Raises:
            RunRewound: the file remembers a later record of this generation, or another one of this number.
            AnchorSkewed: ``at_ms`` is in the future, or before the last one of this generation, by more than the skew allowed.
            CorruptState: the file was changed, or is gone.
            ConfigError: a value is wrong, or this process may not write the file, or others may.
            Unavailable: not for now; whether it is remembered is not known, so say it again.
        """
        head = Anchored(run, gen, seq, hash, at_ms)
        check_anchored(head)
        ahead_ms = at_ms - round(self._now_s() * 1000)
        if ahead_ms > self._skew_ms:
            raise self._skewed(head, f"is {ahead_ms} ms ahead of this machine's clock")
        write_line(head, FIRST)  # says now if it is too long
        self._within("remember", lambda: self._remember(head))

    def accept(self, run: str, gen: int, seq: int, hash: str, at_ms: int, why: str = "") -> None:  # noqa: A002 - as above
        """See `Anchor.accept`. Errors as for `remember`, apart from RunRewound."""
        head = Anchored(run, gen, seq, hash, at_ms, back=True, why=why)
        write_line(head, FIRST)  # says now if it cannot be
        self._within("accept", lambda: self._remember(head))

    def last(self, run: str, gen: int) -> Anchored | None:
        """See `Anchor.last`. Needs no right to write. CorruptState, ConfigError and Unavailable as for `remember`."""
        return self._within("last", lambda: self._last(run, gen))

    def generations(self, run: str) -> tuple[int, ...]:
        """See `Anchor.generations`. Reads the whole file; errors as for `last`."""
        return self._within("generations", lambda: self._generations(run))

    # ------------------------------------------------------------ on a thread of its own

    def _look(self) -> None:
        with self._telling("read"):
            fd = self._open(os.O_RDONLY)
            if fd is not None:
                os.close(fd)

    def _last(self, run: str, gen: int) -> Anchored | None:
        with self._reading() as fd:
            found = self._end(fd, run, gen).found if fd is not None else None
            return None if found is None or found.is_nothing else found

    def _generations(self, run: str) -> tuple[int, ...]:
        with self._reading() as fd:
            last: dict[int, Anchored] = {}
            for line in self._lines(fd) if fd is not None else ():
                if line.is_of(run):
                    last.setdefault(line.anchored.gen, line.anchored)
            return tuple(sorted(gen for gen, known in last.items() if not known.is_nothing))

    def _remember(self, head: Anchored) -> None:
        with self._telling("write"), self._locked() as fd:
            end = self._end(fd, head.run, head.gen)
            if end.found is None or self._goes_on(end.found, head):
                self._append(fd, write_line(head, end.sum), ended=end.ended)
            # Also where it was there: whoever wrote it may have been killed before it was flushed.
            flush(fd)
            if not self._named:
                flush_directory(self._path.parent)
                self._named = True

    def _goes_on(self, known: Anchored, head: Anchored) -> bool:
        """Whether ``head`` comes after what is known; False when it is just that."""
        if (head.seq, head.hash) == (known.seq, known.hash):
            return False
        if head.back:
            return True
        if head.seq < known.seq:
            raise set_back(head.run, head.seq, known.seq, (str(self._path),))
        if head.seq == known.seq:
            raise set_back(head.run, head.seq, known.seq, (str(self._path),))
        back_ms = known.at_ms - head.at_ms
        # Record 0 is none, and so its time is no record's: the operator's clock must not keep the run from beginning again.
        if back_ms > self._skew_ms and not known.is_nothing:
            raise self._skewed(head, f"is {back_ms} ms before that of record {known.seq}", known.hash)
        return True

    def _append(self, fd: int, line: bytes, *, ended: bool) -> None:
        data = (b"" if ended else b"\n") + line + b"\n"
        written = os.write(fd, data)
        if written != len(data):
            # A piece now, which the next line goes below.
            raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes could be written")

    # ------------------------------------------------------------ reading

    def _end(self, fd: int, run: str, gen: int) -> _End:
        """Read from the end to the last line of a run."""
        last = ""
        size = os.fstat(fd).st_size
        for line in self._lines(fd, size):
            last = last or line.sum
            if line.is_of(run, gen):
                return _End(line.anchored, last, _is_ended(fd, size))
        return _End(None, last or FIRST, _is_ended(fd, size))

    def _lines(self, fd: int, size: int | None = None) -> Iterator[Line]:
        """The whole lines from the end on; CorruptState when one is not the one that the next one follows."""
        follower: str | None = None
        for at, raw in _backwards(fd, os.fstat(fd).st_size if size is None else size, self._path):
            line = self._line(raw, at)
            if line is None:
                continue
            if follower is not None and line.sum != follower:
                raise changed(self._place(at), "a line after it was added, removed or moved")
            follower = line.prev
            yield line
        if follower not in (None, FIRST):
            raise changed(self._place(0), "lines are missing before the first one")

    def _line(self, raw: bytes, at: int) -> Line | None:
        try:
            return read_line(raw)
        except CorruptState as error:
            raise changed(self._place(at), error.why) from None

    def _place(self, at: int) -> str:
        return f"anchor {self._path}, line at byte {at}"

    # ------------------------------------------------------------ the file

    @contextmanager
    def _telling(self, operation: str) -> Iterator[None]:
        """Make public errors of the system's."""
        try:
            yield
        except OSError as error:
            if error.errno in _FOR_GOOD:
                expected = f"a file that this process may {operation} ({error.strerror})"
                raise ConfigError(field="path", value=str(self._path), expected=expected) from error
            told = f"anchor {self._path}: {operation}: {error.strerror or error}"
            raise Unavailable(told, operation=operation, detail=str(error)) from error

    @contextmanager
    def _reading(self) -> Iterator[int | None]:
        """The file, open for reading; None when there is none. What somebody appends meanwhile is behind its end, or a piece."""
        with self._telling("read"):
            fd = self._open(os.O_RDONLY)
            try:
                yield fd
            finally:
                if fd is not None:
                    os.close(fd)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The file, open for appending, which nobody else appends to meanwhile."""
        until = time.monotonic() + self._within.timeout_s
        while True:
            fd = self._open(APPENDING)
            if fd is None:
                fd = self._open(APPENDING | os.O_CREAT)
                assert fd is not None
            try:
                self._lock(fd, until)
                if self._is_in_place(fd):
                    yield fd
                    return
            finally:
                # Not left to closing: a child that was forked just now has the lock as well.
                fcntl.flock(fd, fcntl.LOCK_UN)
                os.close(fd)

    def _open(self, flags: int) -> int | None:
        """The file, checked; None when there is none, it shall not be made, and this object has never seen one."""
        try:
            # Not blocking: what stands there may be a pipe.
            fd = os.open(self._path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            if flags & os.O_CREAT:
                raise
            if self._seen:
                raise changed(f"anchor {self._path}", "is gone") from None
            return None
        try:
            self._check(os.fstat(fd), writing=flags != os.O_RDONLY)
        except BaseException:
            os.close(fd)
            raise
        self._seen = True
        return fd

    def _check(self, found: os.stat_result, *, writing: bool) -> None:
        """ConfigError when it is no file, or somebody else may change what is written there."""
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISREG(found.st_mode):
            expected = "a file"
        elif mode & WRITABLE_BY_OTHERS:
            expected = f"a file that its owner alone may write, not one of mode {mode:04o}"
        elif writing and found.st_uid not in (0, os.geteuid()):
            expected = f"a file of user {os.geteuid()}, who writes it, or of root, not of user {found.st_uid}"
        else:
            return
        raise ConfigError(field="path", value=str(self._path), expected=expected)

    def _lock(self, fd: int, until: float) -> None:
        while True:
            try:
                return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise TimeoutError(errno.ETIMEDOUT, "somebody else holds its lock") from None
            time.sleep(LOCK_POLL_S)

    def _is_in_place(self, fd: int) -> bool:
        """Whether the open file is still the one of that name: somebody may have put another in its place."""
        mine = os.fstat(fd)
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            raise changed(f"anchor {self._path}", "is gone") from None
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    def _skewed(self, head: Anchored, why: str, known: str = "") -> AnchorSkewed:
        return AnchorSkewed(
            f"clock-skewed anchor: the time of record {head.seq} of {head.run} {why}: set the clocks right (NTP)",
            anchor=str(self._path),
            run=head.run,
            seq=head.seq,
            have=head.hash,
            known=known,
        )


def _backwards(fd: int, size: int, path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file from its end on, each with its place; never more of it in memory than a block and a line."""
    at, rest = size, b""
    while at > 0:
        block = os.pread(fd, min(BLOCK, at), max(0, at - BLOCK))
        if not block:
            raise changed(f"anchor {path}", "was cut while it was read")
        at -= len(block)
        first, *lines = (block + rest).split(b"\n")
        place = at + len(block) + len(rest)
        for line in reversed(lines):
            place -= len(line)
            yield place, line
            place -= 1
        rest = first
        if len(rest) > BLOCK:
            raise changed(f"anchor {path}, line at byte {at}", "is longer than any line")
    yield 0, rest


def _is_ended(fd: int, size: int) -> bool:
    """Whether the last line has its end, so that the next one is not taken for more of it."""
    return size == 0 or os.pread(fd, 1, size - 1) == b"\n"
