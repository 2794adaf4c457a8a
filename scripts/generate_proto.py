"""Generate ``etcd_pb2.py`` and ``etcd_pb2.pyi`` from ``src/leasekeeper/protocol/etcd.proto``.

The generator is pinned: code from protoc 25 imports without a warning on every protobuf runtime
from 4.25 on, while newer generators demand newer runtimes. It lives in an environment of its own
under ``build/``, made when it is not there, with the newest Python that it has wheels for.

    python scripts/generate_proto.py           # write both files
    python scripts/generate_proto.py --check   # fail when the checked-in files differ

Exit status: 0 done, 1 the checked-in files differ, 2 the generator cannot be had.
"""

from __future__ import annotations

import argparse
import difflib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pythons

GENERATOR = "grpcio-tools==1.62.3"
"""Carries protoc 25."""

NEWEST_PYTHON = (3, 12)
"""The newest Python that this generator has wheels for."""

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PROTO = "leasekeeper/protocol/etcd.proto"
GENERATED = ("leasekeeper/protocol/etcd_pb2.py", "leasekeeper/protocol/etcd_pb2.pyi")
ENVIRONMENT = ROOT / "build" / "protoc"
INSTALL_TIMEOUT_S = 600.0


class GeneratorMissing(Exception):
    """The pinned generator cannot be installed here."""


def ensure_generator() -> str:
    """Return the Python of an environment that has the pinned generator; make it if needed."""
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / GENERATOR
    if stamp.exists():
        return str(python)
    outer = pythons.newest_up_to(NEWEST_PYTHON)
    if outer is None:
        limit = ".".join(map(str, NEWEST_PYTHON))
        raise GeneratorMissing(f"{GENERATOR} needs a Python from 3.10 to {limit}; there is none")
    print(f"installing {GENERATOR} into {ENVIRONMENT.relative_to(ROOT)}", file=sys.stderr)
    make = [outer, "-m", "venv", "--clear", str(ENVIRONMENT)]
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (make, [*install, GENERATOR]):
        try:
            subprocess.run(command, check=True, timeout=INSTALL_TIMEOUT_S, stdout=sys.stderr)
        except (OSError, subprocess.SubprocessError) as error:
            raise GeneratorMissing(f"{GENERATOR} cannot be installed: {error}") from error
    stamp.touch()
    return str(python)


def generate(python: str, target: Path) -> None:
    """Write both files below ``target``, in the tree of the package."""
    outputs = [f"--python_out={target}", f"--pyi_out={target}"]
    command = [python, "-m", "grpc_tools.protoc", f"--proto_path={SOURCE}", *outputs, PROTO]
    subprocess.run(command, check=True, timeout=INSTALL_TIMEOUT_S)


def differences(fresh: Path) -> list[str]:
    """Return the lines of a diff from the checked-in files to those below ``fresh``."""
    lines: list[str] = []
    for name in GENERATED:
        checked_in = SOURCE / name
        old = checked_in.read_text().splitlines() if checked_in.exists() else []
        new = (fresh / name).read_text().splitlines()
        lines += difflib.unified_diff(old, new, f"src/{name}", f"generated/{name}", lineterm="")
    return lines


def check(python: str) -> int:
    """Compare with the checked-in files; return 1 and show how they differ, if they do."""
    with tempfile.TemporaryDirectory() as fresh:
        generate(python, Path(fresh))
        lines = differences(Path(fresh))
    if not lines:
        print("the generated messages are those of etcd.proto")
        return 0
    print(*(line[:200] for line in lines[:60]), sep="\n")
    print("the checked-in messages are not those of etcd.proto; run: make proto", file=sys.stderr)
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Generate or check; return an exit status."""
    parser = argparse.ArgumentParser(description="Generate the protobuf messages from etcd.proto.")
    parser.add_argument("--check", action="store_true", help="only compare, write nothing")
    options = parser.parse_args(arguments)
    try:
        python = ensure_generator()
    except GeneratorMissing as missing:
        print(missing, file=sys.stderr)
        return 2
    if options.check:
        return check(python)
    generate(python, SOURCE)
    print("written:", *(f"src/{name}" for name in GENERATED))
    return 0


if __name__ == "__main__":
    sys.exit(main())
