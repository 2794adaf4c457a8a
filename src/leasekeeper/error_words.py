"""The default message of an error: the first line of its class's docstring, with what is known put in its place.

The words RUN, STEP, SCOPE … in it stand for attributes, and are replaced by those that are known, quoted for a shell. What stands
in backticks is a command to be copied; `command_of` gives it to whoever else tells it, so that it is spelled once.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasekeeper.errors import LeasekeeperError

__all__ = ["command_of", "said"]

# The words of a default message that stand for an attribute.
PLACE = re.compile(r"\b[A-Z]{3,}\b")
COMMAND = re.compile(r"`(leasekeeper [^`]+)`")
# Whatever may break a line; blanks are part of a name.
BREAKS = re.compile(r"[^\S ]+")


def said(kind: type[LeasekeeperError], message: str | None, **known: object) -> str:
    """``message``, or the first line of the docstring with what is known put in its place."""
    if message:
        return message
    words = _words(known)
    parts = COMMAND.split((kind.__doc__ or "").partition("\n")[0])
    parts[::2] = [_filled(part, words) for part in parts[::2]]
    parts[1::2] = [f"`{_command(part, words)}`" for part in parts[1::2]]
    return "".join(parts)


def command_of(kind: type[LeasekeeperError], **known: object) -> str:
    """The command that the default message of an error tells, with what is known put in its place; "" when it tells none."""
    found = COMMAND.search((kind.__doc__ or "").partition("\n")[0])
    return _command(found[1], _words(known)) if found else ""


def _words(known: dict[str, object]) -> dict[str, str]:
    return {name.upper(): BREAKS.sub(" ", str(value)) for name, value in known.items() if value}


def _filled(text: str, words: dict[str, str]) -> str:
    return PLACE.sub(lambda place: shlex.quote(words[place[0]]) if place[0] in words else place[0], text)


def _command(text: str, words: dict[str, str]) -> str:
    """A command with what is known in it; a name that looks like an option stands where none can."""
    names = [word for word in text.split() if word in words]
    if any(words[name].startswith("-") for name in names):
        text = " ".join([*(word for word in text.split() if word not in words), "--", *names])
    return _filled(text, words)
