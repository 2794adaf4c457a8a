"""Lengths of time as people write them: seconds, or a number with ms, s, m, h or d."""

from __future__ import annotations

import math
import re

from leasekeeper.errors import ConfigError

__all__ = ["EXPECTED", "duration_s"]

DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?|\.\d{1,9})(ms|s|m|h|d)?", re.ASCII)
UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# The longest time that can be waited for, 31 years.
MOST_S = 1e9
SHOWN_CHARS = 60
EXPECTED = "seconds, or a number with ms, s, m, h or d, such as 1.5, 500ms or 24h"


def duration_s(field: str, value: object) -> float:
    """A length of time in seconds; ConfigError that names ``field``, as its giver spells it, for anything that is none."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        found_s = float(value) if abs(value) <= MOST_S else math.inf  # a whole number may be too large for a float
    else:
        text = value if isinstance(value, str) else ""
        found = DURATION.fullmatch(text.strip())
        if found is None:
            raise ConfigError(field=field, value=text[:SHOWN_CHARS] or value, expected=EXPECTED)
        found_s = float(found[1]) * UNITS_S[found[2] or "s"]
    if not 0 <= found_s <= MOST_S:
        raise ConfigError(field=field, value=value, expected=f"from 0 to {MOST_S:.0f} seconds")
    return found_s
