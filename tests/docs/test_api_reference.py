"""The reference of the Python API names what there is: a new name or argument that is not described fails here."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import leasekeeper
from leasekeeper import Keeper, Run, effect
from leasekeeper.runs.effect import Effect, Step
from leasekeeper.runs.options import Asked
from leasekeeper.runs.run import Checkpoint, Phase

PAGE = (Path(__file__).parents[2] / "docs/reference/api.md").read_text(encoding="utf-8")
CODE = re.compile(r"^```.*?^```|`[^`]+`", re.MULTILINE | re.DOTALL)
WORDS = set(re.findall(r"\w+", " ".join(CODE.findall(PAGE))))


def public(kind: type) -> set[str]:
    """The names that users see."""
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_public_name_is_named() -> None:
    """Whatever can be imported from `leasekeeper` has its place on the page."""
    plain = {name for name in leasekeeper.__all__ if not re.search(rf"\b{name}\b", PAGE)}
    assert plain <= {"__version__"}


@pytest.mark.parametrize("kind", [Keeper, Run, Checkpoint, Phase, Step], ids=lambda kind: kind.__name__)
def test_every_member_is_named(kind: type) -> None:
    """Attributes and methods."""
    assert not public(kind) - WORDS - {"name"}


def test_every_argument_is_named() -> None:
    """What can be asked of a run and declared of an effect, and what decorators an effect has."""
    declared = set(inspect.signature(effect).parameters) - {"function"}
    asked = set(Asked.__annotations__)
    methods = {
        name
        for method in (Keeper.run, Keeper.begin, Keeper.worker, Keeper.resolve, Run.do, Run.memo, Run.checkpoint)
        for name in inspect.signature(method).parameters
    } - {"self"}
    assert not (declared | asked | methods | {"preflight", "verify"}) - WORDS
    assert {"preflight", "verify"} <= public(Effect)
