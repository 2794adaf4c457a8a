"""The reference of the testing kit names every fixture, fault, option and assertion."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import get_args

import pytest

from leasekeeper import testing
from leasekeeper.testing import (
    Etcd,
    Faults,
    LeaseClock,
    assert_exclusive,
    assert_fenced,
    assert_pauses,
    assert_resumes,
    failpoints,
    plugin,
)
from leasekeeper.testing.outside import OutsideView, Trouble, TroubleKind

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/testing.md").read_text(encoding="utf-8")
SOURCE = inspect.getsource(plugin)

FIXTURES = re.findall(r"^@pytest\.fixture.*\ndef ([a-z]\w*)\(", SOURCE, flags=re.MULTILINE)
NOT_FOR_TESTS = {"operator", "new_rival", "revive", "close", "proxies"}


def public(kind: type) -> set[str]:
    """The public methods and properties of a class."""
    return {name for name in vars(kind) if not name.startswith("_")} - NOT_FOR_TESTS


@pytest.mark.parametrize("name", FIXTURES)
def test_every_fixture_has_its_line(name: str) -> None:
    """Each fixture is in the table, and in the list at the head of the plugin."""
    assert f"| `{name}` |" in PAGE
    assert f"`{name}`" in (plugin.__doc__ or "")


@pytest.mark.parametrize("kind", [Etcd, Faults, LeaseClock])
def test_every_method_is_named(kind: type) -> None:
    """Whatever a test can do with what it is given is on the page."""
    missing = {name for name in public(kind) if not re.search(rf"`{name}[`(]", PAGE)}
    assert not missing


@pytest.mark.parametrize("check", [assert_exclusive, assert_fenced, assert_pauses, assert_resumes])
def test_every_assertion_is_shown_with_its_parameters(check: object) -> None:
    """The signature on the page is the real one."""
    assert callable(check)
    names = [
        f"{'*, ' if number == 1 else ''}{name}{'' if given.default is given.empty else '=' + _shown(given.default)}"
        for number, (name, given) in enumerate(inspect.signature(check).parameters.items())
    ]
    assert f"`{getattr(check, '__name__', '')}({', '.join(names)})`" in PAGE


def _shown(value: object) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)


def test_every_option_is_named() -> None:
    """Each option and the setting of the same name."""
    options = re.findall(r'addoption\("(--[\w-]+)"', SOURCE)
    assert len(options) == 2
    for option in options:
        assert f"`{option}`, `{option.removeprefix('--').replace('-', '_')}`" in PAGE


def test_the_outside_world_is_described() -> None:
    """Each kind of trouble, and all that can be asked of a world, with the parameters that there are."""
    for kind in get_args(TroubleKind):
        assert re.search(rf"^\| (`\w+` )*`{kind}`", PAGE, flags=re.MULTILINE), kind
    assert not {name for name in public(OutsideView) if not re.search(rf"`{name}[`(]", PAGE)}
    fields = [
        f"{field.name}={field.default}" if field.type == "int" else field.name for field in dataclasses.fields(Trouble)
    ]
    assert f"`Trouble({', '.join(fields)})`".replace("where", 'where="*"') in PAGE


def test_every_point_of_a_run_is_named() -> None:
    """Each point that a run can be killed at is on the page and at the head of the module, and so is each kind of failpoint."""
    for name in {point.partition(":")[0] for point in failpoints.names()}:
        assert f"`{name}`" in PAGE, name
        assert f"``{name}``" in (failpoints.__doc__ or ""), name
    for name in ("kill_at", "freeze_at", "raise_at", "pause_at", "track", "record"):
        names = ", ".join(
            f"{'*, ' if given.kind is given.KEYWORD_ONLY and number in (0, 1 + (name == 'raise_at')) else ''}{parameter}"
            + ("" if given.default is given.empty else f"={_shown(given.default)}")
            for number, (parameter, given) in enumerate(inspect.signature(getattr(failpoints, name)).parameters.items())
        )
        assert f"`{name}({names})`" in PAGE, f"{name}({names})"


def test_every_public_name_can_be_had() -> None:
    """What leasekeeper.testing lists is there, from where it says."""
    assert sorted(testing.__all__) == testing.__all__ == dir(testing)
    for name in testing.__all__:
        assert getattr(testing, name).__name__.removeprefix("leasekeeper.testing.") == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = testing.nothing  # type: ignore[attr-defined]
