"""Build etcd servers from source, for testing against versions that no package ships.

Puts ``etcd``, ``etcdctl`` and ``etcdutl`` of each pinned version into ``build/etcd/<version>/``.
Needs a Go toolchain that can reach its module proxy; a version that is already there is left
alone, so the script is cheap to run before every test run. Sources come as Go modules, checked by
Go's own sums: the main packages are built at their tag from inside a scratch module.

    python scripts/build_etcd.py                 # both pinned versions
    python scripts/build_etcd.py 3.6             # one of them
    LEASEKEEPER_ETCD=$(python scripts/build_etcd.py 3.7 --print) pytest tests

Exit status: 0 all there, 1 a build failed, 2 wrong usage, 3 no Go toolchain.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

PINNED = {"3.6": "3.6.16", "3.7": "3.7.3"}
"""Release line → the exact version that is built for it."""

PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "etcdctl": "go.etcd.io/etcd/etcdctl/v3",
    "etcdutl": "go.etcd.io/etcd/etcdutl/v3",
}
"""Program → the Go main package that it is built from."""

DEFAULT_CACHE = Path(__file__).resolve().parent.parent / "build" / "etcd"
BUILD_TIMEOUT_S = 3600.0
EXIT_BUILD_FAILED, EXIT_NO_GO = 1, 3


def is_built(directory: Path, version: str) -> bool:
    """True when all three programs are there and the server says that it is this version."""
    if not all((directory / program).is_file() for program in PACKAGES):
        return False
    said = subprocess.run([directory / "etcd", "--version"], capture_output=True, text=True, timeout=30, check=False)
    return said.returncode == 0 and f"etcd Version: {version}" in said.stdout


def run_go(go: str, *arguments: str, cwd: Path) -> None:
    """Run one go command in the scratch module; its output goes to stderr as it comes."""
    environment = {
        **os.environ,
        # Two compile jobs keep a small machine usable; CGO off makes a static program that runs
        # in an empty container image too.
        "GOFLAGS": "-mod=mod -p=2 -buildvcs=false -trimpath",
        "CGO_ENABLED": "0",
        "GOWORK": "off",
    }
    subprocess.run(
        [go, *arguments],
        cwd=cwd,
        env=environment,
        stdout=sys.stderr,
        timeout=BUILD_TIMEOUT_S,
        check=True,
    )


def build(go: str, version: str, directory: Path) -> None:
    """Build the three programs of one version into ``directory``, all or nothing."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{version}-") as scratch_name:
        scratch, out = Path(scratch_name), Path(scratch_name) / "out"
        out.mkdir()
        run_go(go, "mod", "init", "scratch", cwd=scratch)
        run_go(go, "get", *(f"{package}@v{version}" for package in PACKAGES.values()), cwd=scratch)
        for program, package in PACKAGES.items():
            target = str(out / program)
            run_go(go, "build", "-ldflags=-s -w", "-o", target, package, cwd=scratch)
        if directory.exists():
            shutil.rmtree(directory)
        out.rename(directory)


def ensure(go: str | None, version: str, cache: Path) -> int:
    """Build ``version`` into the cache unless it is there; return an exit status."""
    directory = cache / version
    if is_built(directory, version):
        print(f"etcd {version}: already built, {directory / 'etcd'}", file=sys.stderr)
        return 0
    if go is None:
        print(
            f"etcd {version}: not built and there is no Go toolchain: no 'go' on PATH. "
            "Install Go, or point LEASEKEEPER_ETCD at an etcd of that version.",
            file=sys.stderr,
        )
        return EXIT_NO_GO
    started = time.monotonic()
    try:
        build(go, version, directory)
    except (subprocess.SubprocessError, OSError) as error:
        print(f"etcd {version}: the build failed: {error}", file=sys.stderr)
        return EXIT_BUILD_FAILED
    seconds = time.monotonic() - started
    print(f"etcd {version}: built in {seconds:.0f} s, {directory / 'etcd'}", file=sys.stderr)
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; a release line stands for its pinned version."""
    parser = argparse.ArgumentParser(description="Build etcd servers from source for the tests.")
    parser.add_argument(
        "versions",
        nargs="*",
        metavar="VERSION",
        help=f"release line ({', '.join(PINNED)}) or full version; default: every pinned one",
    )
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="default: build/etcd")
    parser.add_argument("--print", action="store_true", help="print the path of each etcd built")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what was asked for; return the worst exit status."""
    options = parse(arguments)
    versions = [PINNED.get(one, one) for one in options.versions] or list(PINNED.values())
    go, cache = shutil.which("go"), options.cache.resolve()
    worst = 0
    for version in versions:
        status = ensure(go, version, cache)
        worst = max(worst, status)
        if options.print and status == 0:
            print(cache / version / "etcd")
    return worst


if __name__ == "__main__":
    sys.exit(main())
