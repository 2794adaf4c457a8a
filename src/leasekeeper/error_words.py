"""The default message of an error: the first line of its class's docstring, with what is known put in its place.

The words RUN, STEP, SCOPE … in it stand for attributes, and are replaced by those that are known, quoted for a shell. What stands
in backticks is a command to be copied, each by itself; `commands_of` gives them to whoever else tells them, so that they are
spelled once.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasekeeper.errors import LeasekeeperError

__all__ = [
    "commands_of",
    "damaged",
    "filled",
    "halted",
    "halted_by",
    "in_doubt",
    "key_missing",
    "said",
    "words_on_a_doubt",
]

# The words of a default message that stand for an attribute.
PLACE = re.compile(r"\b[A-Z]{3,}\b")
COMMAND = re.compile(r"`(leasekeeper [^`]+)`")
# A key of a run, with the run's text in it.
IN_A_RUN = re.compile(r"/run/([^/]+/[^/]+)/[^/]")
OF_A_RUN = re.compile(r"^record \d+ of ([^/]+/[^/]+)$")
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


def commands_of(kind: type[LeasekeeperError], **known: object) -> tuple[str, ...]:
    """The commands that the default message of an error tells, with what is known put in its place."""
    return tuple(filled(found, **known) for found in COMMAND.findall((kind.__doc__ or "").partition("\n")[0]))


def filled(command: str, **known: object) -> str:
    """A command with what is known put in the place of the words for it, for a shell."""
    return _command(command, _words(known))


def words_on_a_doubt(run: str, step: str) -> tuple[str, str]:
    """The two commands of which one ends a doubt: for a step that was applied, and for one that was not."""
    yes, no = (f"leasekeeper runs resolve RUN STEP {word} --evidence TEXT" for word in ("--applied", "--not-applied"))
    return filled(yes, run=run, step=step), filled(no, run=run, step=step)


def in_doubt(run: str, step: str) -> str | None:
    """What is said of a doubt, with commands of which each can be pasted; None where it is not known what is in doubt."""
    if not run or not step:
        return None
    look, (yes, no) = filled("leasekeeper runs explain RUN", run=run), words_on_a_doubt(run, step)
    return f"Look whether it happened, then say so: if it was applied, `{yes}`; if it was not, `{no}`; see `{look}`"


def damaged(message: str | None, where: str, why: str) -> str | None:
    """What is said of a key or record that is not what was written, and the command that tells more; None: nothing is known."""
    if not where:
        return message
    run = next((found[1] for found in (pattern.search(where) for pattern in (IN_A_RUN, OF_A_RUN)) if found), None)
    see = f"see `{filled('leasekeeper runs verify RUN', run=run)}`" if run else ""
    if message:
        return f"{message}; {see}" if see and "`leasekeeper " not in message else message
    return f"{where}: {why}: {see and see + ', then '}put back what was there, from a backup"


def halted(run: str, step: str, scope: str, reason: str, by: str) -> str | None:
    """Who has halted what, and why, for whoever is stopped by it; None where that is not known."""
    if not run or not scope:
        return None
    of = _quoted(run)
    what = f"step {_quoted(step)} of {of} was not begun" if step else f"{of} goes no further"
    lift = filled("leasekeeper unhalt SCOPE", scope=scope)
    return f"{what}: {halted_by(scope, reason, by)}; to lift it: `{lift}`"


def halted_by(scope: str, reason: str, by: str) -> str:
    """Who has halted a scope, and why, on one line."""
    why = f", because: {BREAKS.sub(' ', reason)}" if reason else ""
    return f"{BREAKS.sub(' ', by) or 'an operator'} has halted {_quoted(scope)}{why}"


def key_missing(run: str, key_id: str) -> str | None:
    """Which key a program lacks, and the two ways to go on; None where that is not known."""
    if not run or not key_id:
        return None
    key = f"key {shlex.quote(key_id)}"
    return (
        f"records of {run} are signed with {key}, which this program does not have: set LEASEKEEPER_SIGNING_KEY_FILE to the"
        f" file of {key}; or, where another key signs by now, to the file of that one, and LEASEKEEPER_TRUST_FILE to a file"
        f" with the public part of {key}"
    )


def _quoted(name: str) -> str:
    return shlex.quote(BREAKS.sub(" ", name))


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
