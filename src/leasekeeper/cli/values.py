"""The kinds of values that the command line takes, each checked when it is read: names, tokens, durations."""

from __future__ import annotations

import re
from typing import Any

import click

from leasekeeper.errors import ConfigError
from leasekeeper.fencing import parse_token

__all__ = ["NAME", "PREFIX", "SECONDS", "TOKEN", "name_argument", "seconds"]

DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?|\.\d{1,9})(ms|s|m|h)?", re.ASCII)
UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
EXPECTED = "seconds, or a number with ms, s, m or h, such as 1.5, 500ms or 2m"


def seconds(field: str, text: str) -> float:
    """A duration in seconds; ConfigError that names ``field``."""
    found = DURATION.fullmatch(text.strip())
    if found is None:
        raise ConfigError(field=field, value=text[:60], expected=EXPECTED)
    return float(found[1]) * UNITS_S[found[2] or "s"]


# click's types are generic only from some release on, which is newer than our oldest.
class _Seconds(click.ParamType):  # type: ignore[type-arg]
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return float(value) if isinstance(value, (int, float)) else seconds(_spelled(param), value)


class _Token(click.ParamType):  # type: ignore[type-arg]
    name = "token"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return parse_token(value)


class _Name(click.ParamType):  # type: ignore[type-arg]
    name = "name"

    def __init__(self, field: str) -> None:
        self.field = field

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from leasekeeper.protocol.keys import check_name

        return check_name(value, self.field)


def _spelled(param: click.Parameter | None) -> str:
    """The longest way to write an option, or the argument's name."""
    return max(param.opts, key=len) if param is not None else "value"


SECONDS = _Seconds()
TOKEN = _Token()
NAME = _Name("NAME")
PREFIX = _Name("PREFIX")

name_argument = click.argument("name", type=NAME)
