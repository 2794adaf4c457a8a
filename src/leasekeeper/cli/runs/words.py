"""Words about runs, safe for a terminal: times, names of steps, lives, values as one short line of JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from leasekeeper.cli.text import clip, moment
from leasekeeper.protocol.meta import read_meta
from leasekeeper.run_errors import ILLEGIBLE

if TYPE_CHECKING:
    from leasekeeper.protocol.story import Life

__all__ = ["at", "begun_with", "brief_json", "during", "said", "status_word", "who"]

VALUE_CHARS = 300


def at(at_ms: int) -> str:
    """A record's time in UTC."""
    return moment(at_ms / 1000) or "at an unknown time"


def during(began_ms: int, last_ms: int) -> str:
    """From when to when; the second without its date where that is the same."""
    began, last = moment(began_ms / 1000), moment(last_ms / 1000)
    if began is None or last is None:
        return "at an unknown time"
    return f"{began} to {last[11:] if began[:10] == last[:10] else last}"


def said(name: str) -> str:
    """A name in quotes."""
    return f"'{clip(name, 255)}'"


def who(life: Life | None) -> str:
    """A life in a sentence."""
    if life is None:
        return "an operator"
    process = f", pid {life.pid} on {clip(life.host)}" if life.pid and life.host else ""
    return f"{clip(life.holder)}, token {life.token}{process}"


def brief_json(value: object, most: int = VALUE_CHARS) -> str:
    """A value as JSON in ASCII, cut to fit into a line."""
    return clip(json.dumps(value), most)


def begun_with(meta: bytes | None, most: int = VALUE_CHARS) -> str:
    """The input that a run was begun with, as it is stored and cut to fit into a line; "" when there is none."""
    if meta is None:
        return ""
    try:
        given = read_meta(meta, "it").input
    except ILLEGIBLE as error:
        return f"it cannot be read: {clip(error.why)}"
    return "" if given == b"null" else clip(given.decode("utf-8", "replace"), most)


def status_word(status: str) -> str:
    """A status as people read it."""
    return status.replace("_", " ")
