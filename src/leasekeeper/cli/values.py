"""The kinds of values that the command line takes, each checked when it is read: names, tokens, durations, notes.

What is wrong is said in the words of the command line: the option as it is spelled, the value as it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from leasekeeper.durations import duration_s
from leasekeeper.errors import ConfigError
from leasekeeper.fencing import parse_token

__all__ = [
    "NAME",
    "NOTE",
    "PREFIX",
    "RUN",
    "SCOPE",
    "SECONDS",
    "TOKEN",
    "TTL",
    "Seconds",
    "name_argument",
    "run_argument",
]

SHOWN_CHARS = 60


@contextmanager
def _as_given(param: click.Parameter | None, text: str) -> Iterator[None]:
    """Have a ConfigError name the option or argument, and show what was written there."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(field=_spelled(param), value=text[:SHOWN_CHARS], expected=error.expected) from None


def _check_ttl(ttl_s: float) -> object:
    from leasekeeper.timing import Timing

    return Timing(ttl=ttl_s)


# click's types are generic only from some release on, which is newer than our oldest.
class Seconds(click.ParamType):  # type: ignore[type-arg]
    """A duration; ``check`` raises ConfigError for one that is not possible here."""

    name = "duration"

    def __init__(self, check: Callable[[float], object] = float) -> None:
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """In seconds."""
        if isinstance(value, (int, float)):
            return float(value)
        value_s = duration_s(_spelled(param), value)
        with _as_given(param, value):
            self._check(value_s)
        return value_s


class _Token(click.ParamType):  # type: ignore[type-arg]
    name = "token"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        with _as_given(param, str(value)):
            return parse_token(value)


class _Note(click.ParamType):  # type: ignore[type-arg]
    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from leasekeeper.protocol.keys import check_note

        with _as_given(param, value):
            return check_note(value)


class _Name(click.ParamType):  # type: ignore[type-arg]
    name = "name"

    def __init__(self, field: str) -> None:
        self.field = field

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from leasekeeper.protocol.keys import check_name

        return check_name(value, self.field)


class _Run(click.ParamType):  # type: ignore[type-arg]
    name = "run"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from leasekeeper.protocol.run_keys import parse_run

        with _as_given(param, str(value)):
            return parse_run(value)


class _Scope(click.ParamType):  # type: ignore[type-arg]
    name = "scope"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from leasekeeper.protocol.halt import check_scope

        with _as_given(param, value):
            return check_scope(value)


def _spelled(param: click.Parameter | None) -> str:
    """The longest way to write an option, or the argument's name."""
    if param is None:
        return "value"
    return max(param.opts, key=len) if isinstance(param, click.Option) else param.human_readable_name


SECONDS = Seconds()
TTL = Seconds(_check_ttl)
NOTE = _Note()
TOKEN = _Token()
NAME = _Name("NAME")
PREFIX = _Name("PREFIX")
RUN = _Run()
SCOPE = _Scope()

name_argument = click.argument("name", type=NAME)


def run_argument(*, required: bool = True, many: bool = False) -> Callable[[Any], Any]:
    """The argument RUN, or several of it."""
    return click.argument(
        "runs" if many else "run", type=RUN, metavar="RUN", required=required, nargs=-1 if many else 1
    )
