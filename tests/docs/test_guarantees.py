"""The page of guarantees names tests, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


@pytest.mark.checkout
@pytest.mark.parametrize(
    "promise", [*(f"G{number}" for number in range(1, 7)), *(f"R{number}" for number in range(1, 10))]
)
def test_each_promise_names_a_test_that_exists(promise: str) -> None:
    """Every promise of docs/guarantees.md is shown by a test of the name that is given there."""
    page = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
    section = re.split(r"\n#+ ", page.split(f"## {promise}:")[1])[0]
    assert "*Rests on*" in section
    named = NAMED.findall(section)
    assert named
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
        assert not name or name in functions
