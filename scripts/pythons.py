"""List the Python interpreters of this machine that leasekeeper supports, the oldest first.

Looks at the interpreter that runs this script, at ``python3.X`` on PATH and at pyenv's versions,
and keeps one of each minor version, only where it starts and can make a virtual environment.

    python scripts/pythons.py                  # every one, a path a line
    python scripts/pythons.py --oldest --newest
    python scripts/pythons.py --at-most 3.12   # the newest of them that is not newer than 3.12

Exit status: 0 something was printed, 1 nothing fits.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

OLDEST = (3, 10)
"""What ``requires-python`` in pyproject.toml says."""

NEWEST_TRIED = 20
"""Minor versions up to here are looked for on PATH."""

START_TIMEOUT_S = 30.0

Version = tuple[int, int]


def candidates() -> Iterator[str]:
    """Paths worth a try: this interpreter, PATH, pyenv; some may not exist or not start."""
    yield sys.executable
    for minor in range(OLDEST[1], NEWEST_TRIED + 1):
        on_path = shutil.which(f"python3.{minor}")
        if on_path:
            yield on_path
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    yield from sorted(str(python) for python in root.glob("versions/3.*/bin/python3"))


def version_of(python: str) -> Version | None:
    """Return the version of an interpreter that starts and has venv and pip; else None."""
    probe = "import ensurepip, sys, venv; print(*sys.version_info[:2])"
    try:
        said = subprocess.run(
            [python, "-c", probe],
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    major, minor = said.stdout.split()
    return int(major), int(minor)


def found() -> dict[Version, str]:
    """Return one interpreter for each supported minor version, the oldest first."""
    pythons: dict[Version, str] = {}
    for python in candidates():
        version = version_of(python)
        if version is not None and version >= OLDEST:
            pythons.setdefault(version, python)
    return dict(sorted(pythons.items()))


def newest_up_to(limit: Version) -> str | None:
    """Return the newest interpreter that is not newer than ``limit``; None when there is none."""
    fitting = [python for version, python in found().items() if version <= limit]
    return fitting[-1] if fitting else None


def parse_version(text: str) -> Version:
    """Read ``3.12`` as a pair of numbers."""
    major, minor = text.split(".")
    return int(major), int(minor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was asked for; return an exit status."""
    parser = argparse.ArgumentParser(description="List the Pythons that leasekeeper supports.")
    parser.add_argument("--oldest", action="store_true", help="only the oldest")
    parser.add_argument("--newest", action="store_true", help="only the newest")
    parser.add_argument("--at-most", metavar="X.Y", type=parse_version, help="the newest up to X.Y")
    options = parser.parse_args(arguments)
    if options.at_most:
        chosen = [newest_up_to(options.at_most)]
    else:
        paths = list(found().values())
        ends = paths[:1] * options.oldest + paths[-1:] * options.newest
        chosen = list(dict.fromkeys(ends)) if options.oldest or options.newest else list(paths)
    printable = [python for python in chosen if python]
    print(*printable, sep="\n")
    return 0 if printable else 1


if __name__ == "__main__":
    sys.exit(main())
