"""The soak, for a short while: that everything it counts is bounded, and that it would say so if it were not."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.soak import Sample, judge
from tests.program import ROOT

pytestmark = pytest.mark.checkout


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_goes_on_without_end_is_bounded() -> None:
    """B33: replicas are killed and started again, what is finished is pruned: keys, database, memory and threads do not grow."""
    ended = subprocess.run(
        [sys.executable, "scripts/soak.py", "--seconds", "20", "--replicas", "3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert "NOT" not in ended.stdout
    assert "from a halt to its effect" in ended.stdout


def soak(grown: str = "", applied: int = 1) -> Any:
    """What a soak of six samples of two runs has seen; ``grown``: what was not bounded."""
    samples = [
        Sample(at_s=number, **{name: 10_000_000 * number if name == grown else 100 for name in NAMES})
        for number in range(6)
    ]
    entries = [SimpleNamespace(subject=f"{order}-{number}") for order in ("a", "b") for number in (1, 2)]
    return SimpleNamespace(
        samples=samples,
        orders=["a", "b"],
        counts=Counter(pruned=2),
        world=SimpleNamespace(applied=lambda _: entries * applied),
    )


NAMES = ("keys", "db", "used", "revision", "rss_kib", "threads")
LEFT = Sample(at_s=9, keys=3, db=100, used=100, revision=9, rss_kib=1, threads=1)


def bad(told: Any, left: Sample = LEFT, *, drained: bool = True) -> list[str]:
    """What the soak complains of, by its first word."""
    return [what.partition(" ")[0].strip(":") for good, what in judge(told, left, drained) if not good]


def test_the_soak_sees_what_grows() -> None:
    """Each of its bounds is one: with one thing grown, or one effect twice, it complains of just that."""
    assert bad(soak()) == []
    for name in ("keys", "used", "rss_kib", "threads"):
        assert bad(soak(name)) == [name]
    assert bad(soak(applied=2)) == ["4"]
    assert bad(soak(), drained=False) == ["2"]
    assert bad(soak(), Sample(9, 1000, 100, 100, 9, 1, 1)) == ["1000"]
    assert bad(soak(), Sample(9, 3, 10_000_000, 100, 9, 1, 1)) == ["9.54"]
