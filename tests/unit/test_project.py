"""The project file tells the truth: versions, dependencies and what an import costs."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from leasekeeper._version import __version__

ROOT = Path(__file__).resolve().parents[2]
PIN = re.compile(r"^([a-z-]+)==([\d.]+)$", re.MULTILINE)
BOUND = re.compile(r"^([a-z-]+)>=([\d.]+)$")


def bounds(extra: str = "") -> dict[str, str]:
    """The lower bound of each run-time dependency, or of each that an extra adds, from the installed package's metadata."""
    required = [line.replace('"', "'").partition("; ") for line in importlib.metadata.requires("leasekeeper") or []]
    matches = [BOUND.match(line) for line, _, when in required if when == (f"extra == '{extra}'" if extra else "")]
    assert all(matches), f"a dependency without a plain lower bound: {required}"
    return {match[1]: match[2] for match in matches if match}


def test_the_run_time_needs_four_packages() -> None:
    """grpcio, protobuf, click and rich are all that an installation brings."""
    assert set(bounds()) == {"click", "grpcio", "protobuf", "rich"}


@pytest.mark.checkout
def test_the_lowest_versions_tested_are_the_lowest_allowed() -> None:
    """C50, B32: CI's constraints for the lowest versions are exactly pyproject's lower bounds, those of extras included."""
    pins = dict(PIN.findall((ROOT / "ci" / "lowest.txt").read_text()))
    assert pins == bounds() | bounds("signing") | bounds("testing")
    assert bounds("signing").keys() == {"cryptography"}


def test_the_version_is_the_same_everywhere() -> None:
    """The program and the metadata of its installation read one version."""
    assert __version__ == importlib.metadata.version("leasekeeper")


def test_the_package_is_typed() -> None:
    """Type checkers of users see our annotations and the generated messages' stubs."""
    package = files("leasekeeper")
    assert package.joinpath("py.typed").is_file()
    assert package.joinpath("protocol/etcd_pb2.pyi").is_file()


def test_an_import_brings_no_tools() -> None:
    """`import leasekeeper` starts no thread and loads neither command line, tables nor test kit."""
    probe = (
        "import sys, threading, leasekeeper\n"
        "print(*sys.modules)\n"
        "assert threading.active_count() == 1, threading.enumerate()"
    )
    printed = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=50, check=True
    ).stdout
    unwanted = {"click", "rich", "pytest", "importlib.metadata", "leasekeeper.testing"}
    assert not unwanted & set(printed.split())
