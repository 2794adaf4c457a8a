"""The messages between the command and the guardian, and their form on the control socket.

Pure. Each message is one line of ASCII JSON: the message's name, then its fields in order. Arguments and environment may be any
bytes; they travel as Python's surrogate escapes. All times are seconds of ``leasekeeper.clock.boottime``, which both ends read.

The command sends orders: first `Start`, once, then any of the others. The guardian answers with reports: at most one
`Started` or `Failed`, at most one `Exited`, and `Gone` as its last word, only when no process of the tree is left.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, cast

__all__ = [
    "LINE_BYTES_MAX",
    "Broken",
    "Decoder",
    "End",
    "Ending",
    "Exited",
    "Failed",
    "Frozen",
    "Gone",
    "Good",
    "Guarding",
    "Hold",
    "Message",
    "Order",
    "Report",
    "Resume",
    "Resumed",
    "Running",
    "Signal",
    "Start",
    "Started",
    "Stop",
    "Stopped",
    "encode",
]

# The kernel takes a few MiB of arguments and environment; an escape is up to six characters a byte.
LINE_BYTES_MAX = 64 * 1024 * 1024


# ---------------------------------------------------------------- orders


@dataclass(frozen=True, slots=True)
class Start:
    """Start the program as soon as there is authority.

    ``ignored`` and ``blocked``: signals that the program inherits ignored or blocked, as from ``nohup``. ``grace_s``: how long
    descendants that outlive the program may take to obey TERM. ``home``: the command's process group, which owns the
    terminal; ``lend``: give the terminal to the program from the start.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    pause_at_s: float
    end_at_s: float
    grace_s: float
    ignored: tuple[int, ...]
    blocked: tuple[int, ...]
    home: int
    lend: bool


@dataclass(frozen=True, slots=True)
class Good:
    """There is authority: run until ``pause_at_s``; it ends at ``end_at_s``."""

    pause_at_s: float
    end_at_s: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Freeze the tree until the next `Good`."""


@dataclass(frozen=True, slots=True)
class End:
    """Authority is lost: kill the tree."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Signal the program with ``number``; kill what is left after ``grace_s``."""

    grace_s: float
    number: int


@dataclass(frozen=True, slots=True)
class Signal:
    """Pass a signal on."""

    number: int


@dataclass(frozen=True, slots=True)
class Resume:
    """The user continued the job after having stopped it."""


# ---------------------------------------------------------------- reports


@dataclass(frozen=True, slots=True)
class Guarding:
    """The guardian is up."""

    pid: int


@dataclass(frozen=True, slots=True)
class Started:
    """The program runs."""

    pid: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The program could not be started; ``status`` as a shell gives it, 127 or 126."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class Frozen:
    """No process of the tree runs."""


@dataclass(frozen=True, slots=True)
class Running:
    """The tree was continued."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The user stopped the job at the terminal, with this signal."""

    number: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """A `Resume` was carried out: a `Stopped` that came before this one is out of date."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The program ended; others of the tree may still be there. ``lent``: it had the terminal."""

    status: int
    lent: bool


@dataclass(frozen=True, slots=True)
class Ending:
    """The tree is being killed."""


@dataclass(frozen=True, slots=True)
class Gone:
    """No process of the tree is left. ``killed``: the program was killed by the guardian."""

    status: int
    killed: bool


@dataclass(frozen=True, slots=True)
class Broken:
    """The guardian itself failed; the tree is being killed."""

    text: str


Order = Start | Good | Hold | End | Stop | Signal | Resume
Report = Guarding | Started | Failed | Frozen | Running | Stopped | Resumed | Exited | Ending | Gone | Broken
Message = Order | Report

_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(Start, Good, Hold, End, Stop, Signal, Resume),
        *(Guarding, Started, Failed, Frozen, Running, Stopped, Resumed, Exited, Ending, Gone, Broken),
    )
}


def encode(message: Message) -> bytes:
    """One line, newline included."""
    values = [getattr(message, field.name) for field in fields(message)]
    return json.dumps([type(message).__name__, *values]).encode("ascii") + b"\n"


def decode(line: bytes) -> Message:
    """The message of one line; ValueError when it is none."""
    try:
        name, *values = json.loads(line)
        kind = _KINDS[name]
        return cast("Message", kind(*(tuple(v) if isinstance(v, list) else v for v in values)))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"no message of the control socket: {line[:80]!r}") from error


class Decoder:
    """Cuts a stream of bytes into messages; keeps the beginning of one that is not complete."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that ``data`` completes, in order; ValueError for a line without end."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest = bytearray()
        self._rest += rest
        if len(self._rest) > LINE_BYTES_MAX:
            raise ValueError(f"a message is longer than {LINE_BYTES_MAX} bytes")
        return [decode(line) for line in lines]
