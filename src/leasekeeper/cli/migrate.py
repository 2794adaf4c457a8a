"""``leasekeeper migrate``: whether this code still reads the states that every released version has stored."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE, NEGATIVE
from leasekeeper.cli.output import print_json, print_table, styled
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.text import one_line, plural
from leasekeeper.errors import ConfigError

if TYPE_CHECKING:
    from leasekeeper.runs.golden import Checked

FIXTURES, STATES = "--fixtures", "STATES"
# The library's words for what stands on the command line.
TYPED = {"fixtures": FIXTURES, "name": STATES}
# What a directory that was named wrongly makes the system say.
UNUSABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG)


@lease_command("migrate", timeout_help="Not used here: nothing is asked that could be waited for.")
@click.argument("states", nargs=-1, required=True, metavar="STATES...")
@click.option("--check", is_flag=True, help="Read every fixture, and tell what is wrong.")
@click.option(
    "--write", is_flag=True, help="First write fixtures of the states in the module, where there are none yet."
)
@click.option(
    FIXTURES,
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Where the fixtures are: DIR/<schema>/v<version>/<name>.json.",
)
def command(settings: Settings, states: tuple[str, ...], check: bool, write: bool, fixtures: Path) -> int:
    """Check that the present code reads the states that every released version has stored.

    STATES is a module, or FILE.py, that declares state types: MODULE for all of them, MODULE:NAME,NAME for some. With --write,
    each state that stands in the module under a name becomes a fixture of that name. Exits with 1 when --check finds something.
    Needs no etcd, and migrates nothing there: stored states are migrated when a run is resumed.
    """
    if not (check or write):
        raise click.UsageError("say --check, --write, or both")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` has it, for modules that are not installed
    from leasekeeper.cli.states import find_states

    found = find_states(states)
    with _as_typed(fixtures):
        written = _write(found.examples, states, fixtures) if write else []
        checked = _check(found.kinds, fixtures) if check else None
    if settings.as_json:
        print_json(_shape(written, checked))
    else:
        _show(written, checked)
    return NEGATIVE if checked is not None and checked.findings else DONE


def _write(examples: dict[str, Any], states: tuple[str, ...], fixtures: Path) -> list[str]:
    from leasekeeper.runs.golden import write_golden

    if not examples:
        expected = "a module in which states stand under names, such as PAID = OrderState(...)"
        raise ConfigError(field=STATES, value=" ".join(states), expected=expected)
    return [write_golden(value, fixtures, name).relative_to(fixtures).as_posix() for name, value in examples.items()]


@contextmanager
def _as_typed(fixtures: Path) -> Iterator[None]:
    """Have an error name what stands on the command line."""
    try:
        yield
    except ConfigError as error:
        if error.field not in TYPED:
            raise
        raise ConfigError(field=TYPED[error.field], value=error.value, expected=error.expected) from None
    except OSError as error:
        if error.errno not in UNUSABLE:
            raise
        why = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        expected = f"a directory in which files can be read and written ({why})"
        raise ConfigError(field=FIXTURES, value=str(fixtures), expected=expected) from error


def _check(kinds: list[type], fixtures: Path) -> Checked:
    from leasekeeper.runs.golden import check_golden

    return check_golden(kinds, fixtures)


def _show(written: list[str], checked: Checked | None) -> None:
    for place in written:
        click.echo(one_line(f"written: {place}"))
    if checked is None:
        return
    if checked.findings:
        rows = [
            (styled(one.problem, "bold red"), styled(one_line(one.fixture or one.schema)), styled(one_line(one.what)))
            for one in checked.findings
        ]
        print_table(("RESULT", "WHERE", "WHAT"), rows)
        click.echo()
    schemas = ", ".join(f"{schema} up to version {version}" for schema, version in checked.schemas) or "no schema"
    verdict = plural(len(checked.findings), "finding") if checked.findings else "nothing wrong"
    click.echo(one_line(f"{plural(checked.fixtures, 'fixture')} of {schemas}: {verdict}."))


def _shape(written: list[str], checked: Checked | None) -> dict[str, Any]:
    if checked is None:
        return {"ok": None, "fixtures": None, "schemas": None, "findings": None, "written": written}
    return {
        "ok": not checked.findings,
        "fixtures": checked.fixtures,
        "schemas": [{"schema": schema, "version": version} for schema, version in checked.schemas],
        "findings": [
            {
                "schema": one.schema,
                "version": one.version or None,
                "fixture": one.fixture or None,
                "problem": one.problem,
                "what": one_line(one.what),
            }
            for one in checked.findings
        ],
        "written": written,
    }
