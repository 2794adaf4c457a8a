"""A record of who acted when, and the assertion that never two of them did at once.

Write the record from the place that must be exclusive, with the lease in hand::

    history = History(tmp_path / "history.jsonl")     # a file, when several processes act; nothing, when threads do
    with history.acting(lease):
        ...                                            # what only one may do
    assert_exclusive(history, owners=2)

Times are those of ``leasekeeper.clock.boottime``, which all processes of one machine share. A record of one machine is
what this can judge; across machines only the resource can, see `leasekeeper.testing.fenced`.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from leasekeeper.clock import boottime
from leasekeeper.errors import ConfigError

__all__ = ["History", "Span", "assert_exclusive"]

SHOWN_SPANS = 12


class Owner(Protocol):
    """What is recorded of a lease."""

    @property
    def token(self) -> int:
        """The fencing token."""
        ...

    @property
    def claim(self) -> str:
        """The claim's nonce."""
        ...

    @property
    def holder(self) -> str:
        """Who it is, for people to read."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """One owner acted from ``begin_s`` to ``end_s``; both are one moment for a single write."""

    token: int
    claim: str
    begin_s: float
    end_s: float
    holder: str = ""

    @property
    def name(self) -> str:
        """The owner as a failure names it."""
        return f"{self.holder or self.claim[:8]} (token {self.token})"


class History:
    """What owners did, in spans of time; safe to use from several threads.

    With a ``path`` it is a file of JSON lines that any number of processes of this machine write to, each line in one
    step. Without one it lives in this process. What is under way when it is read counts as lasting until then, as long as
    its process lives; a process that was killed in the middle of something is taken to have ended where it began.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path).absolute()
        self._lines: list[str] = []
        self._lock = threading.Lock()

    @contextmanager
    def acting(self, lease: Owner) -> Iterator[None]:
        """The block is something that only the owner may do."""
        number = uuid.uuid4().hex
        self._write(lease, number, begin_s=boottime())
        try:
            yield
        finally:
            self._write(lease, number, end_s=boottime())

    def acted(self, lease: Owner) -> None:
        """The owner did something at this very moment, a single write for instance."""
        now_s = boottime()
        self._write(lease, uuid.uuid4().hex, begin_s=now_s, end_s=now_s)

    def spans(self) -> list[Span]:
        """All that is recorded, by the time at which it began."""
        found: dict[str, dict[str, object]] = {}
        for line in self._read():
            part = json.loads(line)
            found.setdefault(part["span"], {}).update(part)
        now_s = boottime()
        return sorted((_span(record, now_s) for record in found.values()), key=lambda span: (span.begin_s, span.end_s))

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans())

    def _write(self, lease: Owner, number: str, **times: float) -> None:
        facts = {"span": number, "token": lease.token, "claim": lease.claim, "holder": lease.holder, "pid": os.getpid()}
        line = json.dumps({**facts, **times})
        with self._lock:
            if self._path is None:
                self._lines.append(line)
                return
            # One write of one line to a file that is open for appending: lines of several processes do not mix.
            with self._path.open("ab", buffering=0) as file:
                file.write(line.encode() + b"\n")

    def _read(self) -> list[str]:
        with self._lock:
            if self._path is None:
                return list(self._lines)
            # A process that was killed may have left half a line, which is the last it wrote.
            text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
            return [line for line in text.splitlines() if line.endswith("}")]


def assert_exclusive(history: Iterable[Span], *, owners: int = 1) -> None:
    """No two owners acted at the same time, and none with a smaller token after one with a larger one.

    Args:
        history: a `History`, or spans of your own.
        owners: how many different owners the history must show at least, so that a test in which nothing happened fails.

    Raises:
        AssertionError: with the two spans that contradict each other, and what was recorded around them.
    """
    __tracebackhide__ = True
    spans = sorted(history, key=lambda span: (span.begin_s, span.end_s))
    seen = {(span.token, span.claim) for span in spans}
    if owners < 1:
        raise ConfigError(field="owners", value=owners, expected="1 or more")
    if len(seen) < owners:
        raise AssertionError(
            f"the history shows {len(seen)} of the {owners} owners that it must show, in {len(spans)} spans:"
            " nothing was proven"
        )
    # Of those that began before, the one that ends last is the one that any later one must not meet.
    last: Span | None = None
    for span in spans:
        if last is not None:
            complaint = _complaint(last, span)
            if complaint:
                raise AssertionError(f"{complaint}\n{_table(spans, last, span)}")
        if last is None or span.end_s >= last.end_s:
            last = span


def _complaint(earlier: Span, later: Span) -> str:
    """What is wrong with one span after another; empty when nothing is."""
    if (earlier.token, earlier.claim) == (later.token, later.claim):
        return ""
    if earlier.end_s > later.begin_s:
        both_s = min(earlier.end_s, later.end_s) - later.begin_s
        return f"two owners acted at once, for {both_s:.3f} s: {earlier.name} and {later.name}"
    if earlier.token == later.token:
        return f"two owners acted with one token: {earlier.name} and then {later.name}, of another claim"
    if earlier.token > later.token:
        return f"an older owner acted after a newer one: {later.name} after {earlier.name}"
    return ""


def _span(record: dict[str, object], now_s: float) -> Span:
    begin_s, end_s = record["begin_s"], record.get("end_s")
    assert isinstance(begin_s, float)
    if not isinstance(end_s, float):
        end_s = now_s if _lives(record["pid"]) else begin_s
    return Span(int(str(record["token"])), str(record["claim"]), begin_s, end_s, str(record["holder"]))


def _lives(pid: object) -> bool:
    assert isinstance(pid, int)
    if pid == os.getpid():
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True


def _table(spans: list[Span], earlier: Span, later: Span) -> str:
    """The spans around the two, with an arrow at each of them; times count from the first of the history."""
    at = spans.index(later)
    start = max(0, min(spans.index(earlier), at - SHOWN_SPANS // 2))
    shown = spans[start : start + SHOWN_SPANS]
    shown += [span for span in (later,) if span not in shown]
    zero_s = spans[0].begin_s
    lines = ["     begin_s       end_s  owner"]
    for span in shown:
        arrow = "->" if span is earlier or span is later else "  "
        lines.append(f"{arrow} {span.begin_s - zero_s:9.3f}   {span.end_s - zero_s:9.3f}  {span.name}")
    left_out = len(spans) - len(shown)
    return "\n".join([*lines, f"   ({left_out} more spans)"] if left_out else lines)
