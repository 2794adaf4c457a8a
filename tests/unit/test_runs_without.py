"""B30: the guards that the tests of crashes are tried without are still where they are taken out."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = [
    *("fence", "head", "epoch", "halts", "create-only", "step", "read-back", "read-back-first", "gate", "preflight"),
    *("preflight-age", "verify", "doubt", "key-age", "key-kept", "key-same", "fence-rule", "equal-token", "told-once"),
    "restarts",
]

pytestmark = pytest.mark.checkout


@pytest.mark.parametrize("name", NAMES)
def test_a_guard_can_be_taken_out(name: str, tmp_path: Path) -> None:
    """Its text is found once, and what is left is Python."""
    script = runpy.run_path(str(ROOT / "scripts/runs_without.py"))
    assert list(script["GUARDS"]) == NAMES
    guard, without = script["GUARDS"][name], script["without"]
    copy = tmp_path / guard.file
    copy.parent.mkdir(parents=True)
    shutil.copy(ROOT / "src" / guard.file, copy)
    without(guard, tmp_path)
    compile(copy.read_text(encoding="utf-8"), guard.file, "exec")
    with pytest.raises(ValueError, match="once"):
        without(guard, tmp_path)


def test_the_track_record_names_them() -> None:
    """Each guard and what it is about stand on the page, with tests that there are."""
    page = (ROOT / "docs/testing/track-record.md").read_text(encoding="utf-8")
    guards = runpy.run_path(str(ROOT / "scripts/runs_without.py"))["GUARDS"]
    for name, guard in guards.items():
        assert f"| {guard.about} | `{name}` |" in page, name
    for file, test in re.findall(r"`(?:(test_crash_\w+\.py)::)?(test_\w+)`", page):
        paths = [ROOT / "tests/process" / file] if file else list((ROOT / "tests/process").glob("test_crash_*.py"))
        assert any(f"def {test}(" in path.read_text(encoding="utf-8") for path in paths), test
