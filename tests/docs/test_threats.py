"""A23: the threat model names a test for each leaf, and the script that CI asks notices where one is missing."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/testing/threat-model.md").read_text(encoding="utf-8")
PASSED = '<testcase classname="tests.property.test_fence" name="test_no_older_owner_is_accepted_after_a_newer_one"/>'
FAILED = PASSED.replace("/>", "><failure/></testcase>")

pytestmark = pytest.mark.checkout


def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The script, as CI runs it."""
    command = [sys.executable, str(ROOT / "scripts/threats.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_each_leaf_names_tests_that_exist() -> None:
    """No leaf without a control, none without a test."""
    done = ask()
    assert done.returncode == 0, done.stdout
    rows = [line for line in PAGE.splitlines() if line.startswith("| T")]
    assert len(rows) >= 100
    assert all(cell.strip() for row in rows for cell in row.split("|")[1:-1])
    assert all("`tests/" in row for row in rows)


@pytest.mark.parametrize(("case", "told"), [(PASSED, False), (FAILED, True), ("", True)])
def test_a_leaf_whose_test_did_not_pass(tmp_path: Path, case: str, told: bool) -> None:
    """CI fails for a leaf whose test failed or did not run."""
    results = tmp_path / "results.xml"
    results.write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
    done = ask(str(results))
    assert done.returncode == 1  # of the others none ran
    assert ("T2.4: " in done.stdout) is told


@pytest.mark.parametrize("control", ["the records", "`nobody`: the records", "`witness` the records"])
def test_a_leaf_without_a_control(control: str) -> None:
    """A23: each leaf names a control of the list, which says where in the code it is."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from threats import CONTROL, uncontrolled
    finally:
        sys.path.pop(0)
    lines = uncontrolled(PAGE.replace("`witness`: the records", control))
    assert [line.partition(":")[0] for line in lines] == ["T7.5"]
    rows = [line for line in PAGE.splitlines() if CONTROL.match(line)]
    for module in {name for row in rows for name in re.findall(r"`(leasekeeper[\w.]*)`", row)}:
        assert importlib.util.find_spec(module), module
