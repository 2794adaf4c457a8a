"""`python -m bench`: every figure of the table, and build/bench.json."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import grpc
from google import protobuf
from rich.console import Console
from rich.table import Table

from bench.crowd import thousand_leases, waiters
from bench.handoff import handoff
from bench.imports import imports
from bench.inprocess import asynchronous, gate, long_use, uncontended
from bench.measure import Row
from bench.peers.race import race
from bench.runs import concurrent_steps, resumed, steps
from bench.simulator import worlds
from leasekeeper import __version__
from leasekeeper.testing import EtcdServer


def cases(endpoint: str, scale: float, peers: bool) -> dict[str, Callable[[], list[Row]]]:
    """What there is to measure, by name, in the order of the table."""

    def times(count: int) -> int:
        return max(10, int(count * scale))

    found: dict[str, Callable[[], list[Row]]] = {
        "uncontended": lambda: [uncontended(endpoint, times(600))],
        "asyncio": lambda: [asynchronous(endpoint, times(600))],
        "check": lambda: [gate(endpoint, times(200))],
        "long-use": lambda: [long_use(endpoint, max(200, int(10_000 * scale)))],
        "handoff": lambda: [handoff(endpoint, times(100))],
        "thousand": lambda: thousand_leases(endpoint, max(100, int(1000 * scale)), 10.0),
        "waiters": lambda: [waiters(endpoint, max(20, int(200 * scale)), times(50))],
        "imports": lambda: [imports(times(15))],
        "steps": lambda: steps(endpoint, times(400)),
        "concurrent-steps": lambda: [concurrent_steps(endpoint, times(40))],
        "resume": lambda: resumed(endpoint, max(100, int(1000 * scale)), times(10)),
        "simulator": lambda: [worlds(times(100))],
    }
    if peers:
        found["peers"] = lambda: race(endpoint, times(200))
    return found


def table(rows: list[Row], title: str) -> Table:
    """The figures for people."""
    made = Table(title=title, title_justify="left")
    for name in ("what", "measured", "target", "", "where it comes from"):
        made.add_column(name, justify="right" if name in ("measured", "target") else "left")
    for row in rows:
        measured = "–" if row.ratio is None else f"{row.ratio:.2f} {row.unit}"
        target = "–" if row.target is None else f"≤ {row.target:g}"
        mark = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[row.met]
        made.add_row(row.what, measured, target, mark, row.detail)
    return made


def environment(server: EtcdServer) -> dict[str, object]:
    """What the figures were measured on."""
    return {
        "leasekeeper": __version__,
        "etcd": server.version,
        "python": platform.python_version(),
        "grpcio": grpc.__version__,
        "protobuf": protobuf.__version__,
        "cores": os.cpu_count(),
    }


def run(options: argparse.Namespace, console: Console) -> Iterator[Row]:
    """Measure, a fresh etcd for each case, so that none inherits another's revisions."""
    names = list(cases("", options.scale, not options.no_peers))
    for name in [n for n in names if not options.only or n in options.only]:
        console.print(f"[dim]measuring {name} …[/]")
        with EtcdServer() as server:
            yield from cases(server.endpoint, options.scale, not options.no_peers)[name]()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="cases to run")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual repetitions")
    parser.add_argument("--no-peers", action="store_true", help="leave the other clients out")
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args()
    console = Console()
    rows = list(run(options, console))
    with EtcdServer() as server:
        about = environment(server)
    title = ", ".join(f"{name} {value}" for name, value in about.items())
    console.print(table(rows, title))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    found = [{**asdict(row), "met": row.met} for row in rows]
    options.output.write_text(json.dumps({"environment": about, "rows": found}, indent=2, ensure_ascii=False) + "\n")
    console.print(f"[dim]written to {options.output}[/]")


if __name__ == "__main__":
    main()
