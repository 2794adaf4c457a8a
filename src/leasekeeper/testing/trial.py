"""One trial of a fence: writers with tokens of our choice write to one resource, and every attempt is written down.

Writers are not leases: they are numbers, which is all that a fence sees of an owner. What a trial finds wrong it says as
`Broken`, with the sequence of attempts that shows it.
"""

from __future__ import annotations

import inspect
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from leasekeeper.errors import ConfigError, Misuse, StaleToken, StopWork

__all__ = ["Attempt", "Broken", "Target", "Trial", "Writer"]

Outcome = Literal["accepted", "refused", "failed"]
PLENTY_S = 3600.0
SHOWN_ATTEMPTS = 30


@dataclass(frozen=True, slots=True)
class Writer:
    """An owner as a resource sees it: what a guard or an adapter may ask a lease for, and answers at once."""

    holder: str
    token: int
    claim: str
    name: str = "assert-fenced"

    def check(self, need: float = 0.0) -> int:
        """The token; whether there is authority is not what is on trial."""
        return self.token

    def wait(self, need: float = 0.0, timeout: float | None = None) -> int:
        """The token."""
        return self.token

    def remaining(self) -> float:
        """Plenty."""
        return PLENTY_S


class Store(Protocol):
    """A resource that does more than take writes: what it holds can be read back."""

    def write(self, resource: str, lease: Writer, value: str, /) -> object:
        """Write, or refuse."""
        ...

    def read(self, resource: str, /) -> object:
        """What is there; None before the first write."""
        ...


Write = Callable[[str, Writer, str], object]


@dataclass(slots=True)
class Attempt:
    """One write and what came of it; ``note`` is what a reader of the sequence must know besides."""

    writer: Writer
    value: str
    outcome: Outcome | None = None
    note: str = ""
    error: BaseException | None = None

    def __str__(self) -> str:
        said = self.outcome or "under way"
        cause = f" ({type(self.error).__name__}: {self.error})" if self.outcome == "failed" else ""
        note = f": {self.note}" if self.note else ""
        writer = self.writer
        return f"{writer.holder}, token {writer.token} of claim {writer.claim!r}, writes {self.value!r}: {said}{cause}{note}"


class Broken(Exception):
    """A rule was broken; the text says how."""


@dataclass(frozen=True, slots=True)
class Target:
    """The adapter on trial: how to write, and where it offers that, to read back and to open anew."""

    write: Write
    read: Callable[[str], object] | None
    reopen: Callable[[], object] | None
    refusals: tuple[type[BaseException], ...]
    name: str

    @classmethod
    def of(cls, adapter: object, refuses: type[BaseException] | tuple[type[BaseException], ...]) -> Target:
        """Take an adapter for what it is; ConfigError when it cannot write."""
        write = getattr(adapter, "write", None) or adapter
        if not callable(write):
            raise ConfigError(
                field="adapter",
                value=adapter,
                expected="an object with write(resource, lease, value), or such a function",
            )
        refusals = refuses if isinstance(refuses, tuple) else (refuses,)
        known = [getattr(adapter, name, None) for name in ("read", "reopen")]
        name = getattr(adapter, "__qualname__", type(adapter).__name__)
        return cls(write, known[0], known[1], (*refusals, StaleToken), name.rpartition("<locals>.")[2])


@dataclass(slots=True)
class Trial:
    """One resource that nobody has used before, and the attempts to write to it."""

    target: Target
    label: str
    resource: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.resource = f"{self.label.replace(' ', '-')}-{uuid.uuid4().hex[:8]}"

    def accepted(self, writer: Writer, why: str, *, value: str | None = None) -> Attempt:
        """Write, which must be accepted; then its value must be there."""
        attempt = self.write(writer, value)
        if attempt.outcome != "accepted":
            raise self.broken(attempt, f"must be accepted: {why}")
        self.check_value(attempt)
        return attempt

    def refused(self, writer: Writer, why: str, *, value: str | None = None) -> Attempt:
        """Write, which must be refused and leave what is there as it was."""
        before = self.value()
        attempt = self.write(writer, value)
        if attempt.outcome != "refused":
            raise self.broken(attempt, f"must be refused: {why}")
        if self.target.read is not None and (after := self.value()) != before:
            raise self.broken(attempt, f"it was refused and yet changed the resource, from {before!r} to {after!r}")
        return attempt

    def write(self, writer: Writer, value: str | None = None) -> Attempt:
        """Write and note what came of it; whatever is no refusal counts as a failure."""
        with self._lock:
            attempt = Attempt(writer, value or f"v{len(self.attempts) + 1} of {writer.holder}")
            self.attempts.append(attempt)
        try:
            answer = self.target.write(self.resource, writer, attempt.value)
        except self.target.refusals as error:
            attempt.outcome, attempt.error = "refused", error
        except (StopWork, Exception) as error:  # noqa: BLE001 - it belongs to the adapter, and the report names it
            attempt.outcome, attempt.error = "failed", error
        else:
            if inspect.iscoroutine(answer):
                answer.close()
                raise Misuse(
                    "write() gave a coroutine: give assert_fenced() a function that runs it, with asyncio.run()"
                )
            attempt.outcome = "refused" if answer is False else "accepted"
        return attempt

    def value(self) -> object:
        """What the resource holds now, if it can be read."""
        return None if self.target.read is None else self.target.read(self.resource)

    def check_value(self, attempt: Attempt) -> None:
        """What was accepted last must be there."""
        if self.target.read is not None and (found := self.value()) != attempt.value:
            raise self.broken(attempt, f"it was accepted, but what can be read afterwards is {found!r}")

    def broken(self, attempt: Attempt, complaint: str) -> Broken:
        """The finding: what was wrong with an attempt, and all that led to it."""
        attempt.note = f"{attempt.note + '; ' if attempt.note else ''}WRONG, {complaint}"
        shown = self.attempts[-SHOWN_ATTEMPTS:]
        skipped = len(self.attempts) - len(shown)
        lines = [f"  {number}. {one}" for number, one in enumerate(shown, start=skipped + 1)]
        found = Broken("\n".join([f"  resource {self.resource!r}:", *lines]))
        found.__cause__ = attempt.error if attempt.outcome == "failed" else None
        return found
