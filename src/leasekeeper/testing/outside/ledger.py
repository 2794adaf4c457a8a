"""The ledger of the outside world: what was asked of it and what it did, written down by the world itself.

One JSON object a line, appended and never changed. A request that comes is written down before anything is done with it, an
effect at the moment it happens, an answer before it is sent; requests and effects are on disk before the world goes on. So
the ledger is a witness that depends on nobody's memory of what they did: what it does not show did not happen. The state
of every service is read from it, also after a restart.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

__all__ = ["Count", "Entry", "Lag", "Ledger", "counts", "read_ledger"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line.

    ``received``: a request came. ``applied``: it had an effect. ``answered``: an answer was made; ``lost``: it was
    thrown away on purpose. Lines of one request share ``request``, the number of its first line.

    ``subject`` is what it is about: an order, a recipient, the name of a document, who uses a
    model or, when it does not say, the model. ``key`` is the idempotency key and
    ``token`` the fencing token that came with it, "" for none. ``repeated``: the answer was that of an earlier request
    with the same key, and nothing happened. ``at_ms``: the world's wall clock.
    """

    number: int
    at_ms: int
    kind: Literal["received", "applied", "answered"]
    request: int
    service: str
    effect: str
    subject: str = ""
    key: str = ""
    token: str = ""
    status: int = 0
    lost: bool = False
    repeated: bool = False
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lag:
    """How far behind a replica is: it does not show what is younger than ``ms``, nor the last ``writes`` effects."""

    ms: int = 0
    writes: int = 0


@dataclass(frozen=True, slots=True)
class Count:
    """How often something was asked for, happened, and was answered from an earlier time."""

    received: int = 0
    applied: int = 0
    repeated: int = 0


class Ledger:
    """Appends to one file, and remembers what was applied. Safe for several threads; one process at a time."""

    def __init__(self, path: Path) -> None:
        self._turn = threading.Lock()
        self._applied: dict[str, list[Entry]] = {}
        self._number = 0
        _cut_torn_line(path)
        for entry in read_ledger(path):
            self._remember(entry)
        self._file = path.open("ab", buffering=0)

    def received(self, service: str, effect: str, **details: Any) -> Entry:
        """A request came; on disk when this returns."""
        return self._append("received", 0, service, effect, durable=True, **details)

    def applied(self, cause: Entry, subject: str, data: Mapping[str, Any]) -> Entry:
        """The request had its effect, this very moment; on disk when this returns."""
        return self._append(
            "applied",
            cause.request,
            cause.service,
            cause.effect,
            durable=True,
            subject=subject,
            key=cause.key,
            token=cause.token,
            data=data,
        )

    def answered(self, cause: Entry, status: int, *, lost: bool = False, repeated: bool = False) -> Entry:
        """An answer was made."""
        return self._append(
            "answered",
            cause.request,
            cause.service,
            cause.effect,
            durable=False,  # with the next line that is
            subject=cause.subject,
            key=cause.key,
            token=cause.token,
            status=status,
            lost=lost,
            repeated=repeated,
        )

    def past(self, service: str, lag: Lag | None = None) -> Sequence[Entry]:
        """What was applied at a service, oldest first; with a lag, as a replica would show it."""
        with self._turn:
            entries = list(self._applied.get(service, ()))
        if lag is None:
            return entries
        until_ms = _now_ms() - lag.ms
        seen = entries[: max(0, len(entries) - lag.writes)]
        return [entry for entry in seen if not lag.ms or entry.at_ms <= until_ms]

    def close(self) -> None:
        """Nothing more is written down."""
        self._file.close()

    def _append(
        self,
        kind: Literal["received", "applied", "answered"],
        request: int,
        service: str,
        effect: str,
        *,
        durable: bool,
        **rest: Any,
    ) -> Entry:
        with self._turn:
            number = self._number + 1
            entry = Entry(number, _now_ms(), kind, request or number, service, effect, **rest)
            self._file.write(_line(entry))
            if durable:
                os.fsync(self._file.fileno())
            self._remember(entry)
        return entry

    def _remember(self, entry: Entry) -> None:
        self._number = entry.number
        if entry.kind == "applied":
            self._applied.setdefault(entry.service, []).append(entry)


def read_ledger(path: Path) -> list[Entry]:
    """All whole lines of a ledger, also of one that is being written; [] when there is none yet."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    return [Entry(**json.loads(line)) for line in _whole_lines(content)]


def counts(entries: Iterable[Entry]) -> dict[str, Count]:
    """How often each effect was asked for and happened, by "service.effect"."""
    numbers: dict[str, dict[str, int]] = {}
    for entry in entries:
        one = numbers.setdefault(f"{entry.service}.{entry.effect}", {})
        kind = "repeated" if entry.repeated else entry.kind
        one[kind] = one.get(kind, 0) + 1
    return {
        name: Count(one.get("received", 0), one.get("applied", 0), one.get("repeated", 0))
        for name, one in sorted(numbers.items())
    }


def _line(entry: Entry) -> bytes:
    filled = {name: value for name, value in asdict(entry).items() if value not in ("", False, {}) or name == "number"}
    return json.dumps(filled, separators=(",", ":")).encode() + b"\n"


def _whole_lines(content: bytes) -> Iterator[bytes]:
    whole, _, _ = content.rpartition(b"\n")
    return (line for line in whole.split(b"\n") if line)


def _cut_torn_line(path: Path) -> None:
    """Remove what a killed world had begun to write: nobody was told of it."""
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
