"""What a type checker sees of the package: a program that is right passes `mypy --strict`, and mistakes are found."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

RIGHT = """\
import leasekeeper
from leasekeeper import AsyncKeeper, Keeper, Lease, LeaseLost, NotAcquired

names: list[str] = leasekeeper.__all__


def work(lease: Lease) -> str:
    token: int = lease.check(need=1.0)
    return f"{lease.name} {token} {lease.remaining():.1f}"


def main() -> None:
    with Keeper.from_env(namespace="payments", timing=leasekeeper.Timing(ttl=5), metadata=[("a", "b")]) as keeper:
        try:
            with keeper.lease("name", ttl=10, timeout=0) as lease:
                print(work(lease))
        except NotAcquired as error:
            ahead: int | None = error.ahead
            print(error.owner.holder if error.owner is not None else "", ahead)
        except LeaseLost as lost:
            print(lost.loss.reason if lost.loss is not None else lost.reason)


async def amain() -> None:
    async with AsyncKeeper("127.0.0.1:2379") as keeper, keeper.lease("name") as lease:
        token: int = await lease.wait()
        print(token)
"""

WRONG = """\
import leasekeeper
import leasekeeper.testing
from leasekeeper import AsyncKeeper, Keeper, LeaseLost, NotAcquired

leasekeeper.nope
leasekeeper.testing.nope
Keeper.from_env(name_space="payments")
AsyncKeeper.from_env(timing=5)


def over(error: NotAcquired, lost: LeaseLost, lease: leasekeeper.Lease) -> None:
    error.owner.nope
    lost.loss.nope
    lease.token = 1
    lease.name = ""


async def amain(keeper: AsyncKeeper) -> None:
    with keeper.lease("name"):
        pass
"""


def complaints(directory: Path, program: str) -> list[tuple[int, str]]:
    """What `mypy --strict` says of a program: lines and texts."""
    (directory / "program.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.10", "--config-file", ""]
    command += ["--cache-dir", str(directory / "cache"), "--no-error-summary", "program.py"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = [re.match(r"program\.py:(\d+): (error|note): (.*)", line) for line in done.stdout.splitlines()]
    assert all(found), done.stdout
    return [(int(one[1]), one[3]) for one in found if one and one[2] == "error"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(find_spec("mypy") is None, reason="needs the package mypy")
def test_what_a_type_checker_sees(tmp_path: Path) -> None:
    """A right program has no complaint; in a wrong one each mistake is found, and nothing else."""
    assert complaints(tmp_path, RIGHT) == []
    lines = WRONG.splitlines()
    mistakes = {
        number for number, line in enumerate(lines, 1) if re.search(r"nope|name_space|timing=5|= 1$|= \"\"$", line)
    }
    mistakes.add(next(number for number, line in enumerate(lines, 1) if "    with keeper.lease" in line))
    found = complaints(tmp_path, WRONG)
    assert {number for number, _ in found} == mistakes, found
