"""Directories of servers: those of killed processes are removed by the next start, all others are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leasekeeper.testing.homes import make_home

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs locks that die with a process")

MAKER = """
import sys
from leasekeeper.testing.homes import make_home

print(make_home().path, flush=True)
sys.stdin.read()
"""


def make_in_another_process(scratch: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that has a directory; return both."""
    environment = {**os.environ, "TMPDIR": str(scratch)}
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert maker.stdout is not None
    return maker, Path(maker.stdout.readline().strip())


def test_what_a_killed_process_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C28: after a KILL the next start removes the directory by itself, and none that is in use or not ours."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    foreign = tmp_path / "leasekeeper-etcd-without-a-lock"
    foreign.mkdir()
    first, left = make_in_another_process(tmp_path)
    second, used = make_in_another_process(tmp_path)
    with first, second:
        first.kill()
        first.wait(30)
        assert left.is_dir()
        home = make_home()
        assert not left.exists()
        assert used.is_dir()
        assert foreign.is_dir()
        second.kill()
    home.remove()
    assert not home.path.exists()


def test_a_directory_goes_with_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked copy of the owner removes nothing."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    home = make_home()
    monkeypatch.setattr(os, "getpid", lambda: home.owner_pid + 1)
    home.remove()
    assert home.path.is_dir()
    monkeypatch.undo()
    home.remove()
    assert not home.path.exists()
