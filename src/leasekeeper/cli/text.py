"""Text for people: what was stored by anybody made safe for a terminal, and durations, ages and times in words.

A record in etcd is written by whoever has the right to. Escape sequences, control characters and marks that change the direction
of writing would act on the operator's terminal, so they are shown as escapes and never sent as they are.
"""

from __future__ import annotations

import json
import math
import unicodedata
from datetime import datetime, timezone

__all__ = [
    "brief",
    "clip",
    "last_said",
    "lease_hex",
    "moment",
    "one_line",
    "plural",
    "safe",
    "short_duration",
    "time_of_day",
]

# Control, format (direction, zero width), surrogate, line and paragraph separator.
UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
CLIP_CHARS = 120
BRIEF_CHARS = 500

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
LONG_DAYS = 100


def safe(text: str) -> str:
    """``text`` with every character that is not plain writing as an escape: ESC becomes four plain characters."""
    if text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in UNSAFE else c for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clip(text: str, most: int = CLIP_CHARS) -> str:
    """Safe text of at most ``most`` characters; what was cut shows as an ellipsis."""
    shown = safe(text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def one_line(text: str) -> str:
    """Safe text on one line: white space of any kind becomes one space."""
    return safe(" ".join(text.split()))


def brief(text: str, most: int = BRIEF_CHARS) -> str:
    """One line of at most ``most`` characters."""
    line = one_line(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def last_said(log: str) -> str:
    """What the last line of a log says, without what only programs read around it; etcd writes its log as JSON."""
    line = log.rstrip().rpartition("\n")[2]
    try:
        fields = json.loads(line)
        said = [str(fields[field]) for field in ("msg", "error") if fields.get(field)]
    except (ValueError, AttributeError, RecursionError):
        return line
    return ": ".join(said) or line


def plural(count: int, word: str) -> str:
    """``1 claim``, ``2 claims``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def short_duration(seconds: float) -> str:
    """A duration in its two largest units: ``8s``, ``3m05s``, ``2h07m``, ``4d11h``; from 100 days on in days."""
    if not math.isfinite(seconds) or seconds < 0:
        return "unknown"
    whole = int(seconds)
    if whole < MINUTE_S:
        return f"{whole}s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S}m{whole % MINUTE_S:02d}s"
    if whole < DAY_S:
        return f"{whole // HOUR_S}h{whole % HOUR_S // MINUTE_S:02d}m"
    days = whole // DAY_S
    return f"{days}d" if days >= LONG_DAYS else f"{days}d{whole % DAY_S // HOUR_S:02d}h"


def moment(wall_s: float | None) -> str | None:
    """A time in UTC as ``2026-03-01T12:00:00.250Z``; None for none, or for what is no time."""
    try:
        at = datetime.fromtimestamp(wall_s, timezone.utc) if wall_s is not None else None
    except (ValueError, OverflowError, OSError):
        return None
    return None if at is None else at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_of_day(wall_s: float) -> str:
    """The time of day in UTC as ``12:00:00Z``: lines of several machines can be laid side by side."""
    return datetime.fromtimestamp(wall_s, timezone.utc).strftime("%H:%M:%SZ")


def lease_hex(lease_id: int) -> str:
    """A lease as etcdctl shows it; ids are signed on the wire."""
    return f"{lease_id & (2**64 - 1):x}"
