"""Whether each leaf of docs/testing/threat-model.md has controls and tests, and whether these passed.

    python scripts/threats.py                  the tests that are named exist
    python scripts/threats.py RESULTS.xml ...  and each of them passed in one of these (JUnit) results

Prints each leaf that has none, and exits with 1 if there is one.
"""

from __future__ import annotations

import ast
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/testing/threat-model.md"
LEAF = re.compile(r"^\| (T\d+\.\d+) \|.*\| (?P<control>[^|]*) \| (?P<tests>[^|]*) \|$", re.MULTILINE)
CONTROL = re.compile(r"^\| `([a-z -]+)` \| [^|]+ \| `[^|]+ \|$", re.MULTILINE)
NAMED = re.compile(r"^((?:`[a-z -]+`(?:, )?)+): ")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def leaves(page: str) -> dict[str, list[tuple[str, str]]]:
    """Each leaf with its tests: their files and names."""
    return {leaf[1]: TEST.findall(leaf["tests"]) for leaf in LEAF.finditer(page)}


def uncontrolled(page: str) -> list[str]:
    """A line for each leaf without a control of the list, and for each control that answers no leaf."""
    known = set(CONTROL.findall(page))
    lines, used = [], set()
    for leaf in LEAF.finditer(page):
        named = NAMED.match(leaf["control"])
        controls = re.findall(r"`([^`]+)`", named[1]) if named else []
        used.update(controls)
        if not controls or not known.issuperset(controls):
            lines.append(f"{leaf[1]}: no control of the list, but {controls}")
    return lines + [f"control {control!r} answers no leaf" for control in sorted(known - used)]


def exists(path: str, name: str) -> bool:
    """Whether there is such a test."""
    file = ROOT / path
    if not file.exists():
        return False
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name for node in ast.walk(tree)
    )


def passed(results: Iterable[Path]) -> set[tuple[str, str]]:
    """Files and names of the tests that passed, with whatever parameters, and never failed there."""
    good: set[tuple[str, str]] = set()
    for path in results:
        for case in ET.parse(path).iter("testcase"):
            if all(case.find(word) is None for word in ("failure", "error", "skipped")):
                file = case.get("classname", "").replace(".", "/") + ".py"
                good.add((file, case.get("name", "").partition("[")[0]))
    return good


def missing(results: list[Path]) -> list[str]:
    """A line for each leaf without a test, and for each test that is not there or did not pass."""
    page = PAGE.read_text(encoding="utf-8")
    found = leaves(page)
    good = passed(results)
    lines = uncontrolled(page)
    lines += [f"{leaf}: no test" for leaf, tests in found.items() if not tests]
    for leaf, tests in found.items():
        for path, name in tests:
            if not exists(path, name):
                lines.append(f"{leaf}: {path}::{name} does not exist")
            elif results and (path, name) not in good:
                lines.append(f"{leaf}: {path}::{name} did not pass")
    return lines if found else ["the page has no leaves"]


def main() -> None:
    """Print what is missing."""
    lines = missing([Path(argument) for argument in sys.argv[1:]])
    print("\n".join(lines) or "each threat has its controls and tests")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
