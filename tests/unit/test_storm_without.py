"""B30: the guards that the storms are tried without are still where they are taken out."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.checkout

GUARDS = runpy.run_path(str(ROOT / "scripts/storm_without.py"))["GUARDS"] if (ROOT / "scripts").is_dir() else {}


@pytest.mark.parametrize("name", sorted(GUARDS))
def test_a_guard_can_be_taken_out(name: str, tmp_path: Path) -> None:
    """Its text is found once, and what is left is Python."""
    script = runpy.run_path(str(ROOT / "scripts/storm_without.py"))
    guard, without = script["GUARDS"][name], script["without"]
    copy = tmp_path / guard.file
    copy.parent.mkdir(parents=True)
    shutil.copy(ROOT / "src" / guard.file, copy)
    without(guard, tmp_path)
    compile(copy.read_text(encoding="utf-8"), guard.file, "exec")
    with pytest.raises(ValueError, match="once"):
        without(guard, tmp_path)
