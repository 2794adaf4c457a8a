"""Each example runs as a reader would run it, and its own balance is right."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from leasekeeper.testing import EtcdServer
from leasekeeper.testing.outside import OutsideWorld

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples"
KILLS = {"agent.py": 9, "order.py": 3, "rotation.py": 5}
TIMEOUT_S = 170

pytestmark = [pytest.mark.checkout, pytest.mark.timeout(200)]
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, the judge of the rotation")
STORIES = ["agent.py", "order.py", pytest.param("rotation.py", marks=needs_openssl)]


def start(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an example to its end."""
    command = [sys.executable, "-X", "dev", "-W", "error", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ, check=False)


def run(name: str, *arguments: str) -> str:
    """What an example prints; it must end well."""
    done = start(FOLDER / name, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", STORIES)
def test_an_example_keeps_its_promise(name: str) -> None:
    """It kills its agent as often as its story says, and no line of the balance is wrong."""
    printed = run(name)
    assert printed.count("kill -9") == KILLS[name], printed
    assert re.search(rf"{KILLS[name]} kills, 0 lines that are wrong$", printed.rstrip()), printed


@pytest.mark.slow
def test_an_example_runs_on_what_is_lent(etcd: EtcdServer) -> None:
    """With the addresses of an etcd and an outside world it starts none, and a second run does not meet the first."""
    with OutsideWorld() as world:
        for times in (1, 2):
            run("order.py", "--etcd", etcd.endpoint, "--outside", world.url)
            assert len(world.applied("payments.charge")) == times


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "right", "wrong", "told"),
    [
        pytest.param("order.py", ", headers=step.headers()", "", "WRONG charges: 2, and not 1", id="no key"),
        pytest.param(
            "rotation.py",
            'old["root"] + new["root"]',
            'new["root"]',
            "WRONG openssl verifies what is served: False, and not True",
            marks=needs_openssl,
            id="no overlap",
        ),
    ],
)
def test_a_broken_promise_is_told_by_the_exit_code(
    tmp_path: Path, name: str, right: str, wrong: str, told: str
) -> None:
    """The balance is not for show: a mistake in the agent makes it wrong, and the example ends with 1."""
    folder = tmp_path / "examples"
    shutil.copytree(FOLDER, folder)
    whole = (folder / name).read_text(encoding="utf-8")
    assert right in whole
    (folder / name).write_text(whole.replace(right, wrong, 1), encoding="utf-8")
    done = start(folder / name)
    assert done.returncode == 1, done.stdout + done.stderr
    assert told in done.stdout


def test_the_list_is_whole() -> None:
    """Each example has a line in the list, with a sentence of what it shows."""
    listed = re.findall(r"^\| `(\w+\.py)` \| .+ \|$", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert (
        listed
        == sorted(KILLS)
        == sorted(path.name for path in FOLDER.glob("*.py") if "play(story, agent)" in path.read_text())
    )
