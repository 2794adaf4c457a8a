"""B30: a report that is signed, and the gate that asks for it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import __version__
from leasekeeper.errors import AuthError, ConfigError
from leasekeeper.signing import HmacKey
from leasekeeper.testing.chaos import Attempt, Story, Told, Weather, judge, require_proof, sign_report
from leasekeeper.testing.chaos.report import write

KEY = HmacKey("ci", b"k" * 32)
DAY_S = 86_400.0


@pytest.fixture
def signed(tmp_path: Path) -> Callable[..., Path]:
    """Makes a signed report of a storm without fault, changed as the test wants it before it is signed."""

    def make(**changes: Any) -> Path:
        story = Story(seed=1, ttl_s=3.0, replicas=1, seconds=30.0, ended_at_s=time.time() - 60)
        story.told = [Told(1.0, "r0.1", "owner", 5, "c")]
        story.attempts = [Attempt(1, 1.5, "r0.1", 5, "c", "w", 1.4, accepted=True)]
        path, _ = write(tmp_path, Weather(seconds=30), story, judge(story))
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        sign_report(path, KEY)
        return path

    return make


def test_a_proof(signed: Callable[..., Path]) -> None:
    """Signed, young, of this release, nothing broken: the report itself comes back."""
    report = require_proof(signed(), KEY, max_age_s=DAY_S, seconds=30)
    assert report["verdict"] == "kept"
    assert report["versions"]["leasekeeper"] == __version__


def test_what_it_was_a_storm_over(signed: Callable[..., Path]) -> None:
    """A proof says which workload it is of; a report from when there was one alone is of that one."""
    assert require_proof(signed(workload="runs"), KEY, max_age_s=DAY_S, workload="runs")["workload"] == "runs"
    path = signed()
    report = json.loads(path.read_text())
    assert report.pop("workload") == "lease"
    path.write_text(json.dumps(report))
    sign_report(path, KEY)
    require_proof(path, KEY, max_age_s=DAY_S)


@pytest.mark.parametrize(
    ("changes", "wanted", "field"),
    [
        ({"verdict": "violated"}, {}, "verdict"),
        ({"verdict": "unknown"}, {}, "verdict"),
        ({"versions": {"leasekeeper": "0.0.1"}}, {}, "release"),
        ({"ended_at_s": 1.0}, {}, "age_s"),
        ({"ended_at_s": 4e9}, {}, "age_s"),
        ({}, {"seconds": 31.0}, "seconds"),
        ({"workload": "runs"}, {}, "workload"),
        ({}, {"workload": "runs"}, "workload"),
        ({"format": 2}, {}, "report"),
        ({"versions": None}, {}, "report"),
    ],
)
def test_no_proof(signed: Callable[..., Path], changes: dict[str, Any], wanted: dict[str, Any], field: str) -> None:
    """A report that is well signed and yet does not prove it: the error names why."""
    with pytest.raises(ConfigError, match=f"proof.{field}"):
        require_proof(signed(**changes), KEY, max_age_s=DAY_S, **wanted)


def test_changed_afterwards(signed: Callable[..., Path]) -> None:
    """One bit of the report changed: its signature is not that any more."""
    path = signed()
    data = bytearray(path.read_bytes())
    data[data.index(b"kept")] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(AuthError, match="forged or changed"):
        require_proof(path, KEY, max_age_s=DAY_S)


def test_signed_by_somebody_else(signed: Callable[..., Path]) -> None:
    """Only the keys that are given are believed, whatever id the signature names."""
    with pytest.raises(AuthError, match="not known"):
        require_proof(signed(), HmacKey("other", b"k" * 32), max_age_s=DAY_S)
    with pytest.raises(AuthError, match="forged"):
        require_proof(signed(), HmacKey("ci", b"x" * 32), max_age_s=DAY_S)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"key_id": "ci", "signature": "§"}', "x" * 5000])
def test_no_signature(signed: Callable[..., Path], text: str) -> None:
    """A signature that is missing, cut off or no signature at all is an AuthError."""
    path = signed()
    beside = path.with_name("report.json.sig")
    beside.write_text(text)
    with pytest.raises(AuthError):
        require_proof(path, KEY, max_age_s=DAY_S)
    beside.unlink()
    with pytest.raises(AuthError, match="no signature"):
        require_proof(path, KEY, max_age_s=DAY_S)


def test_no_report(tmp_path: Path) -> None:
    """A file that is not there, or is no report, is named."""
    with pytest.raises(ConfigError, match=r"none\.json"):
        require_proof(tmp_path / "none.json", KEY, max_age_s=DAY_S)
