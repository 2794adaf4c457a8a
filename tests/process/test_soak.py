"""The soak, for a short while: that everything it counts is bounded, and that it would say so if it were not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.program import ROOT

pytestmark = pytest.mark.checkout
SCRIPT = ROOT / "scripts" / "soak.py"
NAMES = ("keys", "db", "used", "revision", "rss_kib", "threads")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_goes_on_without_end_is_bounded() -> None:
    """B33: replicas and etcd are killed and started again, what is finished is pruned: keys, database, memory do not grow."""
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), "--seconds", "20", "--replicas", "3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert "NOT" not in ended.stdout
    assert "from a halt to its effect" in ended.stdout


@pytest.fixture
def script() -> Iterator[Any]:
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["soak"]


def test_the_soak_sees_what_grows(script: Any) -> None:
    """Each of its bounds is one: with one thing grown, or one effect twice, it complains of just that."""

    def sample(number: int = 9, **more: int) -> Any:
        return script.Sample(at_s=number, **{**dict.fromkeys(NAMES, 100), **more})

    def bad(grown: str = "", *, times: int = 1, left: Any = None, drained: bool = True) -> list[str]:
        entries = [SimpleNamespace(subject=f"{order}-{number}") for order in "ab" for number in (1, 2)]
        told = SimpleNamespace(
            samples=[sample(number, **({grown: 10_000_000 * number} if grown else {})) for number in range(6)],
            orders=["a", "b"],
            counts=Counter(pruned=2),
            world=SimpleNamespace(applied=lambda _: entries * times),
        )
        verdicts = script.judge(told, left or sample(keys=3), drained)
        return [what.split()[0].strip(":") for good, what in verdicts if not good]

    assert bad() == []
    for name in ("keys", "used", "rss_kib", "threads"):
        assert bad(name) == [name]
    assert bad(times=2) == ["4"]
    assert bad(drained=False) == ["2"]
    assert bad(left=sample(keys=1000)) == ["1000"]
    assert bad(left=sample(keys=3, db=10_000_000)) == ["9.54"]
