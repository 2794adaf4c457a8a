"""The reference of the command line names every command, option, variable, exit code and JSON field, and no other."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import click
import pytest

from leasekeeper.cli import exits
from leasekeeper.cli.command import GlobalOption
from leasekeeper.cli.program import program

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
JSON_PAGE = (ROOT / "docs/reference/cli-json.md").read_text(encoding="utf-8")
CTX = click.Context(program)


def sections(page: str) -> dict[str, str]:
    """The text below each heading of the second level."""
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with the heading that it belongs under."""
    for name in program.list_commands(CTX):
        command = program.get_command(CTX, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            inside = (command.get_command(CTX, sub) for sub in command.list_commands(CTX))
            yield from ((name, sub) for sub in inside if sub is not None)


COMMANDS = list(commands())
ids = [command.name for _, command in COMMANDS]


def options(command: click.Command) -> list[click.Option]:
    """The options of a command's own."""
    found = [param for param in command.params if isinstance(param, click.Option)]
    return [option for option in found if not isinstance(option, GlobalOption)]


@pytest.mark.parametrize(("heading", "command"), COMMANDS, ids=ids)
def test_every_command_and_option_has_its_place(heading: str, command: click.Command) -> None:
    """Each command has a section, which shows how it is called and names all its options, short ones too."""
    section = sections(PAGE)[heading]
    call = heading if command.name == heading else f"{heading} {command.name}"
    assert f"`leasekeeper {call}" in section
    for option in options(command):
        for spelled in (*option.opts, *option.secondary_opts):
            assert re.search(rf"`{spelled}[ `]", section), spelled
    for argument in (param for param in command.params if isinstance(param, click.Argument)):
        assert (argument.metavar or argument.name or "").strip("- .").upper() in section


@pytest.mark.parametrize(("heading", "command"), COMMANDS, ids=ids)
def test_no_option_is_made_up(heading: str, command: click.Command) -> None:
    """An option that the page's section names exists, there or on etcdctl."""
    params = [param for name, one in COMMANDS if name == heading for param in one.params]
    known = {spelled for param in params for spelled in (*param.opts, *param.secondary_opts)}
    known |= {spelled for param in program.params for spelled in param.opts} | {"-h"}
    if heading == "acquire":
        known |= {"--ttl", "--note"}
    named = set(re.findall(r"`(--?[a-z][a-z-]*)", sections(PAGE)[heading]))
    assert named <= known


def test_every_global_option_and_variable_is_listed() -> None:
    """The table of global options has all of them, with the variables that their help names."""
    section = sections(PAGE)["Global options"]
    for option in (param for param in program.params if isinstance(param, GlobalOption)):
        for word in (*option.opts, *re.findall(r"[A-Z]+_[A-Z_]+", option.help or "")):
            assert f"`{word}" in section, word


def test_the_table_has_every_command() -> None:
    """The list at the head of the page has all commands and links to their sections."""
    for name in program.list_commands(CTX):
        assert f"](#{name})" in PAGE


def test_every_exit_code_is_listed() -> None:
    """The codes of the page are those of the program."""
    table = set(re.findall(r"^\| ([\d, ]+) \|", sections(PAGE)["Exit codes"], flags=re.MULTILINE))
    listed = {int(code) for cell in table for code in cell.split(", ")}
    names = ("DONE", "NEGATIVE", "USAGE", "UNAVAILABLE", "BUG", "SYSTEM", "OUTPUT", "NOT_ACQUIRED", "LOST", "DENIED")
    assert listed == {getattr(exits, name) for name in (*names, "NEEDS_A_PERSON", "KEPT")}


def test_every_field_of_the_json_is_documented() -> None:
    """Each field that the shapes are made of is named on the page of the JSON."""
    from leasekeeper.cli import (
        acquire,
        break_,
        dev,
        doctor,
        epoch,
        halt,
        migrate,
        runs,
        shapes,
        show,
        unhalt,
        verify,
        watch,
    )

    modules = [acquire, break_, dev, doctor, epoch, halt, migrate, shapes, show, unhalt, verify, watch]
    modules += [import_module(f"{runs.__name__}.{found.name}") for found in iter_modules(runs.__path__)]
    made = "".join(map(inspect.getsource, modules))
    fields = set(re.findall(r'"([a-z_]+)": ', made))
    assert len(fields) > 30
    for field in fields:
        assert re.search(rf"`{field}`|\"{field}\"", JSON_PAGE), field


def test_every_command_is_on_the_page_of_the_json() -> None:
    """Each command has its section there, also those that print no JSON."""
    headings = " ".join(sections(JSON_PAGE))
    for name in program.list_commands(CTX):
        assert re.search(rf"\b{name}\b", headings), name
