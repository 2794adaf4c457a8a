"""The script that builds etcd from source: what it does without building."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "build_etcd.py"

pytestmark = [
    pytest.mark.checkout,
    pytest.mark.skipif(sys.platform == "win32", reason="makes programs with a shebang"),
]


def run_without_go(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script where there is no Go toolchain."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--cache", str(tmp_path / "cache"), *arguments],
        env={**os.environ, "PATH": str(tmp_path / "empty")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def pretend_built(tmp_path: Path, version: str, said: str) -> None:
    """Put programs into the cache, of which the server says that it is version ``said``."""
    directory = tmp_path / "cache" / version
    directory.mkdir(parents=True)
    for name in ("etcd", "etcdctl", "etcdutl"):
        path = directory / name
        path.write_text(f"#!/bin/sh\necho 'etcd Version: {said}'\n", encoding="utf-8")
        path.chmod(0o755)


def test_without_go_it_says_so(tmp_path: Path) -> None:
    """No toolchain is one clear line and exit status 3, so that CI can leave these servers out."""
    done = run_without_go(tmp_path, "3.6")
    assert done.returncode == 3
    assert "no Go toolchain" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_is_built_is_left_alone(tmp_path: Path) -> None:
    """A version in the cache needs no Go, and its path is printed for LEASEKEEPER_ETCD."""
    pretend_built(tmp_path, "9.9.9", "9.9.9")
    done = run_without_go(tmp_path, "9.9.9", "--print")
    assert done.returncode == 0
    assert done.stdout.strip() == str(tmp_path / "cache" / "9.9.9" / "etcd")


def test_a_wrong_server_in_the_cache_is_built_again(tmp_path: Path) -> None:
    """What says that it is another version does not count as built."""
    pretend_built(tmp_path, "9.9.9", "1.0.0")
    assert run_without_go(tmp_path, "9.9.9").returncode == 3
