"""Read the code blocks of a Markdown page, with the markers that say how to run them.

A marker is an HTML comment on the line before a block (an empty line may stand between). Every
block of Python or shell runs, in the order of the page; none can be left out in silence.

    <!-- skip: REASON -->      do not run the next block; the reason is shown with the test's result
    <!-- needs: PACKAGE -->    do not run the next block where this optional package is not installed; shown as skipped
    <!-- raises: NAME -->      the next Python block must end in the exception of that name
    <!-- exit: N -->           the last command of the next console block must exit with N, not 0
    <!-- file: PATH -->        do not run the next block: write it to PATH in the page's directory
    <!-- output -->            the next block is the exact output of the block before it
    <!-- setup                 hidden Python, run at this point of the page
    CODE
    -->

In a ``console`` block a line that begins with ``$ `` is a command, and one that begins with ``> ``
continues it; the lines up to the next command are its output. Where there are none, nothing is
compared. In all outputs ``...`` stands for any text, on a line of its own for any lines.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

RUN = frozenset({"python", "console", "bash"})
"""Languages whose blocks run."""

SHOWN = frozenset({"ini", "json", "proto", "sql", "text", "toml", "yaml"})
"""Languages whose blocks are only shown."""

MARKERS = frozenset({"skip", "needs", "raises", "exit", "file", "output", "setup"})

SHORTEST_REASON = 10
"""A reason to skip has at least this many characters."""

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^`]*)$")
COMMENT = re.compile(r"^ *<!--\s*(?P<word>[a-z]+)(?P<colon>:?)\s*(?P<value>.*?)\s*(?P<end>-->)?$")


class PageError(Exception):
    """A page has a block or a marker that means nothing; says where and what would be right."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block: its language (``setup`` for hidden code), its text and where the text begins."""

    language: str
    text: str
    line: int
    markers: dict[str, str] = field(default_factory=dict)

    @property
    def skipped(self) -> str:
        """Why the block does not run; empty when it does."""
        needs = self.markers.get("needs")
        if needs and find_spec(needs) is None:
            return f"needs the package {needs}"
        return self.markers.get("skip", "")


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a console block and the output shown below it."""

    text: str
    output: str


def commands(block: Block) -> list[Command]:
    """Return the commands of a console block, each with its output."""
    found: list[tuple[list[str], list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append(([line[2:]], []))
        elif not found:
            raise PageError(f"line {block.line}: a console block begins with a '$ ' command")
        elif line.startswith("> ") and not found[-1][1]:
            found[-1][0].append(line[2:])
        else:
            found[-1][1].append(line)
    return [Command("\n".join(text), "\n".join(output).strip()) for text, output in found]


def read(page: Path) -> list[Block]:
    """Return all blocks of a page in order; PageError for one that could not be judged."""
    try:
        return list(_blocks(page.read_text(encoding="utf-8").splitlines()))
    except PageError as error:
        raise PageError(f"{page}: {error}") from None


def _blocks(lines: list[str]) -> Iterator[Block]:
    markers: dict[str, str] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        fence, comment = FENCE.match(line), COMMENT.match(line)
        if fence:
            block, at = _fenced(lines, at, fence, markers)
            _judge(block)
            yield block
            markers = {}
        elif comment and comment["word"] == "setup" and not comment["colon"]:
            setup, at = _hidden(lines, at)
            yield setup
        elif comment and (comment["colon"] or comment["word"] in MARKERS):
            markers[comment["word"]] = _value(comment, at)
        elif line.strip() and markers:
            raise PageError(f"line {at + 1}: a marker stands right before its block")
        at += 1
    if markers:
        raise PageError(f"a marker at the end of the page belongs to no block: {sorted(markers)}")


def _value(comment: re.Match[str], at: int) -> str:
    word, value = comment["word"], comment["value"]
    if word not in MARKERS:
        raise PageError(f"line {at + 1}: no marker {word!r}; there are {sorted(MARKERS)}")
    if not comment["end"]:
        raise PageError(f"line {at + 1}: the marker {word!r} ends on its own line")
    if word == "skip" and len(value) < SHORTEST_REASON:
        raise PageError(f"line {at + 1}: say why the block does not run: <!-- skip: REASON -->")
    return value


def _fenced(lines: list[str], at: int, fence: re.Match[str], markers: dict[str, str]) -> tuple[Block, int]:
    language = fence["info"].strip()
    body: list[str] = []
    for end in range(at + 1, len(lines)):
        if lines[end].strip() == fence["ticks"]:
            text = textwrap.dedent("\n".join(body)) + "\n"
            return Block(language, text, at + 2, dict(markers)), end
        body.append(lines[end])
    raise PageError(f"line {at + 1}: the block has no end")


def _hidden(lines: list[str], at: int) -> tuple[Block, int]:
    for end in range(at + 1, len(lines)):
        if lines[end].strip() == "-->":
            text = textwrap.dedent("\n".join(lines[at + 1 : end])) + "\n"
            return Block("setup", text, at + 2), end
    raise PageError(f"line {at + 1}: the setup comment has no end")


def _judge(block: Block) -> None:
    known = sorted(RUN | SHOWN)
    if block.language not in RUN | SHOWN:
        raise PageError(f"line {block.line - 1}: language {block.language!r}; use one of {known}")
    if block.language in SHOWN and block.markers.keys() - {"file", "output"}:
        raise PageError(f"line {block.line - 1}: a block that is only shown takes no such marker")
    if "raises" in block.markers and block.language != "python":
        raise PageError(f"line {block.line - 1}: 'raises' is for Python blocks")
    if "exit" in block.markers and block.language != "console":
        raise PageError(f"line {block.line - 1}: 'exit' is for console blocks")
